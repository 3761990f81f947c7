"""The same statistics from a panel, when the logits are gone."""

from typing import Any

import numpy as np
import torch

from calibrant.binning import BinStatistics
from calibrant.metrics.estimators import (
    SortedOutcomes,
    calibration_error,
    debiased_bins,
    debiased_error,
    merge_neighbours,
)
from calibrant.metrics.panel import PanelResult
from calibrant.metrics.table import MEASURES, Measure
from calibrant.stats.consistency import CalibrationTest, consistency_test
from calibrant.stats.intervals import Interval, around, normal_quantile, wilson
from calibrant.stats.inversion import INVERSION, invert
from calibrant.stats.resampling import ENTRIES, RESAMPLED, multinomial


def panel_intervals(
    result: PanelResult, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Intervals of a panel's measures, for any number of independent samples (not pixels).

    Calibration errors as in :func:`calibrant.stats.bootstrap`, from the panel's bins and sorted outcomes; accuracy by
    Wilson's interval, NLL and Brier score by their standard errors.

    Example:
        >>> from calibrant.metrics import Panel
        >>> from calibrant.stats import panel_intervals
        >>> panel = Panel(num_classes=2)
        >>> panel.update([[4.0, 0.0]] * 80, [0] * 60 + [1] * 20)
        >>> panel_intervals(panel.compute())["accuracy"]
        0.750 [0.645, 0.832]
    """
    if not result.samples:
        raise ValueError("the panel is empty: there is nothing to compute intervals for")
    random = np.random.default_rng(seed)
    bins = result.bins.double()
    ordered = merge_neighbours(result.sorted.cpu(), ENTRIES)
    drawn: dict[str, Any] = {
        "bins": _resampled(bins, random, resamples),
        "sorted": _redrawn(ordered, random, resamples),
    }
    drawn["accepted"] = drawn["sorted"]
    if result.task != "multiclass":
        drawn["accepted"] = _redrawn(merge_neighbours(result.accepted.cpu(), ENTRIES), random, resamples)

    def ends(record: Measure) -> tuple[float, float, str]:
        value = result[record.key]
        if record.interval == "wilson":
            right, samples = result.predicted.correct.sum(), result.predicted.counts.sum()
            low, high = wilson(right, samples, level=level)
            return float(low), float(high), "Wilson"
        if record.interval == "normal":
            half = normal_quantile(level) * result.standard_error(record)
            return value - half, value + half, "normal"
        if record.interval == "inversion":
            found = invert(debiased_bins(ordered, num_bins=result.num_bins), random, resamples, level)
            return *found, INVERSION
        draws = record.evaluate(drawn[record.on], result.num_bins, **record.draws).numpy()
        return *around(value, draws, level), "bootstrap"

    intervals = {}
    for record in MEASURES.values():
        if record.interval is None or record.on not in RESAMPLED:
            continue
        low, high, method = ends(record)
        number = resamples if method in ("bootstrap", INVERSION) else 0
        intervals[record.key] = Interval(result[record.key], max(low, 0.0), min(high, record.most), level, number, method)
    return intervals


def bins_interval(bins: BinStatistics, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """Interval of the ECE of bins as it would vary from test set to test set; see :func:`true_error_interval`.

    Example:
        >>> from calibrant.metrics import Panel
        >>> from calibrant.stats import bins_interval
        >>> panel = Panel(num_classes=2)
        >>> panel.update([[4.0, 0.0]] * 80, [0] * 60 + [1] * 20)
        >>> round(bins_interval(panel.compute().bins).value, 3)
        0.232
    """
    bins = bins.double()
    value = float(calibration_error(bins))
    draws = calibration_error(_resampled(bins, np.random.default_rng(seed), resamples)).numpy()
    low, high = around(value, draws, level)
    return Interval(value, max(low, 0.0), min(high, 1.0), level, resamples, "bootstrap")


def true_error_interval(bins: BinStatistics, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """The debiased error of bins of independent samples, and the interval of the true error, by inverting a test.

    Unlike the ECE and its own interval, which are biased upwards on small samples, it covers the error that the bins would
    have with unlimited samples.

    Example:
        >>> from calibrant.metrics import Panel
        >>> from calibrant.stats import true_error_interval
        >>> panel = Panel(num_classes=2)
        >>> panel.update([[4.0, 0.0]] * 80, [0] * 60 + [1] * 20)
        >>> round(true_error_interval(panel.compute().bins).value, 3)
        0.232
    """
    bins = bins.double()
    low, high = invert(bins, np.random.default_rng(seed), resamples, level)
    return Interval(float(debiased_error(bins)), low, high, level, resamples, INVERSION)


def panel_test(result: PanelResult, *, resamples: int = 1000, seed: int = 0) -> CalibrationTest:
    """:func:`calibrant.stats.calibration_test` of a panel.

    Example:
        >>> from calibrant.metrics import Panel
        >>> from calibrant.stats import panel_test
        >>> panel = Panel(num_classes=2)
        >>> panel.update([[4.0, 0.0]] * 80, [0] * 60 + [1] * 20)
        >>> round(panel_test(panel.compute()).p_value, 3)
        0.001
    """
    return consistency_test(result.sorted, num_bins=result.num_bins, resamples=resamples, seed=seed)


def _redrawn(ordered: SortedOutcomes, random: np.random.Generator, resamples: int) -> SortedOutcomes:
    entries = BinStatistics(ordered.counts, ordered.counts * ordered.confidence, ordered.correct)
    drawn = _resampled(entries, random, resamples)
    return SortedOutcomes(ordered.confidence, drawn.counts, drawn.correct)


def _resampled(bins: BinStatistics, random: np.random.Generator, resamples: int) -> BinStatistics:
    """Redrawn correct and wrong predictions of each bin; their mean confidence is assumed to be the bin's."""
    kinds = torch.stack([bins.counts - bins.correct, bins.correct], dim=-1).round().long()
    drawn = multinomial(kinds.flatten().numpy(), random, resamples).view(resamples, -1, 2)
    counts = drawn.sum(dim=-1)
    mean = bins.confidence / bins.counts.clamp(min=1)
    return BinStatistics(counts, counts * mean, drawn[..., 1])
