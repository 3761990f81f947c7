"""Comparison of two methods that were each trained several times."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from calibrant.stats.comparison import ROUNDING, Comparison
from calibrant.stats.resampling import Counts, Means
from calibrant.stats.student import quantile, two_sided_p

#: Degrees of freedom beyond which Student's t is normal.
MANY = 1e6


def compare_runs(a: Sequence[float], b: Sequence[float], *, shared: float = 0.0, level: float = 0.95) -> Comparison:
    r"""Compare a measure of two methods over runs, paired by seed: runs are the unit, not samples.

    With the differences :math:`d_s` of n seeds, the variance of their mean is :math:`s_d^2 / n`, covering everything that
    differs from run to run, plus ``shared``, the variance due to the test set, which all runs share and which no number of
    seeds averages out. The mean is compared with Student's t with Satterthwaite's degrees of freedom,
    :math:`(n - 1) (1 + \mathrm{shared} / (s_d^2 / n))^2`.

    Args:
        a: Values of the first method, one for each seed.
        b: Values of the second, for the same seeds in the same order.
        shared: Variance of the mean difference over test sets; see :func:`shared_variance`.
        level: Confidence level.
    """
    differences = [x - y for x, y in zip(a, b, strict=True)]
    size, mean = len(differences), statistics.mean(differences)
    values = statistics.mean(a), statistics.mean(b), mean
    if size < 2:
        raise ValueError("one run of each method says nothing about the methods: compare their samples instead")
    between = statistics.variance(differences) / size
    variance = between + shared
    if abs(mean) <= ROUNDING or variance == 0:
        half = quantile(level, size - 1) * math.sqrt(variance)
        return Comparison(*values, mean - half, mean + half, float(abs(mean) <= ROUNDING), level)
    freedom = min((size - 1) * (variance / between) ** 2, MANY) if between > 0 else MANY
    half = quantile(level, freedom) * math.sqrt(variance)
    return Comparison(*values, mean - half, mean + half, two_sided_p(mean / math.sqrt(variance), freedom), level)


def shared_variance(
    a: Sequence[Counts | Means], b: Sequence[Counts | Means], *, resamples: int = 200, seed: int = 0
) -> float:
    """Variance over test sets of the mean difference between the runs of two methods.

    The test samples (for dense predictions, the images) are resampled, the same ones for all runs.

    Args:
        a: Runs of the first method, all on the same samples in the same order.
        b: Runs of the second, on the same samples.
        resamples: Number of resamples.
        seed: Seed of the resampling.
    """
    # Each gets a generator with the same seed, hence the same resamples.
    draws = [source.draw_samples(np.random.default_rng(seed), resamples) for source in (*a, *b)]
    first, second = np.mean(draws[: len(a)], axis=0), np.mean(draws[len(a) :], axis=0)
    return float(np.var(first - second, ddof=1))
