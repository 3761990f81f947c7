"""What training shows while it goes on, on a terminal and elsewhere; and how many threads it takes."""

import functools
import io
import os
import re
from pathlib import Path

import pytest
import rich.console
import torch

from calibrant.cli import main
from calibrant.recipes import Recipe
from calibrant.train import fit, progress
from calibrant.train.preparing import is_small, prepare, threads_of


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("loss", ["ce", "cals-alm", "adafocal"])
def test_a_terminal_shows_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, loss: str) -> None:
    shown = io.StringIO()
    console = functools.partial(rich.console.Console, file=shown, force_terminal=True, width=width)
    monkeypatch.setattr("rich.console.Console", lambda **_: console())
    fit("digits-lt", tmp_path / "run", loss=loss, epochs=3, **{"data.limit": 60, "batch_size": 10})
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()).replace("\r", "\n")
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= width
    assert "…" not in text
    epochs = [line for line in lines if line.startswith("epochs")]
    assert any(re.search(r"[23]/3 .*accuracy [\d.]+ ?%, ECE [\d.]+ ?%$", line) for line in epochs), epochs
    batches = [line for line in lines if line.startswith("batches")]
    assert any(re.search(r"\d/6 .*loss \d+\.\d{4}", line) for line in batches), batches
    if loss == "cals-alm":
        assert any(re.search(r"loss \d+\.\d{4}, mean multiplier [\d.e-]+$", line) for line in batches), batches


def test_elsewhere_there_are_lines(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["train", "digits-lt", "--loss", "cals-alm", "--data.limit", "60", "--epochs", "4"]
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    assert main([*command, "--out", str(tmp_path / "all")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"epoch {k} of 4" for k in range(1, 5)]
    number = r"[\d.e+-]+"
    for line in lines[:-1]:
        assert re.search(
            rf"loss {number}, accuracy {number} ?%, ECE {number} ?%, .*multiplier {number}, about .* left$", line
        )
    assert "left" not in lines[-1]
    monkeypatch.setattr(progress, "PAUSE", 1e6)
    assert main([*command, "--out", str(tmp_path / "some")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["epoch 1 of 4", "epoch 4 of 4"]
    assert main([*command, "--out", str(tmp_path / "none"), "--quiet"]) == 0
    assert not capsys.readouterr().err


# Threads


def test_small_networks_take_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def threads(recipe: Recipe, given: int | None = None) -> int:
        with threads_of(recipe, prepare(recipe).operations, given):
            seen.append(torch.get_num_threads())
        return seen[-1]

    small = Recipe.load("digits-lt")
    large = Recipe.load("digits-lt", model="resnet50", batch_size=200)
    assert is_small(small, prepare(small).operations)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert (threads(small), threads(large)) == (1, 2)
        assert (threads(small, 2), threads(large, 1)) == (2, 1)  # who asks for a number gets it
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        assert threads(small) == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_operations_are_counted() -> None:
    """By hand: a multiplication and an addition for each weight and pixel."""
    recipe = Recipe.load("digits", **{"model.width": 4})
    convolutions = 64 * 9 * 1 * 4 + 16 * 9 * 4 * 8 + 16 * 9 * 8 * 8
    assert prepare(recipe).operations == 2 * (convolutions + 128 * 16 + 16 * 10)


def test_threads_that_wait_do_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")
    assert main(["list"]) == 0
    assert {name: os.environ[name] for name in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT")} == {
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
        "GOMP_SPINCOUNT": "5",
    }
