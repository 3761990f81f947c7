"""The only rule that assigns confidences to bins, and the only sums over bins.

A bin is ``(lower, upper]``; the first bin also takes values at or below its lower edge, the last one values above its upper
edge. Bins are therefore defined by their ``M - 1`` inner edges, and every confidence belongs to exactly one bin.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from calibrant.distributed import sum_over_processes

#: Bins of equal mass, or of equal width.
Binning = Literal["mass", "width"]


class BinStatistics(NamedTuple):
    """Sums over the samples of each of M bins; they merge by addition.

    There may be leading dimensions, such as classes or resamples.

    Attributes:
        counts: ``(*, M)`` samples.
        confidence: ``(*, M)`` sum of their confidences, float64.
        correct: ``(*, M)`` correct predictions.
    """

    counts: Tensor
    confidence: Tensor
    correct: Tensor

    @classmethod
    def zeros(cls, *shape: int, device: torch.device | None = None) -> "BinStatistics":
        """Empty bins."""
        counts, correct = (torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(2))
        return cls(counts, torch.zeros(shape, dtype=torch.float64, device=device), correct)

    def add_(self, other: "BinStatistics") -> None:
        """Add the sums of other samples, in place."""
        for own, part in zip(self, other, strict=True):
            own.add_(part)

    def view(self, *shape: int) -> "BinStatistics":
        """The same sums in another shape."""
        return BinStatistics(*(part.view(shape) for part in self))

    def double(self) -> "BinStatistics":
        """All three in float64, on the CPU."""
        return BinStatistics(*(part.cpu().double() for part in self))

    def pooled(self, dim: int = 0) -> "BinStatistics":
        """Summed over a leading dimension, such as the classes."""
        return BinStatistics(*(part.sum(dim=dim) for part in self))

    def means(self) -> tuple[Tensor, Tensor]:
        """Mean confidence and accuracy of each bin, float64, 0 where it is empty."""
        counts = self.counts.where(self.counts > 0, 1).double()
        return self.confidence / counts, self.correct / counts

    def gaps(self) -> Tensor:
        """Mean confidence minus accuracy of each bin: positive where it is overconfident, 0 where it is empty."""
        confidence, accuracy = self.means()
        return confidence - accuracy

    def weights(self) -> Tensor:
        """Fraction of the samples in each bin; NaN if there are none."""
        return self.counts.double() / self.counts.sum(dim=-1, keepdim=True)


def equal_width_edges(num_bins: int) -> Tensor:
    """Inner edges k / M, k = 1 .. M - 1, in float64."""
    return torch.arange(1, num_bins, dtype=torch.float64) / num_bins


def equal_mass_edges(confidence: Tensor, num_bins: int, add_up: Callable[[Tensor], Tensor] = sum_over_processes) -> Tensor:
    """Inner edges of bins that hold (nearly) equal numbers of the confidences of all processes, in float64.

    Edge k is the sorted sequence c_0 <= ... <= c_{N-1} at position k N / M, linearly interpolated. ``confidence`` is this
    process's share, a vector of values in [0, 1]; some shares may be empty, but not all. ``add_up`` sums over processes.
    """
    ordered = confidence.sort().values
    total = int(add_up(torch.tensor(confidence.numel(), device=confidence.device)))
    position = torch.arange(1, num_bins, dtype=torch.float64, device=confidence.device) * total / num_bins
    left = position.long().clamp(max=total - 1)
    right = (left + 1).clamp(max=total - 1)
    values = _order_statistics(ordered, torch.stack([left, right]), add_up).double()
    return values[0].lerp(values[1], position - left)


def bin_index(confidence: Tensor, edges: Tensor) -> Tensor:
    """Bin index of each confidence, for inner ``edges`` of the same dtype."""
    return torch.bucketize(confidence, edges)


def width_index(confidence: Tensor, num_bins: int) -> Tensor:
    """Index of the equal-width bin of each confidence."""
    return bin_index(confidence.double(), equal_width_edges(num_bins).to(confidence.device))


def bin_statistics(confidence: Tensor, correct: Tensor, edges: Tensor) -> BinStatistics:
    """Sums over the bins with inner ``edges`` (of the same dtype as ``confidence``)."""
    return sums_by(bin_index(confidence, edges), len(edges) + 1, confidence, correct)


def sums_by(index: Tensor, size: int, confidence: Tensor, correct: Tensor) -> BinStatistics:
    """Sums over samples by bin ``index``, from 0 to ``size`` - 1; ``correct`` is boolean, or a probability."""
    return BinStatistics(
        counts=torch.bincount(index, minlength=size),
        # Not bincount with weights: without samples it returns integers, which cannot be added to other processes' floats.
        confidence=confidence.new_zeros(size, dtype=torch.float64).index_add_(0, index, confidence.double()),
        correct=torch.bincount(index[correct], minlength=size)
        if correct.dtype is torch.bool
        else confidence.new_zeros(size, dtype=torch.float64).index_add_(0, index, correct.double()),
    )


def _order_statistics(ordered: Tensor, ranks: Tensor, add_up: Callable[[Tensor], Tensor]) -> Tensor:
    """Values at 0-based ``ranks`` of the union of every process's sorted, non-negative ``ordered``.

    Exact, and no process sees another's values: non-negative floats sort like their bit patterns, so each rank is found by
    bisection over bit patterns, in which processes only add up their counts of values at or below a pattern.
    """
    as_integer = torch.int32 if ordered.dtype is torch.float32 else torch.int64
    bits = ordered.view(as_integer)
    low = torch.zeros_like(ranks)
    largest = torch.tensor(torch.finfo(ordered.dtype).max, dtype=ordered.dtype, device="cpu")
    high = torch.full_like(ranks, int(largest.view(as_integer)))
    for _ in range(8 * ordered.element_size()):
        middle = low + (high - low) // 2
        at_or_below = add_up(torch.searchsorted(bits, middle.to(as_integer), right=True))
        enough = at_or_below > ranks
        low, high = torch.where(enough, low, middle + 1), torch.where(enough, middle, high)
    return low.to(as_integer).view(ordered.dtype)
