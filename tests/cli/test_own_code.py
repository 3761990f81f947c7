"""Losses, networks and data sets of one's own, from a file in the current folder."""

import csv
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from calibrant.cli import main
from calibrant.runs import Run, RunFolder
from calibrant.train.engine import Keeper

MODULE = """
import torch
from torch import nn

class Powered(nn.Module):
    def __init__(self, num_classes, *, power=1.0):
        super().__init__()
        assert num_classes == 3
        self.power = power

    def forward(self, logits, target):
        return nn.functional.cross_entropy(logits, target) ** self.power

class Net(nn.Sequential):
    def __init__(self, num_classes, width=4):
        super().__init__(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, num_classes))

class Points(torch.utils.data.Dataset):
    def __init__(self, size=50):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.full((4,), float(index % 3)) + torch.arange(4) * index / 100, index % 3

class Nothing:
    pass

class PerSample(nn.Module):
    def forward(self, logits, target):
        return nn.functional.cross_entropy(logits, target, reduction="none")

def three(num_classes=3):
    return 3
"""
OWN = ["--data", "things.Points", "--data.options.size", "90", "--data.workers", "0", "--model", "things.Net"]
OWN += ["--model.width", "8", "--quiet", "--allow-code"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the module, which a command does not search by itself."""
    (tmp_path / "things.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    monkeypatch.delitem(sys.modules, "things", raising=False)


@pytest.mark.filterwarnings("ignore:.*held out for the test")
def test_all_three_train_and_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    command = ["train", "digits", "--loss", "things.Powered", "--loss.power", "2", "--epochs", "2", *OWN]
    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "write", stop)  # after the first epoch's checkpoint
        assert main(command) == 130
    folder = RunFolder("runs/digits/things.Powered-seed0")
    assert folder.trained
    assert not folder.finished
    assert main(command) == 0
    run = Run.load(folder)
    assert len(folder.environment().resumed) == 1
    assert run.result.parameters == 4 * 8 + 8 + 8 * 3 + 3
    assert (run.result.test.samples, len(folder.history())) == (18, 2)
    first = folder.history()[0]
    assert first["validation_loss"] == pytest.approx(first["nll"] ** 2, rel=1e-5)  # the option reached the loss


@pytest.mark.filterwarnings("ignore:.*held out for the test")
def test_a_loss_of_ones_own_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "digits", "--losses", "ce", "things.Powered", "--set", "things.Powered.power=2", "--seeds", "1"]
    command += ["--epochs", "1", "--jobs", "1", "--out", "study", *OWN]
    assert main(command) == 0
    assert "things.Powered, power=2" in capsys.readouterr().out
    with Path("study/table.csv").open(newline="") as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["ce", "things.Powered, power=2"]
    trained = Path("study/things.Powered,power=2-seed0/metrics.json").stat().st_mtime_ns
    assert main(command) == 0
    assert Path("study/things.Powered,power=2-seed0/metrics.json").stat().st_mtime_ns == trained


@pytest.mark.parametrize("command", ["train", "compare"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--loss", "things.Powered"],
            "loss.name: 'things.Powered' is code outside calibrant, which runs only with --allow-code",
        ),
        (["--model", "things.Net"], "model.name: 'things.Net' is code outside calibrant, which runs only with --allow-code"),
        (["--data", "things.Points"], "data.name: 'things.Points' is code outside calibrant, which runs only with --allow-"),
        (
            ["--loss", "nowhere.Loss", "--allow-code"],
            "loss.name: 'nowhere.Loss' cannot be imported (No module named 'nowhere')",
        ),
        (["--model", "things.Absent", "--allow-code"], "model.name: 'things.Absent' cannot be imported"),
        (["--loss", "things.Nothing", "--allow-code"], "Nothing is not a loss: expected a torch.nn.Module whose forward"),
        (["--loss", "things.three", "--allow-code"], "int is not a loss"),
        (["--loss", "things.PerSample", "--allow-code"], "the loss of a batch must be a single number, .* got shape (2,)"),
        (
            ["--loss", "things.Powered", "--loss.powr", "2", "--allow-code"],
            "takes no option 'powr'; .* did you mean 'power'?",
        ),
        (["--model", "things.three", "--allow-code"], "model things.three: expected a torch.nn.Module, got int"),
        (["--data", "things.Nothing", "--allow-code"], "data things.Nothing: data: expected a pair (inputs, labels)"),
        (
            ["--data", "things.Points", "--data.options.sise", "3", "--allow-code"],
            "takes no option 'sise'; .* did you mean 'size'?",
        ),
    ],
)
def test_what_cannot_work_is_said_in_a_sentence(
    capsys: pytest.CaptureFixture[str], command: str, options: list[str], message: str
) -> None:
    more = ["--seeds", "1", "--jobs", "1"] + ([] if "--loss" in options else ["--losses", "ce"])
    assert main([command, "digits", *options, "--quiet", "--data.limit", "60", *(more if command == "compare" else [])]) == 2
    said = capsys.readouterr().err
    for part in message.split(" .* "):
        assert part in said
    assert "Traceback" not in said
