"""The embedded check: a long-tailed problem on which the point of the package shows."""

import statistics
from pathlib import Path

import pytest

from calibrant.recipes import Recipe
from calibrant.train import fit


@pytest.mark.slow
def test_cals_halves_the_calibration_error_of_cross_entropy(tmp_path: Path) -> None:
    means = {}
    for loss in ("ce", "cals-alm"):
        tests = []
        for seed in range(3):
            recipe = Recipe.load("digits-lt", loss=loss, seed=seed, epochs=25)  # of the demo's 60
            tests.append(fit(recipe, tmp_path / f"{loss}{seed}", quiet=True).result.test)
        means[loss] = [statistics.mean(test[name] for test in tests) for name in ("ece", "accuracy")]
    assert means["cals-alm"][0] < means["ce"][0] / 2
    assert means["cals-alm"][1] >= means["ce"][1]
