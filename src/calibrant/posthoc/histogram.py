"""Histogram binning."""

from typing import Literal

import torch
from torch import Tensor

from calibrant.binning import bin_statistics
from calibrant.checks import one_of, whole
from calibrant.posthoc.piecewise import ClassMaps, steps


class HistogramBinning(ClassMaps):
    """Replace each probability by the frequency of the class in its bin (Zadrozny and Elkan, ICML 2001).

    One class against the rest, normalised. An empty bin gives its midpoint.

    Args:
        num_bins: Number of bins per class.
        binning: Equal-mass or equal-width bins.

    Example:
        >>> from calibrant.posthoc import HistogramBinning
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> calibrator = HistogramBinning(num_bins=2).fit(logits, target)
        >>> round(calibrator.predict_proba([[4.0, 0.0]])[0][0], 2)
        0.75
    """

    key = "histogram"

    def __init__(self, *, num_bins: int = 15, binning: Literal["mass", "width"] = "mass") -> None:
        super().__init__()
        self.num_bins = whole("num_bins", num_bins, 1)
        self.binning = one_of("binning", binning, ("mass", "width"))

    def _fit_map(self, probs: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        inner = torch.arange(1, self.num_bins, dtype=torch.float64, device=probs.device) / self.num_bins
        edges = inner if self.binning == "width" else probs.sort().values[(inner * len(probs)).ceil().long() - 1]
        bins = bin_statistics(probs, own, edges)
        ends = torch.cat([edges.new_zeros(1), edges, edges.new_ones(1)])
        middle = (ends[:-1] + ends[1:]) / 2
        values = torch.where(bins.counts > 0, bins.means()[1], middle)
        # Pads the points to the length of the values; no probability exceeds 2.
        return torch.cat([edges, edges.new_full((1,), 2.0)]), values

    def _evaluate(self, probs: Tensor) -> Tensor:
        return steps(probs, self.points_[:, :-1].contiguous(), self.values_)
