"""Saved outputs of public networks, where the data is at hand (CALIBRANT_DATA)."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant import functional as cal
from calibrant import metrics, posthoc


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
