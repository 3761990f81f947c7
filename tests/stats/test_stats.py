"""Intervals, comparisons and tests: do they keep what they promise, on data whose truth is known?"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant import functional as cal, stats
from calibrant.metrics import FUNCTIONS
from calibrant.stats import resampling

#: Metrics that need no softmax for each resample.
ROUTES = [name for name in FUNCTIONS if resampling.resolve(name, 2, 0.95)[1] is not None]


def sample(n: int, random: np.random.Generator, gap: float = 0.0) -> tuple[Tensor, Tensor]:
    """Binary predictions with known truth: right with probability confidence - gap."""
    confidence = 0.5 + 0.5 * random.beta(2, 1, size=n)
    correct = random.random(n) < np.clip(confidence - gap, 0, 1)
    probs = torch.from_numpy(np.stack([confidence, 1 - confidence], axis=1))
    return cal.from_probs(probs), torch.from_numpy(np.where(correct, 0, 1))


def overconfident(n: int, k: int = 5, seed: int = 0, sharpness: float = 1.5) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=random, dtype=torch.float64)
    target = torch.multinomial(logits.softmax(1), 1, generator=random).squeeze(1)
    return sharpness * logits, target


# Intervals


def test_debiased_intervals_cover_perfect_calibration() -> None:
    """95 % intervals of the debiased ECE of a calibrated sampler contain its true error, 0, in 90 to 99 % of cases."""
    for norm, trials in ((1, 120), (2, 60)):
        random = np.random.default_rng(norm)
        covered = 0
        for seed in range(trials):
            interval = stats.bootstrap("debiased_ece", *sample(800, random), resamples=200, seed=seed, norm=norm)
            assert interval.method == "test inversion"
            covered += interval.low <= 0 <= interval.high
        assert 0.90 <= covered / trials <= 0.99


@pytest.mark.parametrize("gap", [0.05, 0.15])
def test_debiased_intervals_cover_a_known_error(gap: float) -> None:
    random = np.random.default_rng(7)
    confidence = 0.5 + 0.5 * random.beta(2, 1, size=10**6)
    truth = float(np.minimum(gap, confidence).mean())
    covered = 0
    for seed in range(80):
        interval = stats.bootstrap("debiased_ece", *sample(800, random, gap), resamples=200, seed=seed)
        covered += interval.low <= truth <= interval.high
    assert 0.86 <= covered / 80 <= 1


@pytest.mark.parametrize("metric", ["accuracy", "nll", "brier_score", "aurc"])
def test_intervals_of_means_cover_the_truth(metric: str) -> None:
    random = np.random.default_rng(3)
    truth = float(getattr(cal, metric)(*sample(400_000, random)))
    covered = 0
    for seed in range(150):
        interval = stats.bootstrap(metric, *sample(500, random), resamples=200, seed=seed)
        covered += interval.low <= truth <= interval.high
    assert 0.89 <= covered / 150 <= 0.99


def test_only_these_are_measured_anew_on_each_resample() -> None:
    assert set(FUNCTIONS) - set(ROUTES) == {"classwise_ece", "mean_iou"}


@pytest.mark.parametrize("metric", ROUTES)
def test_shortcuts_give_the_intervals_of_plain_resampling(metric: str) -> None:
    """Drawing counts instead of samples: the same distribution."""
    logits, target = overconfident(400)
    target[::9] = -100
    function = getattr(cal, metric)
    options = {"k": 2} if metric == "top_k_accuracy" else {}
    fast = stats.bootstrap(metric, logits, target, resamples=2000, **options)
    resamples = 60 if metric == "smooth_ece" else 600  # one by one: slow
    plain = stats.bootstrap(partial(function), logits, target, resamples=resamples, **options)
    assert fast.value == plain.value == float(function(logits, target, **options))
    assert fast.low <= fast.value <= fast.high
    width = plain.high - plain.low
    slack = 0.6 if fast.method == "test inversion" or metric in ("mce", "smooth_ece") else 0.2
    assert fast.low == pytest.approx(max(plain.low, 0), abs=slack * width)
    assert fast.high == pytest.approx(plain.high, abs=slack * width)


def test_interval_of_accuracy_is_the_binomial_one() -> None:
    logits, target = overconfident(2000)
    interval = stats.bootstrap(cal.accuracy, logits, target, resamples=4000)
    deviation = math.sqrt(interval.value * (1 - interval.value) / 2000)
    assert interval.low == pytest.approx(interval.value - 1.96 * deviation, abs=0.1 * deviation)
    assert interval.high == pytest.approx(interval.value + 1.96 * deviation, abs=0.1 * deviation)


def test_level_seed_and_options() -> None:
    logits, target = overconfident(500)
    wide, narrow = (stats.bootstrap("ece", logits, target, level=level) for level in (0.99, 0.5))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)
    again = stats.bootstrap("ece", logits, target, level=0.99)
    assert again == wide
    assert stats.bootstrap("ece", logits, target, level=0.99, seed=1) != wide
    other = stats.bootstrap("ece", logits, target, num_bins=5, norm=2)
    assert other.value == float(cal.ece(logits, target, num_bins=5, norm=2))
    assert other.to_dict()["value"] == other.value


def test_any_function_will_do() -> None:
    logits, target = overconfident(200)
    interval = stats.bootstrap(lambda x, y, ignore_index: x[y != ignore_index].amax(1).mean(), logits, target, resamples=100)
    assert interval.low < interval.value < interval.high
    classwise = stats.bootstrap("classwise_ece", logits, target, resamples=50, num_bins=10)
    assert classwise.low < classwise.value == float(cal.classwise_ece(logits, target, num_bins=10)) < classwise.high


@pytest.mark.parametrize("metric", ["ece", "adaptive_ece", "debiased_ece", "nll", "mean_iou"])
def test_images_are_resampled_not_pixels(metric: str) -> None:
    """Twelve images whose pixels are all alike say as much as twelve samples."""
    logits, target = overconfident(12)
    dense, labels = logits[..., None].expand(-1, -1, 50), target[:, None].expand(-1, 50).clone()
    labels[3] = 255
    labels[4, :25] = 255
    few = stats.bootstrap(metric, dense, labels, ignore_index=255, resamples=300)
    samples = dense.movedim(1, -1).reshape(-1, 5)
    many = stats.bootstrap(metric, samples, labels.reshape(-1), ignore_index=255, resamples=300)
    assert few.value == pytest.approx(many.value)
    assert few.high - few.low > 2 * (many.high - many.low)


BAD = [
    ({"metric": "ECE"}, ValueError, "metric must be one of accuracy, .*ece.*, got 'ECE'"),
    ({"metric": "np"}, ValueError, "metric must be one of .*, got 'np'"),
    ({"resamples": 1}, ValueError, "resamples must be at least 2"),
    ({"level": 1.5}, ValueError, "level"),
    ({"target": torch.full((50,), -100)}, ValueError, "nothing to measure"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_bad_input_is_refused(change: dict, error: type[Exception], message: str) -> None:
    logits, target = overconfident(50)
    with pytest.raises(error, match=message):
        stats.bootstrap(**{"metric": "ece", "logits": logits, "target": target, **change})


# Comparison


@pytest.mark.parametrize("metric", ["ece", "adaptive_ece", "nll", "accuracy", "classwise_ece"])
def test_compare(metric: str) -> None:
    logits, target = overconfident(600)
    calibrated = logits / 1.5
    result = stats.compare(metric, logits, calibrated, target, resamples=200)
    function = getattr(cal, metric)
    assert result.a == float(function(logits, target))
    assert result.b == float(function(calibrated, target))
    assert result.difference == result.a - result.b
    if metric == "accuracy":  # temperature does not change it
        assert (result.low, result.high, result.p_value) == (0, 0, 1)
    else:
        assert 0 < result.low <= result.difference <= result.high
        assert result.p_value < 0.05
    backwards = stats.compare(metric, calibrated, logits, target, resamples=200)
    assert backwards.difference == -result.difference
    assert result.to_dict()["p_value"] == result.p_value


def test_pairing_makes_the_interval_narrower() -> None:
    logits, target = overconfident(500)
    almost = logits + 0.05 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    paired = stats.compare("nll", logits, almost, target)
    alone = [stats.bootstrap("nll", x, target) for x in (logits, almost)]
    unpaired = math.hypot(*(interval.high - interval.low for interval in alone))
    assert paired.high - paired.low < unpaired / 3


@pytest.mark.parametrize("metric", ["ece", "nll"])
def test_two_equally_good_models_are_rarely_told_apart(metric: str) -> None:
    random = np.random.default_rng(5)
    rejected = 0
    for seed in range(200):
        confidence = 0.5 + 0.5 * random.beta(2, 1, size=(2, 300))
        truth = confidence.mean(axis=0)
        target = torch.from_numpy(np.where(random.random(300) < truth, 0, 1))
        models = [cal.from_probs(torch.from_numpy(np.stack([c, 1 - c], axis=1))) for c in confidence]
        rejected += stats.compare(metric, *models, target, resamples=200, seed=seed).p_value <= 0.05
    assert 0.005 <= rejected / 200 <= 0.10


def test_compare_dense() -> None:
    logits, target = overconfident(8 * 40)
    dense, labels = logits.view(8, 40, 5).movedim(-1, 1), target.view(8, 40)
    for metric in ("ece", "nll", "mean_iou"):
        result = stats.compare(metric, dense, dense / 1.5, labels, resamples=100)
        assert result.low <= result.difference <= result.high


# Test of calibration


def test_the_interval_of_an_auroc_is_delongs() -> None:
    """Against loops over all pairs, and against resampling both samples."""
    random = torch.Generator().manual_seed(0)
    known, unknown = (shift + torch.randn(n, 2, generator=random) for shift, n in ((torch.tensor([2.0, 0]), 60), (0, 40)))
    found = stats.auroc_interval(known, unknown, score="max_prob", level=0.9)
    doubt = [(1 - z.double().softmax(1).amax(1)).tolist() for z in (known, unknown)]
    wins = np.array([[(u > k) + 0.5 * (u == k) for k in doubt[0]] for u in doubt[1]])
    assert found.value == pytest.approx(wins.mean())
    spread = wins.mean(axis=1).var(ddof=1) / 40 + wins.mean(axis=0).var(ddof=1) / 60
    assert found.high - found.low == pytest.approx(2 * 1.6448536 * spread**0.5)
    draw = np.random.default_rng(0)
    areas = [wins[draw.integers(40, size=40)][:, draw.integers(60, size=60)].mean() for _ in range(2000)]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(areas, [0.05, 0.95])), abs=0.02)


def test_size_of_the_calibration_test() -> None:
    """A calibrated network is rejected at the 5 % level in about 5 % of cases."""
    random = np.random.default_rng(11)
    p_values = [stats.calibration_test(*sample(400, random), resamples=199, seed=seed).p_value for seed in range(400)]
    assert 0.025 <= np.mean(np.array(p_values) <= 0.05) <= 0.085
    assert 0.43 <= np.mean(p_values) <= 0.57


def test_power_of_the_calibration_test() -> None:
    random = np.random.default_rng(12)
    rejected = [stats.calibration_test(*sample(1000, random, 0.1), resamples=199).p_value <= 0.05 for _ in range(30)]
    assert np.mean(rejected) > 0.95


def test_calibration_test_is_repeatable_and_agrees_with_the_interval() -> None:
    random = np.random.default_rng(13)
    logits, target = sample(500, random)
    assert stats.calibration_test(logits, target) == stats.calibration_test(logits, target)
    result = stats.calibration_test(*overconfident(3000))
    assert result.p_value < 0.01
    assert result.to_dict()["num_bins"] == 15
    assert stats.bootstrap("debiased_ece", *overconfident(3000), norm=2).low > 0
