"""Statistics of what a panel keeps: those of the samples themselves."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant import functional as cal, metrics, stats
from calibrant.inputs import for_measuring
from calibrant.metrics import MEASURES, Measure
from calibrant.outcomes import top_label

#: Measures of samples that have an interval.
MEASURED = [record for record in MEASURES.values() if record.interval and record.on in ("scores", "bins", "sorted")]
RESAMPLED = [record for record in MEASURED if record.interval == "bootstrap"]


def overconfident(n: int = 400, k: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=random, dtype=torch.float64)
    target = torch.multinomial(logits.softmax(1), 1, generator=random).squeeze(1)
    target[::9] = -100
    return 1.5 * logits, target


def panel_of(logits: Tensor, target: Tensor, **options: int) -> metrics.PanelResult:
    panel = metrics.Panel(logits.shape[1], **options)
    panel.update(logits, target)
    return panel.compute()


@pytest.fixture(scope="module")
def result() -> metrics.PanelResult:
    return panel_of(*overconfident())


@pytest.fixture(scope="module")
def intervals(result: metrics.PanelResult) -> dict[str, stats.Interval]:
    return stats.panel_intervals(result, resamples=2000)


@pytest.mark.parametrize("record", MEASURED, ids=lambda record: record.key)
def test_every_interval_is_around_its_value(
    record: Measure, result: metrics.PanelResult, intervals: dict[str, stats.Interval]
) -> None:
    found = intervals[record.key]
    methods = {"bootstrap": "bootstrap", "wilson": "Wilson", "normal": "normal", "inversion": "test inversion"}
    assert found.method == methods[record.interval]
    assert found.resamples == (2000 if record.interval in ("bootstrap", "inversion") else 0)
    assert found.value == result[record.key]
    assert 0 <= found.low < found.value < found.high <= record.most


@pytest.mark.parametrize("record", RESAMPLED, ids=lambda record: record.key)
def test_intervals_are_those_of_plain_resampling(record: Measure, intervals: dict[str, stats.Interval]) -> None:
    """Of logits, measured anew for each resample."""
    found = intervals[record.key]
    resamples = 60 if record.key == "smooth_ece" else 600  # one by one: slow
    plain = stats.bootstrap(partial(record.function), *overconfident(), resamples=resamples)
    slack = (0.6 if record.key in ("mce", "smooth_ece") else 0.2) * (plain.high - plain.low)
    assert found.low == pytest.approx(max(plain.low, 0), abs=slack)
    assert found.high == pytest.approx(min(plain.high, record.most), abs=slack)


def test_intervals_that_have_a_formula(intervals: dict[str, stats.Interval]) -> None:
    logits, target = overconfident()
    kept = target != -100
    right = logits.argmax(1)[kept] == target[kept]
    low, high = stats.wilson(right.sum(), kept.sum())
    assert (intervals["accuracy"].low, intervals["accuracy"].high) == (float(low), float(high))
    probs, labels = logits[kept].softmax(1), target[kept]
    scores = {
        "nll": -probs[torch.arange(len(labels)), labels].log(),
        "brier": (probs - torch.nn.functional.one_hot(labels, 5)).square().sum(1),
    }
    for key, values in scores.items():
        half = 1.959964 * float(values.std()) / math.sqrt(len(values))
        mean = float(values.mean())
        assert tuple(intervals[key]) == pytest.approx((mean, mean - half, mean + half), rel=1e-6)


def test_the_interval_of_the_debiased_error_is_that_of_the_samples(result: metrics.PanelResult) -> None:
    """Same bins, same method; only the random numbers differ."""
    found = stats.panel_intervals(result, resamples=2000)["debiased_ece"]
    expected = stats.bootstrap("debiased_ece", *overconfident(), resamples=2000)
    assert found.value == pytest.approx(expected.value, abs=1e-3)
    width = expected.high - expected.low
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.05 * width)


def test_level_seed_and_bins() -> None:
    logits, target = overconfident()
    result = panel_of(logits, target, num_bins=5)
    wide, narrow = (stats.panel_intervals(result, level=level, resamples=300) for level in (0.99, 0.5))
    for key in wide:
        assert wide[key].low <= narrow[key].low < narrow[key].high <= wide[key].high, key
    assert stats.panel_intervals(result, level=0.99, resamples=300) == wide
    assert stats.panel_intervals(result, level=0.99, resamples=300, seed=1)["ece"] != wide["ece"]
    assert wide["ece"].value == pytest.approx(float(cal.ece(logits, target, num_bins=5)), rel=1e-12)
    with pytest.raises(ValueError, match="the panel is empty"):
        stats.panel_intervals(metrics.Panel(5).compute())


def test_interval_of_bins(result: metrics.PanelResult, intervals: dict[str, stats.Interval]) -> None:
    found, expected = stats.bins_interval(result.bins, resamples=2000), intervals["ece"]
    assert found.value == result.ece
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.1 * (expected.high - expected.low))


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_panel_is_tested_as_its_samples_are(calibrated: bool) -> None:
    logits, target = overconfident(900, seed=1)
    logits = logits / 1.5 if calibrated else logits
    found = stats.panel_test(panel_of(logits, target), resamples=500)
    expected = stats.calibration_test(logits, target, resamples=500)
    assert found.statistic == pytest.approx(expected.statistic, abs=5e-4)
    assert found.p_value == pytest.approx(expected.p_value, abs=0.1)
    assert (found.p_value > 0.05) == calibrated


# Comparison of outcomes


def test_outcomes_are_compared_as_logits_are() -> None:
    logits, target = overconfident(600)
    models = logits, logits / 1.5 + 0.3 * torch.randn(logits.shape, dtype=torch.float64)
    outcomes = [top_label(for_measuring(z, target)) for z in models]
    found = stats.compare_outcomes(*outcomes, num_bins=10, resamples=400)
    assert found.keys() == {"ece", "accuracy"}
    for key, options in (("ece", {"num_bins": 10}), ("accuracy", {})):
        expected = stats.compare(key, *models, target, resamples=400, **options)
        ends = [(c.a, c.b, c.difference, c.low, c.high) for c in (found[key], expected)]
        assert ends[0] == pytest.approx(ends[1], abs=0.1 * (expected.high - expected.low))
        assert found[key].p_value == pytest.approx(expected.p_value, abs=0.05)


def test_outcomes_of_images_are_drawn_together() -> None:
    """Twelve images whose pixels are all alike say as much as twelve samples."""
    logits, target = overconfident(12)
    target = target.where(target != -100, 0)
    images = torch.arange(12).repeat_interleave(50)
    outcomes = [top_label(for_measuring(z[images], target[images])) for z in (logits, logits / 1.5)]
    alone = stats.compare_outcomes(*outcomes, resamples=300)["ece"]
    together = stats.compare_outcomes(*outcomes, images=images, resamples=300)["ece"]
    assert together.difference == alone.difference
    assert together.high - together.low > 2 * (alone.high - alone.low)


def test_means_are_compared_by_their_standard_error() -> None:
    random = np.random.default_rng(0)
    a, b = random.random(80), random.random(80)
    found = stats.compare_means(torch.from_numpy(a), torch.from_numpy(b), level=0.9)
    half = 1.6448536 * (a - b).std(ddof=1) / math.sqrt(80)
    mean = (a - b).mean()
    assert (found.a, found.b, found.difference) == pytest.approx((a.mean(), b.mean(), mean))
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half))
    z = mean / ((a - b).std(ddof=1) / math.sqrt(80))
    assert found.p_value == pytest.approx(math.erfc(abs(z) / math.sqrt(2)))
    same = stats.compare_means(torch.from_numpy(a), torch.from_numpy(a))
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)
