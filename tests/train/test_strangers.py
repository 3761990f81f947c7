"""Recipes, run folders and data of strangers: nothing in them runs without leave."""

import pickle
import zlib
from pathlib import Path

import pytest
import torch
import yaml

from calibrant.cli import main
from calibrant.train import fit


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pickled(mark: Path) -> bytes:
    return pickle.dumps({"train": Trap(mark), "test": Trap(mark), "data": Trap(mark), "labels": [], "label_names": []})


def newsgroups(gift: Path, mark: Path) -> None:
    (gift / "20news-bydate_py3.pkz").write_bytes(zlib.compress(pickled(mark)))


def mnist(gift: Path, mark: Path) -> None:
    for name in ("training", "test"):
        path = gift / "MNIST" / "processed" / f"{name}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(Trap(mark), path)


def cifar10(gift: Path, mark: Path) -> None:
    folder = gift / "cifar-10-batches-py"
    folder.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_bytes(pickled(mark))


def cifar100(gift: Path, mark: Path) -> None:
    folder = gift / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test", "meta"):
        (folder / name).write_bytes(pickled(mark))


def npz(gift: Path, mark: Path) -> None:
    (gift / "gift.npz").write_bytes(pickled(mark))


@pytest.mark.parametrize(
    ("name", "make"),
    [("newsgroups20", newsgroups), ("mnist", mnist), ("cifar10", cifar10), ("cifar100", cifar100), ("npz", npz)],
)
@pytest.mark.parametrize("download", [False, True])
def test_nothing_under_a_data_root_is_unpickled(here: Path, capsys, monkeypatch, name: str, make, download: bool) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("there is no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    monkeypatch.setattr("calibrant.data.newsgroups.urlopen", offline)
    gift, mark = here / "gift", here / "ran"
    gift.mkdir()
    make(gift, mark)
    recipe = {"data": {"name": name, "root": "gift", "download": download}, "epochs": 1}
    if name == "npz":
        recipe["data"]["path"] = "gift.npz"
    (here / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["train", "recipe.yaml", "--dry-run"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not mark.exists()


def test_the_trap_works(tmp_path: Path) -> None:
    pickle.loads(pickled(tmp_path / "ran"))  # noqa: S301
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "model",
    [
        {"name": "timm:resnet18", "options": {"checkpoint_path": "gift.pth"}},
        {"name": "timm:resnet18", "options": {"pretrained": True, "pretrained_cfg_overlay": {"file": "gift.pth"}}},
        {"name": "smp:Unet", "options": {"encoder": "resnet18", "pretrained": "gift.pth"}},
    ],
)
def test_weights_are_only_weights(here: Path, capsys, model: dict[str, object]) -> None:
    torch.save({"conv1.weight": Trap(here / "ran")}, here / "gift.pth")
    (here / "recipe.yaml").write_text(yaml.safe_dump({"data": {"limit": 20}, "model": model, "epochs": 1}))
    assert main(["train", "recipe.yaml", "--dry-run"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"trainer": {"logger": {"class_path": "trap.Trap"}}},
        {"trainer": {"logger": ["csv", {"class_path": "trap.Trap"}]}},
        {"trainer": {"strategy": {"class_path": "trap.Trap"}}},
        {"trainer": {"profiler": {"class_path": "trap.Trap"}}},
        {"model": "trap.Trap"},
        {"loss": "trap:Trap"},
        {"data": "trap.Trap"},
    ],
)
def test_code_is_named_in_vain_without_leave(here: Path, capsys, fields: dict[str, object]) -> None:
    (here / "trap.py").write_text(f"import os; os.mkdir({str(here / 'ran')!r})")
    (here / "recipe.yaml").write_text(yaml.safe_dump({"epochs": 1, **fields}))
    for more in ([], ["--dry-run"]):
        assert main(["train", "recipe.yaml", *more]) == 2
        text = capsys.readouterr().err
        assert "Traceback" not in text
        assert "--allow-code" in text or "class_path" in text
    assert not (here / "ran").exists()
    assert not (here / "runs").exists()


def test_run_folders_of_strangers(here: Path, capsys) -> None:
    """Through ood and shift, which load the network of a run again."""
    run = fit("digits", here / "run", quiet=True, epochs=1, **{"data.limit": 30})
    assert run is not None
    content = yaml.safe_load((here / "run/recipe.yaml").read_text())
    (here / "gift").mkdir()
    newsgroups(here / "gift", here / "ran")
    content["data"] |= {"name": "newsgroups20", "root": "gift", "download": True}
    (here / "run/recipe.yaml").write_text(yaml.safe_dump(content))
    torch.save({"state_dict": Trap(here / "ran")}, here / "run/checkpoints/last.ckpt")
    for command in (["ood", "run", "--ood", "noise"], ["shift", "run"]):
        assert main(command) == 2
        assert "Traceback" not in capsys.readouterr().err
    content["data"]["name"] = "digits"
    (here / "run/recipe.yaml").write_text(yaml.safe_dump(content))
    assert main(["ood", "run", "--ood", "noise"]) == 2
    assert "last.ckpt cannot be read" in capsys.readouterr().err
    assert not (here / "ran").exists()
