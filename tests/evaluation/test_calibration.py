"""Calibrators from Python: fitted, chosen, and measured on held-out predictions."""

from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant import functional as cal, posthoc
from calibrant.errors import InputError
from calibrant.evaluation import cross_validate, fit_all, measure_all
from calibrant.evaluation.calibration import check_methods, same_predictions
from calibrant.posthoc import CALIBRATORS
from calibrant.predictions import Predictions, open_predictions


def samples(seed: int, n: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    logits = 4 * random.normal(size=(n, 3))
    return torch.from_numpy(logits), torch.from_numpy((logits / 2 + random.gumbel(size=(n, 3))).argmax(1))


def saved(path: Path, logits: torch.Tensor, target: torch.Tensor) -> Predictions:
    np.savez(path, logits=logits.numpy(), target=target.numpy())
    return open_predictions(path)


def test_methods_are_checked() -> None:
    dense = [key for key, entry in CALIBRATORS.items() if entry.dense]
    assert dense
    assert check_methods(["all"], dense=True) == list(CALIBRATORS)
    assert check_methods(["all"], dense=False) == [key for key in CALIBRATORS if key not in dense]
    assert check_methods(["vector", "isotonic", "vector"], dense=False) == ["vector", "isotonic"]
    with pytest.raises(InputError, match="calibrator must be one of temperature, .*got 'vectr'; did you mean 'vector'?"):
        check_methods(["vectr"], dense=False)
    with pytest.raises(InputError, match=f"calibrator {dense[0]} is for dense predictions"):
        check_methods(dense, dense=False)


def test_calibrators_are_fitted_and_measured(tmp_path: Path) -> None:
    (fit_z, fit_y), (z, y) = samples(0), samples(1)
    fitted = fit_all(["temperature", "vector"], fit_z, fit_y)
    assert list(fitted) == ["temperature", "vector"]
    by_hand = posthoc.TemperatureScaling().fit(fit_z, fit_y)
    assert fitted["temperature"].temperature_ == by_hand.temperature_
    rows: dict[str, list[int]] = {}
    testing = saved(tmp_path / "t.npz", z, y)
    found = measure_all(fitted, testing, progress=lambda name: rows.setdefault(name, []).append, resamples=20)
    assert [one.name for one in found.audits] == list(rows) == ["before", "temperature", "vector"]
    assert [sum(own) for own in rows.values()] == [300] * 3
    assert found.audits[0]["ece"] == pytest.approx(float(cal.ece(z, y)))
    assert found.audits[1]["ece"] == pytest.approx(float(cal.ece(by_hand.transform(z), y)))
    assert found.audits[1]["ece"] < 0.7 * found.audits[0]["ece"]
    assert [(one.first, one.second) for one in found.comparisons] == [("before", "temperature"), ("before", "vector")]
    gain = found.audits[0]["ece"] - found.audits[1]["ece"]
    assert found.comparisons[0].measures["ece"].difference == pytest.approx(gain, rel=1e-4)


def test_cross_validation_by_hand() -> None:
    z, y = samples(2, 100)
    y[:10] = -1
    steps: list[int] = []
    found = cross_validate(["temperature"], z, y, folds=4, seed=5, ignore_index=-1, advance=lambda: steps.append(1))
    totals = {"none": 0.0, "temperature": 0.0}
    folds = torch.randperm(100, generator=torch.Generator().manual_seed(5)).tensor_split(4)
    for i, held in enumerate(folds):
        rest = torch.cat([fold for j, fold in enumerate(folds) if j != i])
        count = int((y[held] != -1).sum())
        fitted = posthoc.TemperatureScaling().fit(z[rest], y[rest], ignore_index=-1)
        totals["none"] += count * float(cal.nll(z[held], y[held], ignore_index=-1)) / 90
        totals["temperature"] += count * float(cal.nll(fitted.transform(z[held]), y[held], ignore_index=-1)) / 90
    assert found == pytest.approx(totals)
    assert len(steps) == 4
    for folds in (1, 101):
        with pytest.raises(InputError, match=f"`folds` must be between 2 and the number of samples, 100; got {folds}"):
            cross_validate(["temperature"], z, y, folds=folds)


def test_the_same_predictions_are_recognised(tmp_path: Path) -> None:
    z, y = samples(0)
    first = saved(tmp_path / "a.npz", z, y)
    assert same_predictions(first, first, z, y)
    assert same_predictions(first, saved(tmp_path / "b.npz", z, y), z, y)
    for name, logits, target in (("c", z + 1e-6, y), ("d", z, (y + 1) % 3), ("e", z[:-1], y[:-1])):
        assert not same_predictions(first, saved(tmp_path / f"{name}.npz", logits, target), z, y)
