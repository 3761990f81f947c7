"""Comparison of methods over their runs, against SciPy and by simulation."""

import numpy as np
import pytest
import scipy.stats
import torch

from calibrant import functional as cal, stats
from calibrant.inputs import for_measuring
from calibrant.metrics.table import MEASURES
from calibrant.stats.resampling import resampled
from calibrant.stats.student import quantile, two_sided_p


@pytest.mark.parametrize("freedom", [1, 2, 2.5, 4, 9, 30, 1000])
def test_students_t_is_that_of_scipy(freedom: float) -> None:
    for t in (1e-3, 0.3, 1.0, 2.5, 12.0, 300.0):
        expected = 2 * scipy.stats.t.sf(t, freedom)
        assert two_sided_p(t, freedom) == pytest.approx(expected, rel=1e-9, abs=1e-300)
        assert two_sided_p(-t, freedom) == two_sided_p(t, freedom)
    for level in (0.5, 0.9, 0.95, 0.999):
        assert quantile(level, freedom) == pytest.approx(scipy.stats.t.ppf((1 + level) / 2, freedom), rel=1e-9)


def test_without_a_shared_test_set_it_is_the_paired_t_test() -> None:
    a, b = [0.05, 0.07, 0.06, 0.04], [0.03, 0.05, 0.055, 0.02]
    found, expected = stats.compare_runs(a, b), scipy.stats.ttest_rel(a, b)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert found.difference == pytest.approx(np.mean(a) - np.mean(b))


def test_a_shared_test_set_widens_the_interval() -> None:
    a, b = [0.05, 0.07, 0.06], [0.03, 0.05, 0.055]
    alone, shared = stats.compare_runs(a, b), stats.compare_runs(a, b, shared=1e-4)
    variance = np.var(np.subtract(a, b), ddof=1) / 3
    freedom = 2 * (1 + 1e-4 / variance) ** 2
    half = scipy.stats.t.ppf(0.975, freedom) * (variance + 1e-4) ** 0.5
    assert (shared.high - shared.low) / 2 == pytest.approx(half)
    assert shared.p_value == pytest.approx(2 * scipy.stats.t.sf(shared.difference / (variance + 1e-4) ** 0.5, freedom))
    assert alone.difference == shared.difference


def test_rounding_errors_are_no_difference() -> None:
    found = stats.compare_runs([0.1, 0.2, 0.3], [0.1 - 1e-7, 0.2 - 1e-7, 0.3 - 1e-7])
    assert found.p_value == 1
    with pytest.raises(ValueError, match="one run"):
        stats.compare_runs([0.1], [0.2])
    logits = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = logits.argmax(1)
    nearly = stats.compare("ece", logits, logits * (1 + 1e-7), target)
    assert 0 < abs(nearly.difference) < 1e-6
    assert nearly.p_value == 1
    score = torch.rand(100, dtype=torch.float64)
    assert stats.compare_means(score, score + 1e-7).p_value == 1


@pytest.mark.parametrize("key", ["ece", "accuracy", "nll"])
def test_the_variance_over_test_sets_is_that_of_resampled_samples(key: str) -> None:
    torch.manual_seed(3)
    target = torch.randint(4, (300,))
    signal = torch.nn.functional.one_hot(target, 4) * 2.0
    runs = [[signal + 1.5 * torch.randn(300, 4) for _ in range(3)] for _ in range(2)]
    sources = [[resampled(MEASURES[key], for_measuring(z, target), {}) for z in own] for own in runs]
    found = stats.shared_variance(*sources, resamples=600)
    random, draws = np.random.default_rng(9), []
    for _ in range(600):
        index = torch.from_numpy(random.integers(300, size=300))
        means = [np.mean([float(getattr(cal, key)(z[index], target[index])) for z in own]) for own in runs]
        draws.append(means[0] - means[1])
    assert found == pytest.approx(np.var(draws, ddof=1), rel=0.2)


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("split", ["shared", "own"])
def test_the_level_is_kept(seeds: int, split: str) -> None:
    """Two equal methods whose runs scatter, one test set or one for each seed: p <= 0.05 in 5 % of the studies."""
    random = np.random.default_rng(0)
    trials, run, test = 1500, 0.01, 0.008
    hits = 0
    for _ in range(trials):
        of_set = random.normal(0, test, size=1 if split == "shared" else seeds)  # of the difference
        differences = random.normal(0, run * 2**0.5, seeds) + of_set
        shared = test**2 if split == "shared" else 0.0
        hits += stats.compare_runs(list(differences), [0.0] * seeds, shared=shared).p_value <= 0.05
    assert 0.03 <= hits / trials <= 0.07


def test_probabilities_and_arrays_can_be_compared() -> None:
    random = np.random.default_rng(4)
    a, b, target = random.normal(size=(200, 4)), random.normal(size=(200, 4)), random.integers(4, size=200)
    expected = stats.compare("ece", torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(target))
    probs = [np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (a, b)]
    found = stats.compare("ece", *probs, target, probs=True)
    assert (found.a, found.b, found.low, found.high) == pytest.approx((expected.a, expected.b, expected.low, expected.high))
    with pytest.raises(ValueError, match="probs=True"):
        stats.compare("ece", *probs, target)
    assert stats.compare_means(a[:, 0], b[:, 0]).difference == pytest.approx(a[:, 0].mean() - b[:, 0].mean())
