"""The same statistics where only what a panel keeps is left of the logits."""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from calibrant import tensors
from calibrant.binning import BinStatistics, bin_index, equal_width_edges
from calibrant.metrics import PanelResult, calibration
from calibrant.metrics import cells as on_cells
from calibrant.metrics.cells import Cells
from calibrant.outcomes import Outcomes, top_label
from calibrant.stats.resampling import (
    CELLS,
    Comparison,
    Interval,
    around,
    comparison,
    counts_on_bins,
    draw_together,
    invert,
    multinomial,
)
from calibrant.stats.testing import CalibrationTest, consistency_test, wilson

if TYPE_CHECKING:
    from collections.abc import Callable


def panel_intervals(
    result: PanelResult, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Intervals of a panel's measures, of independent samples (not of pixels), whatever their number.

    Calibration errors as by :func:`calibrant.stats.bootstrap`, from the panel's bins and cells; the accuracy by Wilson's
    interval, NLL and Brier score by their standard errors. Classwise ECE has none.
    """
    if not result.samples:
        raise ValueError("the panel is empty: there is nothing to give intervals of")
    random = np.random.default_rng(seed)
    found: dict[str, Interval] = {}

    def add(name: str, low: float, high: float, method: str, top: float = 1.0) -> None:
        ends = max(low, 0.0), min(high, top)
        found[name] = Interval(getattr(result, name), *ends, level, resamples if method != "normal" else 0, method)

    right = torch.tensor(round(result.accuracy * result.samples))
    low, high = wilson(right, torch.tensor(result.samples), level)
    add("accuracy", float(low), float(high), "wilson")
    z = math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
    for name, error, top in (("nll", result.nll_error, math.inf), ("brier", result.brier_error, 2.0)):
        value = getattr(result, name)
        add(name, value - z * error, value + z * error, "normal", top)

    bins = BinStatistics(*(part.cpu().double() for part in result.bins))
    drawn = _resampled(bins, random, resamples)
    on_bins: dict[str, Callable[[BinStatistics], Tensor]] = {
        "ece": on_cells.calibration_error,
        "overconfidence": calibration.overconfident_part,
        "underconfidence": calibration.underconfident_part,
        "mce": calibration.maximum_error,
    }
    for name, measure in on_bins.items():
        add(name, *around(getattr(result, name), measure(drawn).numpy(), level), "bootstrap")

    cells = on_cells.merged(Cells(*(part.cpu().double() for part in result.cells)), CELLS)
    new = _resampled(BinStatistics(cells.counts, cells.counts * cells.confidence, cells.correct), random, resamples)
    drawn_cells = Cells(cells.confidence, new.counts, new.correct)
    on_order: dict[str, Callable[[Cells], Tensor]] = {
        "adaptive_ece": lambda c: on_cells.calibration_error(on_cells.bins_of_equal_mass(c, result.num_bins)),
        "sweep_ece": lambda c: on_cells.sweep(c)[0],
        "smooth_ece": lambda c: on_cells.smooth_error(c, points=2**9),
        "aurc": on_cells.area_under_risk_coverage,
    }
    for name, of_cells in on_order.items():
        add(name, *around(getattr(result, name), of_cells(drawn_cells).numpy(), level), "bootstrap")
    of_equal_mass = on_cells.bins_of_equal_mass(cells, result.num_bins, split=True)
    add("debiased_ece", *invert(of_equal_mass, random, resamples, level), "test inversion")
    return found


def bins_interval(bins: BinStatistics, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """Interval of the ECE of bins, such as a panel's or those of several runs together."""
    bins = BinStatistics(*(part.cpu().double() for part in bins))
    value = float(on_cells.calibration_error(bins))
    draws = on_cells.calibration_error(_resampled(bins, np.random.default_rng(seed), resamples)).numpy()
    low, high = around(value, draws, level)
    return Interval(value, max(low, 0.0), min(high, 1.0), level, resamples, "bootstrap")


def panel_test(result: PanelResult, *, resamples: int = 1000, seed: int = 0) -> CalibrationTest:
    """:func:`calibrant.stats.calibration_test` of a panel."""
    cells = Cells(*(part.cpu().double() for part in result.cells))
    return consistency_test(cells, num_bins=result.num_bins, resamples=resamples, seed=seed)


def compare_outcomes(
    a: Outcomes,
    b: Outcomes,
    *,
    images: Tensor | None = None,
    num_bins: int = 15,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Comparison]:
    """:func:`calibrant.stats.compare` of ECE and accuracy, from the outcomes of the same samples under two models.

    With ``images``, the number of the image that each pixel belongs to, whole images are resampled.
    """
    measures: dict[str, Callable[[BinStatistics], Tensor]] = {
        "ece": on_cells.calibration_error,
        "accuracy": lambda bins: bins.correct.sum(dim=-1) / bins.counts.sum(dim=-1),
    }
    result = {}
    for name, measure in measures.items():
        routes = [counts_on_bins(outcomes, measure, num_bins, images) for outcomes in (a, b)]
        values = [float(measure(calibration.width_bins(outcomes, num_bins))) for outcomes in (a, b)]
        draws = draw_together(routes, np.random.default_rng(seed), resamples, progress=False)
        result[name] = comparison(values, draws, level)
    return result


def compare_means(a: Tensor, b: Tensor, *, level: float = 0.95) -> Comparison:
    """Difference of the means of two scores of the same samples, such as their NLL, by the paired standard error."""
    difference = a.double() - b.double()
    size = len(difference)
    mean, error = float(difference.mean()), float(difference.std()) / math.sqrt(size) if size > 1 else math.inf
    z = math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
    p_value = math.erfc(abs(mean) / error / math.sqrt(2)) if error > 0 else float(mean == 0)
    values = float(a.double().mean()), float(b.double().mean())
    return Comparison(*values, mean, mean - z * error, mean + z * error, p_value, level, 0)


def _resampled(bins: BinStatistics, random: np.random.Generator, resamples: int) -> BinStatistics:
    """Right and wrong predictions of each bin, drawn anew; their mean confidence is taken to be the bin's."""
    kinds = torch.stack([bins.counts - bins.correct, bins.correct], dim=-1).round().long()
    drawn = multinomial(kinds.flatten().numpy(), random, resamples).view(resamples, -1, 2)
    counts = drawn.sum(dim=-1)
    mean = bins.confidence / bins.counts.clamp(min=1)
    return BinStatistics(counts, counts * mean, drawn[..., 1])


class ImageBins:
    """Sums of each image, to resample whole images: pixels of one image are not independent.

    Args:
        num_bins: Bins of equal width.
    """

    def __init__(self, num_bins: int = 15) -> None:
        self.num_bins = num_bins
        self.tables: list[Tensor] = []
        self.areas: list[Tensor] = []

    def update(self, logits: Tensor, target: Tensor, ignore_index: int = -100) -> None:
        """Add images ``(n, K, *spatial)``; those without a label do not count."""
        batch = tensors.check(logits, target, ignore_index)
        confidence, correct = top_label(batch)
        image, (size, classes) = batch.kept.nonzero()[:, 0], logits.shape[:2]
        cell = image * self.num_bins
        cell = cell + bin_index(confidence.double(), equal_width_edges(self.num_bins).to(confidence.device))
        columns = [torch.ones_like(confidence), confidence, correct]
        shape = (size, self.num_bins)
        sums = [
            confidence.new_zeros(size * self.num_bins, dtype=torch.float64).index_add_(0, cell, c.double()) for c in columns
        ]
        label, predicted = batch.target[batch.kept], batch.logits.argmax(dim=1)[batch.kept]
        right = label == predicted
        pairs = [(label[right], image[right]), (label, image), (predicted, image)]
        areas = [torch.bincount(own * classes + k, minlength=size * classes).view(size, classes) for k, own in pairs]
        kept = sums[0].view(shape).sum(dim=1) > 0
        self.tables.append(torch.stack(sums).view(3, *shape)[:, kept].cpu())
        self.areas.append(torch.stack(areas)[:, kept].double().cpu())

    def intervals(self, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> dict[str, Interval]:
        """Accuracy, mean IoU and ECE of all pixels, and the mean over images of their own ECE (``image_ece``)."""
        table, areas = torch.cat(self.tables, dim=1), torch.cat(self.areas, dim=1)
        own = on_cells.calibration_error(BinStatistics(*table))
        size = table.shape[1]
        weights = multinomial(np.ones(size, dtype=np.int64), np.random.default_rng(seed), resamples)
        everything = torch.cat([torch.ones(1, size, dtype=torch.float64), weights])
        bins = BinStatistics(*(everything @ part for part in table))
        intersection, labelled, predicted = (everything @ part for part in areas)
        union = labelled + predicted - intersection
        found = {
            "accuracy": bins.correct.sum(dim=1) / bins.counts.sum(dim=1),
            "mean_iou": (intersection / union.clamp(min=1)).sum(dim=1) / (union > 0).sum(dim=1),
            "ece": on_cells.calibration_error(bins),
            "image_ece": everything @ own / size,
        }
        intervals = {}
        for name, values in found.items():
            value = float(values[0])
            low, high = around(value, values[1:].numpy(), level) if size > 1 else (0.0, 1.0)  # one image says nothing
            intervals[name] = Interval(value, max(low, 0.0), min(high, 1.0), level, resamples, "bootstrap of images")
        return intervals
