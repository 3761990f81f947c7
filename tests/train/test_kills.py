"""Killed at every moment at which a file changes: the same command afterwards leaves what it would have left undisturbed."""

import csv
import hashlib
import os
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calibrant.cli import main
from calibrant.errors import InputError
from calibrant.recipes import Data, Model, Optimizer, Recipe
from calibrant.runs import RunFolder
from calibrant.train import fit
from calibrant.train.checkpoints import load_checkpoint, newest_checkpoint

RECIPE = Recipe(
    name="killed",
    data=Data(limit=30),
    model=Model("mlp", {"hidden": [4]}),
    loss="cals-alm",
    optimizer=Optimizer("adam", lr=1e-2),
    epochs=2,
    batch_size=16,
    validate_every=0.5,
    select="nll",
)
#: Audit events of Python that come before a file changes, and the number of the argument that is its path.
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.link", "os.rmdir", "os.chmod", "os.truncate")
#: Told of each of them; there is no taking an audit hook away.
listener: Callable[[str, str], None] | None = None


def hear(event: str, arguments: tuple[Any, ...]) -> None:
    if listener is None or event not in EVENTS:
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        return
    listener(event, str(arguments[0]))


@pytest.fixture(scope="module", autouse=True)
def _hearing() -> None:
    sys.addaudithook(hear)


@pytest.fixture(autouse=True)
def _measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring takes longer than training: the same predictions are measured once."""
    module = sys.modules["calibrant.train.fit"]  # not the function of that name
    real, known = module.measure_run, dict[bytes, dict[str, Any]]()

    def measure(folder: RunFolder, *arguments: Any) -> dict[str, Any]:
        key = b"".join(folder.predictions(part).read_bytes() for part in ("validation", "test"))
        if key not in known:
            known[key] = real(folder, *arguments)
        return known[key]

    monkeypatch.setattr(module, "measure_run", measure)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def results(folder: Path) -> dict[str, Any]:
    """All that a run leaves, without times."""
    found: dict[str, Any] = files(folder)
    assert not [name for name in found if ".calibrant" in name or "new" in name]
    for name in [name for name in found if name.endswith(".ckpt")]:
        content = torch.load(folder / name, weights_only=True)
        found[name] = {key: value.tolist() for key, value in content["state_dict"].items()}, content["epoch"]
    with (folder / "history.csv").open() as file:
        found["history.csv"] = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    del found["environment.json"]
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("undisturbed"))
        fit(RECIPE, "run", quiet=True)
        return results(Path("run"))


def moments(place: Path) -> Iterator[tuple[str, Path]]:
    """Copies of the folder of a run before each change of a file, and of those that are renamed, half written."""
    global listener  # noqa: PLW0603
    kept: list[tuple[str, Path]] = []
    seen: set[bytes] = set()

    def keep(what: str, half: str = "") -> None:
        copy = place / str(len(kept))
        if Path("run").exists():
            shutil.copytree("run", copy)
        else:
            copy.mkdir()
        if half:
            cut = copy / Path(half).absolute().relative_to(Path("run").absolute())
            cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
        state = {str(path.relative_to(copy)) for path in copy.rglob("*")}, files(copy)
        digest = hashlib.sha256(repr((sorted(state[0]), {**state[1], "environment.json": b""})).encode()).digest()
        if digest in seen:
            shutil.rmtree(copy)
        else:
            seen.add(digest)
            kept.append((what, copy))

    def tell(event: str, path: str) -> None:
        global listener  # noqa: PLW0603
        if not Path(path).absolute().is_relative_to(Path("run").absolute()):
            return
        listener, own = None, listener  # copying changes files, too
        keep(f"{event} {path}")
        if event == "os.rename":
            keep(f"half of {path}", half=path)
        listener = own

    listener = tell
    try:
        fit(RECIPE, "run", quiet=True)
    finally:
        listener = None
    yield from kept


def test_killed_before_each_change_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    tried = 0
    for what, copy in moments(tmp_path):
        shutil.rmtree("run", ignore_errors=True)
        copy.rename("run")
        try:
            fit(RECIPE, "run", quiet=True)
        except Exception as error:
            raise AssertionError(f"killed before {what}") from error
        assert results(Path("run")) == undisturbed, f"killed before {what}"
        tried += 1
    assert tried > 50


def test_everything_is_written_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stays behind elsewhere, such as in the folder of temporary files, whatever is killed when."""
    global listener  # noqa: PLW0603
    monkeypatch.chdir(tmp_path)
    elsewhere = []

    def tell(event: str, path: str) -> None:
        if not Path(path).absolute().is_relative_to(tmp_path / "run") and "__pycache__" not in path:
            elsewhere.append(f"{event} {path}")

    listener = tell
    try:
        fit(RECIPE, "run", quiet=True)
    finally:
        listener = None
    assert not elsewhere


