"""Interval of the true calibration error, by inverting a test."""

import numpy as np
import torch

from calibrant.binning import BinStatistics
from calibrant.metrics.estimators import debiased_estimate


def invert(
    bins: BinStatistics, random: np.random.Generator, resamples: int, level: float, norm: int = 1
) -> tuple[float, float]:
    """Interval of the true error: the scales of the measured gaps under which the measured estimate is plausible."""
    measured = float(debiased_estimate(bins, norm=norm))
    confidence, gaps, weights = (x.numpy() for x in (bins.means()[0], bins.gaps(), bins.weights()))
    total, seed = int(bins.counts.sum()), random.integers(2**63)

    def accuracy(scale: float) -> np.ndarray:
        return np.clip(confidence - scale * gaps, 0, 1)

    def share_below(scale: float) -> float:
        """How often redrawn outcomes give at most the measured estimate; with the same seed, monotonic in the scale."""
        draw = np.random.default_rng(seed)
        counts = draw.multinomial(total, weights / weights.sum(), size=resamples)
        drawn = [counts, counts * confidence, draw.binomial(counts, accuracy(scale))]
        drawn_bins = BinStatistics(*(torch.from_numpy(x).double() for x in drawn))
        return float((debiased_estimate(drawn_bins, norm=norm) <= measured).double().mean())

    def error(share: float) -> float:
        low, high = 0.0, 1.0
        while share_below(high) > share and high < 2**10:
            low, high = high, 2 * high
        for _ in range(10):
            middle = (low + high) / 2
            low, high = (middle, high) if share_below(middle) > share else (low, middle)
        return float((weights * np.abs(confidence - accuracy((low + high) / 2)) ** norm).sum() ** (1 / norm))

    tail = (1 - level) / 2
    calibrated = share_below(0.0)
    return (0.0 if calibrated < 1 - tail else error(1 - tail), 0.0 if calibrated <= tail else error(tail))
