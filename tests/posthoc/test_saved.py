"""Saved calibrators that were damaged, or made up by somebody."""

import json
import os
import resource
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from calibrant import posthoc
from calibrant.cli import main


@pytest.fixture(scope="module")
def predictions() -> tuple[torch.Tensor, torch.Tensor]:
    logits = 3 * torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    return logits, (logits + 2 * torch.randn(300, 4, generator=torch.Generator().manual_seed(1))).argmax(1)


def made_up(folder: Path, *, state: dict[str, torch.Tensor] | None = None, **content: Any) -> None:
    """Change a saved calibrator, and its checksum with it."""
    if state is not None:
        save_file({**load_file(folder / "state.safetensors"), **state}, folder / "state.safetensors")
    found = {**json.loads((folder / "calibrator.json").read_text()), **content}
    found.pop("checksum")
    text = json.dumps(found, sort_keys=True).encode() + (folder / "state.safetensors").read_bytes()
    (folder / "calibrator.json").write_text(json.dumps({**found, "checksum": sha256(text).hexdigest()}))


@pytest.mark.parametrize("name", ["calibrator.json", "state.safetensors"])
def test_a_flipped_bit_is_found(predictions, tmp_path: Path, name: str) -> None:
    posthoc.create("vector").fit(*predictions).save(tmp_path / "c")
    path = tmp_path / "c" / name
    content = path.read_bytes()
    found, before = 0, posthoc.load(tmp_path / "c").transform(predictions[0])
    for place in range(0, 8 * len(content), 13):
        path.write_bytes(content[: place // 8] + bytes([content[place // 8] ^ 1 << place % 8]) + content[place // 8 + 1 :])
        try:
            assert torch.equal(posthoc.load(tmp_path / "c").transform(predictions[0]), before)
        except ValueError:
            found += 1
    assert found > 20


@pytest.mark.parametrize(
    ("key", "state", "message"),
    [
        ("temperature", {"temperature_": torch.tensor(0.0)}, "temperature_ must be more than 0"),
        ("temperature", {"temperature_": torch.tensor(-2.0)}, "temperature_ must be more than 0"),
        ("temperature", {"temperature_": torch.tensor(float("nan"))}, "temperature_ holds values that are not finite"),
        ("vector", {"weight_": torch.tensor([1.0, float("inf"), 1, 1])}, "weight_ holds values that are not finite"),
        ("vector", {"weight_": torch.ones(3)}, "must match|size"),
        ("vector", {"weight_": torch.ones(4, dtype=torch.int64)}, "weight_ holds values that are not finite"),
        ("matrix", {"weight_": torch.full((4, 4), 1e300, dtype=torch.float64)}, "probabilities"),
        ("ets", {"weights_": torch.tensor([0.0, 0.0, 0.0])}, "probabilities"),
        ("ets", {"weights_": torch.tensor([9.0, 9.0, 9.0])}, "probabilities"),
        ("histogram", {"floor_": torch.tensor(-1.0)}, "floor_ must be more than 0"),
        ("isotonic", {"points_": torch.zeros(4, 0)}, "does not hold a calibrator"),
    ],
)
def test_made_up_states_are_refused(predictions, tmp_path: Path, key: str, state: dict[str, Any], message: str) -> None:
    posthoc.create(key).fit(*predictions).save(tmp_path / "c")
    posthoc.load(tmp_path / "c")
    made_up(tmp_path / "c", state=state)
    with pytest.raises(ValueError, match=message):
        posthoc.load(tmp_path / "c")


@pytest.mark.parametrize("classes", [0, 1, -3, 2.5, "4", None, 10**12, True])
def test_made_up_numbers_of_classes_are_refused(predictions, tmp_path: Path, classes: Any) -> None:
    posthoc.create("temperature").fit(*predictions).save(tmp_path / "c")
    made_up(tmp_path / "c", num_classes=classes)
    with pytest.raises(ValueError, match="num_classes must be"):
        posthoc.load(tmp_path / "c")


def test_sizes_are_checked_before_anything_is_allocated(predictions, tmp_path: Path) -> None:
    logits, target = (part[:256].view(4, 64, -1).movedim(-1, 1) for part in predictions)
    images, masks = logits.reshape(4, 4, 8, 8), target.reshape(4, 8, 8)
    posthoc.create("local-temperature", epochs=1).fit(images, masks).save(tmp_path / "c")
    content = json.loads((tmp_path / "c/calibrator.json").read_text())
    made_up(tmp_path / "c", options={**content["options"], "width": 40_000})  # 14 billion weights
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="width 40000 and 4 classes do not fit the state"):
        posthoc.load(tmp_path / "c")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18


def test_all_files_may_be_read_by_whom_the_umask_lets(predictions, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        posthoc.create("temperature").fit(*predictions).save(tmp_path / "c")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "c").iterdir()} == {0o640}


def test_a_folder_of_several_calibrators_lists_them(predictions, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for key in ("vector", "temperature"):
        posthoc.create(key).fit(*predictions).save(Path("both") / key)
    said = "both holds the calibrators temperature, vector; choose one: both/temperature, both/vector"
    with pytest.raises(ValueError, match=said):
        posthoc.load("both")
    assert main(["apply", "both", "p.npz", "--output", "q.npz"]) == 2
    assert "both/temperature, both/vector" in capsys.readouterr().err
