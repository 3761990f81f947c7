"""Outcomes in order of confidence, and the estimates of calibration that need this order.

A cell is a group of samples that share their confidence, exactly or to three digits of its distance to 1. The estimates see
how many samples a cell holds, how sure they are and how many are right, so that they work alike on single samples, on a fine
grid that is filled in passing, and on resamples; the latter as further dimensions in front.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from calibrant.binning import BinStatistics, equal_width_edges
from calibrant.outcomes import Outcomes

Binning = Literal["mass", "width"]


class Cells(NamedTuple):
    """Cells in ascending order of confidence.

    Attributes:
        confidence: ``(C,)`` mean confidence of each cell, float64.
        counts: ``(*, C)`` samples in each, float64.
        correct: ``(*, C)`` right predictions among them, float64.
    """

    confidence: Tensor
    counts: Tensor
    correct: Tensor

    @property
    def total(self) -> Tensor:
        """Number of samples, ``(*)``."""
        return self.counts.sum(dim=-1)


def cells_of(outcomes: Outcomes) -> Cells:
    """One cell for each confidence that occurs."""
    confidence, order = outcomes.confidence.sort()
    values, counts = confidence.unique_consecutive(return_counts=True)
    right = torch.nn.functional.pad(outcomes.correct[order].cumsum(dim=0), (1, 0))
    ends = counts.cumsum(dim=0)
    return Cells(values.double(), counts.double(), (right[ends] - right[ends - counts]).double())


def merged(cells: Cells, most: int) -> Cells:
    """Join neighbouring cells of one sample set until at most about ``most`` are left, of about equal mass."""
    if len(cells.confidence) <= most:
        return cells
    group = (cells.counts.cumsum(dim=0) * most / cells.total).ceil().long().clamp(1, most) - 1
    add = lambda values: values.new_zeros(most).index_add_(0, group, values)  # noqa: E731
    counts, confidence, correct = add(cells.counts), add(cells.counts * cells.confidence), add(cells.correct)
    filled = counts > 0
    return Cells((confidence / counts)[filled], counts[filled], correct[filled])


class Grid:
    """The fine grid of streaming estimates: cells by the leading bits of 1 - confidence.

    Confidences crowd close to 1, so cells have to be finer there: every factor of two in 1 - confidence is divided into 4096
    cells, from 2^-24, the smallest distance to 1 that a float32 can have, to 1. A confidence of exactly 1 has its own cell.
    Cells are therefore no wider than 1.2e-4, and no wider than 1/4096 of their distance to 1.
    """

    _dropped = 23 - 12  # of a float32's 23 bits of mantissa, those that tell confidences of one cell apart
    _smallest = 103 << 12  # 2^-24 in the remaining bits
    size = ((127 << 12) - _smallest) + 2

    @classmethod
    def index(cls, confidence: Tensor) -> Tensor:
        """Cell of each confidence, in ascending order of confidence."""
        distance = (1 - confidence.double()).float()
        bits = (distance.view(torch.int32) >> cls._dropped).long()
        return cls.size - 1 - (bits - (cls._smallest - 1)).clamp(min=0)

    @classmethod
    def sums(cls, outcomes: Outcomes) -> BinStatistics:
        """Counts and sums of all cells."""
        index = cls.index(outcomes.confidence)
        return BinStatistics(
            counts=torch.bincount(index, minlength=cls.size),
            confidence=torch.zeros(cls.size, dtype=torch.float64, device=index.device).index_add_(
                0, index, outcomes.confidence.double()
            ),
            correct=torch.bincount(index[outcomes.correct], minlength=cls.size),
        )

    @classmethod
    def cells(cls, sums: BinStatistics) -> Cells:
        """The cells that hold something."""
        filled = sums.counts > 0
        counts, confidence, correct = (part[filled].double() for part in sums)
        return Cells(confidence / counts, counts, correct)


def cut(cells: Cells, ends: Tensor) -> BinStatistics:
    """Join cells into bins: ``ends`` are the numbers of cells up to the end of each bin but the last, ``(*, M - 1)``."""
    size = len(cells.confidence)
    bounds = torch.nn.functional.pad(ends, (1, 0)), torch.nn.functional.pad(ends, (0, 1), value=size)

    def between(values: Tensor) -> Tensor:
        running = torch.nn.functional.pad(values.cumsum(dim=-1), (1, 0))
        start, end = (bound.expand(*running.shape[:-1], -1) for bound in bounds)
        return running.gather(-1, end) - running.gather(-1, start)

    return BinStatistics(*map(between, (cells.counts, cells.counts * cells.confidence, cells.correct)))


def bins_of_equal_width(cells: Cells, num_bins: int) -> BinStatistics:
    """Bins with the inner edges k / M."""
    edges = equal_width_edges(num_bins).to(cells.confidence.device)
    return cut(cells, torch.searchsorted(cells.confidence, edges, right=True))


def bins_of_equal_mass(cells: Cells, num_bins: int, *, split: bool = False) -> BinStatistics:
    """Bins that hold about equally many samples; samples of equal confidence stay together.

    The inner edges are the sorted confidences read at positions k N / M, with interpolation (AdaECE), so that the sample at
    rank floor(k N / M) is the last one below edge k. With ``split`` they lie half-way between the parts of an
    ``array_split`` (Kumar et al. 2019), and there are no more bins than samples.
    """
    total = cells.total.round().long().unsqueeze(-1)
    if split:
        num_bins = max(1, min(num_bins, int(total.min())))
    k = torch.arange(1, num_bins, device=total.device)
    if split:
        ranks = k * (total // num_bins) + torch.minimum(k, total % num_bins) - 1
    else:
        ranks = (k * total // num_bins).minimum(total - 1)
    reached = cells.counts.cumsum(dim=-1).round().long()
    ends = torch.searchsorted(reached, ranks.expand(*reached.shape[:-1], -1).contiguous(), right=True) + 1
    return cut(cells, ends.clamp(max=len(cells.confidence)))


def calibration_error(bins: BinStatistics, norm: int = 1) -> Tensor:
    r"""Plug-in estimate :math:`(\sum_b w_b |C_b - A_b|^p)^{1/p}`."""
    return (bins.weights() * bins.gaps().abs() ** norm).sum(dim=-1) ** (1 / norm)


def debiased_error(bins: BinStatistics, norm: int = 1) -> Tensor:
    r"""Estimate without most of the bias that the noise of the bins' accuracies adds (Kumar et al. 2019); may be negative.

    p = 2, before the root: :math:`\sum_b w_b [(C_b - A_b)^2 - A_b (1 - A_b) / (n_b - 1)]`, bins of fewer than two samples
    left out. p = 1: twice the plug-in estimate minus its expectation when each :math:`A_b` is drawn anew from a normal
    distribution with variance :math:`A_b (1 - A_b) / n_b`, which is known in closed form, that of the folded normal.
    """
    weights, gaps = bins.weights(), bins.gaps()
    _, accuracy = bins.means()
    variance = accuracy * (1 - accuracy)
    if norm == 2:
        terms: Tensor = weights * (gaps**2 - variance / (bins.counts - 1).clamp(min=1))
        return terms.where(bins.counts >= 2, 0).sum(dim=-1)
    deviation = (variance / bins.counts.where(bins.counts > 0, 1)).sqrt()
    scaled = gaps / deviation.where(deviation > 0, 1)
    folded = deviation * (2 / torch.pi) ** 0.5 * torch.exp(-(scaled**2) / 2) + gaps * torch.erf(scaled / 2**0.5)
    expected = folded.where(deviation > 0, gaps.abs())
    debiased: Tensor = weights * (2 * gaps.abs() - expected)
    return debiased.sum(dim=-1)


def sweep(cells: Cells, binning: Binning = "mass", norm: int = 1) -> tuple[Tensor, Tensor]:
    """Plug-in estimate with as many bins as keep the accuracies in order (Roelofs et al. 2022), and that number.

    Starting from two, the number of bins grows until for the first time a bin is less accurate than the one below; the
    number before counts, at most N - 1. Bins of equal mass divide samples by rank; of samples with equal confidence,
    which have no order, each bin gets its share of the right ones.
    """
    flat = Cells(cells.confidence, *(x.reshape(-1, x.shape[-1]) for x in cells[1:]))
    total = flat.total
    running = [
        torch.nn.functional.pad(x.cumsum(-1), (1, 0)) for x in (flat.counts, flat.counts * flat.confidence, flat.correct)
    ]

    def bins(number: int, rows: Tensor) -> BinStatistics:
        fractions = torch.arange(1, number, dtype=torch.float64, device=total.device) / number
        if binning == "width":
            ends = torch.searchsorted(flat.confidence, fractions, right=True)
            inner = [x[rows][:, ends] for x in running]
        else:
            ranks = (fractions * total[rows, None] - 1e-9).ceil()
            inner = _at_ranks([x[rows] for x in running], ranks)
        parts = [
            torch.cat([x[:, :1], y, x[:, -1:]], dim=1).diff(dim=1)
            for x, y in zip([r[rows] for r in running], inner, strict=True)
        ]
        return BinStatistics(*parts)

    number = _in_order_always(flat)
    rows = (number == 0).nonzero().squeeze(1)
    candidate = 2
    while len(rows):
        stopped = (candidate >= total[rows]) | ~_in_order(bins(candidate, rows))
        number[rows[stopped]] = candidate - 1
        rows = rows[~stopped]
        candidate += 1
    values = torch.zeros_like(total)
    for chosen in number.unique().tolist():
        rows = (number == chosen).nonzero().squeeze(1)
        values[rows] = calibration_error(bins(chosen, rows), norm)
    shape = cells.counts.shape[:-1]
    return values.view(shape), number.view(shape)


def _in_order(bins: BinStatistics) -> Tensor:
    """Whether no bin is less accurate than one below it; empty bins do not count."""
    accuracy = (bins.correct / bins.counts).where(bins.counts > 0, -1)
    before = accuracy.cummax(dim=-1).values[..., :-1]
    return ((accuracy[..., 1:] >= before - 1e-12) | (bins.counts[..., 1:] <= 0)).all(dim=-1)


def _in_order_always(cells: Cells) -> Tensor:
    """N - 1 where the cells themselves are in order, so that any number of bins is; where N <= 2, 1; elsewhere 0."""
    largest = (cells.total.round().long() - 1).clamp(min=1)
    ordered = _in_order(BinStatistics(cells.counts, cells.counts, cells.correct))
    return largest.where(ordered | (largest == 1), 0)


def _at_ranks(running: list[Tensor], ranks: Tensor) -> list[Tensor]:
    """Running sums up to given ranks; within a cell they grow evenly."""
    counts = running[0]
    cell = torch.searchsorted(counts[:, 1:].contiguous(), ranks.contiguous()).clamp(max=counts.shape[1] - 2)
    start, end = counts.gather(1, cell), counts.gather(1, cell + 1)
    share = ((ranks - start) / (end - start).where(end > start, 1)).clamp(0, 1)
    return [x.gather(1, cell).lerp(x.gather(1, cell + 1), share) for x in running]


def smooth_error(cells: Cells, points: int = 2**14) -> Tensor:
    r"""Smooth calibration error (Blasiok and Nakkiran 2024).

    The residuals A - C are smoothed with a Gaussian kernel reflected at 0 and 1, and the absolute value of the result
    is integrated; the width :math:`\sigma` is the one that equals this integral. Smoothing with reflection is a
    multiplication by :math:`e^{-(\pi k \sigma)^2 / 2}` of the cosine series, here of residuals shared among the nearest
    of ``points`` + 1 points.
    """
    position = cells.confidence * points
    left = position.floor().long().clamp(max=points - 1)
    share = position - left
    residual = (cells.correct - cells.counts * cells.confidence) / cells.total.unsqueeze(-1)
    density = residual.new_zeros(*residual.shape[:-1], points + 1)
    for index, part in ((left, 1 - share), (left + 1, share)):
        density.index_add_(-1, index, residual * part)
    density[..., [0, -1]] *= 2  # a mirror image of what lies on the mirror
    spectrum = torch.fft.rfft(torch.cat([density, density[..., 1:-1].flip(-1)], dim=-1))
    frequency = torch.pi * torch.arange(points + 1, dtype=torch.float64, device=residual.device)

    def smoothed(sigma: Tensor) -> Tensor:
        kernel = torch.exp(-((frequency * sigma.unsqueeze(-1)) ** 2) / 2)
        values: Tensor = torch.fft.irfft(spectrum * kernel, n=2 * points)[..., : points + 1].abs()
        return values.sum(dim=-1) - (values[..., 0] + values[..., -1]) / 2

    # The integral falls as sigma grows, so it meets sigma once: bisection, and at last the chord, which is straight enough.
    low, high = torch.zeros_like(cells.total), torch.ones_like(cells.total)
    excess_low, excess_high = smoothed(low), smoothed(high) - 1
    for _ in range(18):
        middle = (low + high) / 2
        excess = smoothed(middle) - middle
        narrow = excess > 0
        low, high = torch.where(narrow, middle, low), torch.where(narrow, high, middle)
        excess_low, excess_high = torch.where(narrow, excess, excess_low), torch.where(narrow, excess_high, excess)
    slope = excess_low - excess_high
    return low + (high - low) * (excess_low / slope.where(slope > 0, 1)).clamp(0, 1)


def area_under_risk_coverage(cells: Cells) -> Tensor:
    r"""Mean over n of the error rate of the n most confident samples; samples of equal confidence come in any order.

    A cell of n samples with error rate r after C more confident ones with E errors adds
    :math:`\sum_{j=1}^n \frac{E + j r}{C + j} = n r + (E - r C)(\psi(C + n + 1) - \psi(C + 1))`.
    """
    counts, wrong = cells.counts.flip(-1), (cells.counts - cells.correct).flip(-1)
    covered, errors = counts.cumsum(dim=-1), wrong.cumsum(dim=-1)
    before, errors_before = covered - counts, errors - wrong
    rate = wrong / counts.where(counts > 0, 1)
    grown = torch.digamma(covered + 1) - torch.digamma(before + 1)
    return (wrong + (errors_before - rate * before) * grown).sum(dim=-1) / cells.total
