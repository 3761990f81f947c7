"""Saved outputs of public networks, articles and street scenes, where the data is at hand (CALIBRANT_DATA)."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant import data, functional as cal, metrics, posthoc
from calibrant.cli import main
from calibrant.runs import Run


@pytest.fixture(scope="module")
def saved() -> dict[str, torch.Tensor]:
    path = Path(os.environ.get("CALIBRANT_DATA", "")) / "logits" / "cifar10.npz"
    if not path.exists():
        pytest.skip("needs CALIBRANT_DATA with logits/cifar10.npz")
    with np.load(path) as archive:
        return {name: torch.from_numpy(archive[name]) for name in archive.files}


#: Network, and its published accuracy, ECE with 15 bins, and NLL on CIFAR-10's test images.
NETWORKS = {"resnet110_test_logits": (0.9356, 0.0475, 0.3583), "vgg16_test_logp": (0.9359, 0.0398, 0.2571)}


@pytest.mark.parametrize("name", NETWORKS)
def test_public_networks_have_their_known_figures(saved: dict[str, torch.Tensor], name: str) -> None:
    logits, target = saved[name], saved["resnet110_test_y"].long()
    for function, expected in zip((cal.accuracy, cal.ece, cal.nll), NETWORKS[name], strict=True):
        assert round(float(function(logits, target)), 4) == expected
    panel = metrics.CalibrationPanel(10)
    for part, labels in zip(logits.split(777), target.split(777), strict=True):
        panel.update(part, labels)
    result = panel.compute()
    assert tuple(round(value, 4) for value in (result.accuracy, result.ece, result.nll)) == NETWORKS[name]
    exact = {n: float(getattr(cal, n)(logits, target)) for n in ("adaptive_ece", "debiased_ece", "smooth_ece", "aurc")}
    for measure, value in exact.items():
        assert getattr(result, measure) == pytest.approx(value, abs=2e-4), measure


def test_temperature_scaling_of_a_public_network(saved: dict[str, torch.Tensor]) -> None:
    logits, target = saved["resnet110_val_logits"], saved["resnet110_val_y"].long()
    calibrator = posthoc.TemperatureScaling().fit(logits, target)
    test, labels = saved["resnet110_test_logits"], saved["resnet110_test_y"].long()
    assert round(float(cal.ece(test, labels)), 4) == 0.0475
    assert cal.ece(calibrator.transform(test), labels) < 0.013
    assert cal.accuracy(calibrator.transform(test), labels) == cal.accuracy(test, labels)


def test_temperature_by_both_criteria(saved: dict[str, torch.Tensor], tmp_path: Path, capsys) -> None:
    """Of ResNet-110 the grid of the papers gives T 2.5, and the minimum of the NLL T 2.40."""
    for part in ("val", "test"):
        np.savez(tmp_path / f"{part}.npz", logits=saved[f"resnet110_{part}_logits"], target=saved[f"resnet110_{part}_y"])
    for criterion, temperature, error in (("nll", 2.40, 0.0113), ("ece", 2.5, 0.0077)):
        command = ["calibrate", str(tmp_path / "val.npz"), str(tmp_path / "test.npz"), "--temperature", criterion]
        assert main([*command, "--resamples", "20", "--out", str(tmp_path / criterion)]) == 0
        fitted = posthoc.load(tmp_path / criterion)
        assert float(fitted.temperature_) == pytest.approx(temperature, abs=0.005)
        found = json.loads((tmp_path / criterion / "metrics.json").read_text())["files"][1]
        assert round(found["ece"], 4) == error
        assert f"temperature_ = {float(fitted.temperature_):.4f}, by {criterion.upper()}" in capsys.readouterr().out


# Texts and segmented images


@pytest.fixture(scope="module")
def articles() -> Path:
    root = Path(os.environ.get("CALIBRANT_DATA", ""))
    if not (root / "20_newsgroups").is_dir() or not (root / "glove" / "glove.6B.100d.txt").exists():
        pytest.skip("needs CALIBRANT_DATA with 20_newsgroups and glove/glove.6B.100d.txt")
    return root


@pytest.mark.slow
def test_newsgroups_are_split_and_learned(articles: Path, tmp_path: Path) -> None:
    command = ["train", "newsgroups20", "--data.root", str(articles), "--out", str(tmp_path / "run"), "--quiet"]
    small = ["--data.limit", "1500", "--data.options.length", "100", "--model.options.width", "64"]
    quick = ["--epochs", "3", "--batch_size", "32", "--optimizer.lr", "0.005", "--loss", "cals-alm"]
    assert main([*command, *small, *quick]) == 0
    with np.load(tmp_path / "run" / "split.npz") as split:
        assert {name: len(split[name]) for name in split.files} == {"train": 14_229, "validation": 848, "test": 3_769}
        everything = np.concatenate([split[name] for name in split.files])
    assert sorted(everything.tolist()) == list(range(18_846))
    run = Run.load(tmp_path / "run")
    assert run.result.test.samples == 1500
    assert run.result.test["accuracy"] > 0.1  # of 20 groups, after some 140 steps: by chance 0.05, here 0.18
    assert run.result.test.classes[13].name == "sci.med"
    assert run.recipe.data.options == {"vocabulary": 20_000, "vectors": "glove.6B.100d.txt", "length": 100}


@pytest.fixture(scope="module")
def camvid() -> Path:
    root = Path(os.environ.get("CALIBRANT_DATA", ""))
    if not (root / "camvid" / "ImageSets" / "Segmentation" / "test.txt").exists():
        pytest.skip("needs CALIBRANT_DATA with camvid in the layout of VOC")
    return root


@pytest.mark.slow
def test_camvid_is_read_and_its_recipe_runs(camvid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = data.create("voc", path="camvid", root=camvid)
    assert (len(found.train), len(found.validation), len(found.test)) == (367, 101, 233)
    assert (found.num_classes, found.classes[0], found.classes[10]) == (11, "Sky", "Bicyclist")
    assert isinstance(found.test, data.Masks)
    image, mask = found.test.read_one(0)
    assert (image.shape, mask.shape) == ((3, 180, 240), (180, 240))
    assert set(mask.unique().tolist()) <= {*range(11), 255}
    command = ["train", "camvid-deeplabv3", "--dry-run", "--data.root", str(camvid), "--data.limit", "16"]
    assert main([*command, "--batch_size", "4", "--eval_batch_size", "4", "--data.workers", "0", "--loss", "cals-alm"]) == 0
    text = capsys.readouterr().out
    assert "camvid-deeplabv3: 16 train, 16 validation, 16 test samples of 11 classes" in text
    assert "smp:DeepLabV3Plus: 12,3" in text