@pytest.mark.parametrize("number", [3, 12, 40, 75])
def test_a_process_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any], number: int
) -> None:
    """Not a copy, but a process that dies before its n-th change of a file."""
    monkeypatch.chdir(tmp_path)
    child = os.fork()
    if not child:
        global listener  # noqa: PLW0603
        left = [number]

        def die(event: str, path: str) -> None:
            del event
            if Path(path).absolute().is_relative_to(tmp_path / "run"):
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)

        listener = die
        try:
            fit(RECIPE, "run", quiet=True)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    fit(RECIPE, "run", quiet=True)
    assert results(Path("run")) == undisturbed


# Damage


def flipped(content: bytes, place: int) -> bytes:
    bit = 1 << place % 8
    return content[: place // 8] + bytes([content[place // 8] ^ bit]) + content[place // 8 + 1 :]


def test_a_flipped_bit_in_a_checkpoint_is_found_or_means_nothing(tmp_path: Path) -> None:
    """Of 200, spread over the file; what the archive holds besides its contents, such as dates, means nothing."""
    folder = RunFolder(tmp_path / "run")
    fit(RECIPE, folder, quiet=True)
    path = folder.checkpoint("last")
    content = path.read_bytes()
    whole = repr(load_checkpoint(path, RECIPE))
    found = 0
    for k in range(200):
        place = (8 * len(content) * k) // 200 + k % 8
        path.write_bytes(flipped(content, place))
        try:
            assert repr(load_checkpoint(path, RECIPE)) == whole, place
        except InputError:
            found += 1
    assert found > 100


def test_the_checkpoint_before_a_damaged_one_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any], capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    fit(RECIPE, "run", quiet=True)
    folder = RunFolder("run")
    Path("run/metrics.json").unlink()
    last = folder.checkpoint("last")
    with zipfile.ZipFile(last) as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
    last.write_bytes(flipped(last.read_bytes(), 8 * (largest.header_offset + 200)))
    with pytest.warns(UserWarning, match="last.ckpt is damaged: its checksum does not match"):
        assert newest_checkpoint(folder, RECIPE) == folder.checkpoint("previous")
    with pytest.warns(UserWarning, match="last.ckpt is damaged"):
        fit(RECIPE, "run", quiet=True)
    assert results(Path("run")) == undisturbed
    for name in ("last", "previous"):
        folder.checkpoint(name).write_bytes(b"nothing")
    Path("run/metrics.json").unlink()
    Path("recipe.yaml").write_text(RECIPE.to_yaml())
    assert main(["train", "recipe.yaml", "--quiet", "--out", "run"]) == 0
    assert "run has no usable checkpoint; training starts over" in capsys.readouterr().err
    assert results(Path("run")) == undisturbed


def test_a_damaged_checkpoint_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    fit(RECIPE, "run", quiet=True)
    best = Path("run/checkpoints/best.ckpt")
    best.write_bytes(best.read_bytes()[:-100])
    assert main(["ood", "run", "--ood", "noise"]) == 2
    assert "best.ckpt cannot be read" in capsys.readouterr().err
