"""Calibration formulas, over bins and over outcomes sorted by confidence.

Both see only counts, confidences and numbers of correct predictions, so the same formulas work on individual samples, on a
fine grid that is filled while streaming, and on resamples, which are leading dimensions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.binning import Binning, BinStatistics, equal_width_edges, sums_by
from calibrant.outcomes import Outcomes


class SortedOutcomes(NamedTuple):
    """Outcomes in ascending order of confidence; samples of (nearly) the same confidence share an entry.

    Attributes:
        confidence: ``(C,)`` mean confidence of each entry, float64.
        counts: ``(*, C)`` samples in each, float64.
        correct: ``(*, C)`` correct predictions among them, float64.
    """

    confidence: Tensor
    counts: Tensor
    correct: Tensor

    @property
    def total(self) -> Tensor:
        """Number of samples, ``(*)``."""
        return self.counts.sum(dim=-1)

    def cpu(self) -> "SortedOutcomes":
        """The same on the CPU."""
        return SortedOutcomes(*(part.cpu() for part in self))


def sort_outcomes(outcomes: Outcomes) -> SortedOutcomes:
    """One entry per distinct confidence."""
    confidence, order = outcomes.confidence.sort()
    values, counts = confidence.unique_consecutive(return_counts=True)
    right = torch.nn.functional.pad(outcomes.correct[order].cumsum(dim=0), (1, 0))
    ends = counts.cumsum(dim=0)
    return SortedOutcomes(values.double(), counts.double(), (right[ends] - right[ends - counts]).double())


def merge_neighbours(ordered: SortedOutcomes, most: int) -> SortedOutcomes:
    """Merge neighbouring entries into about ``most`` entries of roughly equal mass."""
    if len(ordered.confidence) <= most:
        return ordered
    group = (ordered.counts.cumsum(dim=0) * most / ordered.total).ceil().long().clamp(1, most) - 1
    add = lambda values: values.new_zeros(most).index_add_(0, group, values)  # noqa: E731
    counts, confidence, correct = add(ordered.counts), add(ordered.counts * ordered.confidence), add(ordered.correct)
    filled = counts > 0
    return SortedOutcomes((confidence / counts)[filled], counts[filled], correct[filled])


class Grid:
    """The fine grid of streaming estimates, which bins probabilities by the leading bits of their distance to 0 or 1.

    Confidences cluster near 1, the probabilities of rare events near 0, so the grid is finer there: every factor of two in
    the distance is divided into 4096 steps, from 2^-24, the smallest distance of a float32 from 1, to one half. Exactly 0
    and exactly 1 have their own steps. Steps are therefore no wider than 6.2e-5, and no wider than 1/4096 of the distance.
    """

    _dropped = 23 - 12  # low bits of a float32's 23-bit mantissa, which a step ignores
    _smallest = 103 << 12  # 2^-24 in the remaining bits
    _half = (126 << 12) - _smallest + 1  # steps below one half
    size = 2 * _half + 1

    @classmethod
    def index(cls, confidence: Tensor) -> Tensor:
        """Index of the step of each probability, ascending."""
        confidence = confidence.double()
        low = confidence < 0.5
        distance = torch.where(low, confidence, 1 - confidence).float()
        step = ((distance.view(torch.int32) >> cls._dropped).long() - (cls._smallest - 1)).clamp(min=0)
        return torch.where(low, step.clamp(max=cls._half - 1), cls.size - 1 - step)

    @classmethod
    def sums(cls, outcomes: Outcomes) -> BinStatistics:
        """Sums of all steps."""
        return sums_by(cls.index(outcomes.confidence), cls.size, *outcomes)

    @classmethod
    def filled(cls, sums: BinStatistics) -> SortedOutcomes:
        """The steps that are not empty."""
        there = sums.counts > 0
        counts, confidence, correct = (part[there].double() for part in sums)
        return SortedOutcomes(confidence / counts, counts, correct)

    @classmethod
    def folded(cls, sums: BinStatistics) -> SortedOutcomes:
        """Outcomes of the predicted class from those of events: below one half, it is the other class."""
        probability, counts, happened = cls.filled(sums)
        other = probability <= 0.5
        confidence = torch.where(other, 1 - probability, probability)
        place, right = cls.index(confidence), torch.where(other, counts - happened, happened)
        parts = (counts, counts * confidence, right)
        return cls.filled(BinStatistics(*(part.new_zeros(cls.size).index_add_(0, place, part) for part in parts)))


def cut(ordered: SortedOutcomes, ends: Tensor) -> BinStatistics:
    """Merge entries into bins; ``ends`` ``(*, M - 1)`` are the numbers of entries up to the end of each bin but the last."""
    size = len(ordered.confidence)
    bounds = torch.nn.functional.pad(ends, (1, 0)), torch.nn.functional.pad(ends, (0, 1), value=size)

    def between(values: Tensor) -> Tensor:
        running = torch.nn.functional.pad(values.cumsum(dim=-1), (1, 0))
        start, end = (bound.expand(*running.shape[:-1], -1) for bound in bounds)
        return running.gather(-1, end) - running.gather(-1, start)

    return BinStatistics(*map(between, (ordered.counts, ordered.counts * ordered.confidence, ordered.correct)))


def bins_of_equal_width(ordered: SortedOutcomes, num_bins: int) -> BinStatistics:
    """Bins with the inner edges k / M."""
    edges = equal_width_edges(num_bins).to(ordered.confidence.device)
    return cut(ordered, torch.searchsorted(ordered.confidence, edges, right=True))


def bins_of_equal_mass(ordered: SortedOutcomes, num_bins: int, *, split: bool = False) -> BinStatistics:
    """Equal-mass bins; samples of equal confidence stay together.

    The inner edges are the sorted confidences at positions k N / M, with interpolation (AdaECE), so that the sample at rank
    floor(k N / M) is the last one below edge k. With ``split`` they lie halfway between the parts of an ``array_split``
    (Kumar et al. 2019), and there are no more bins than samples.
    """
    total = ordered.total.round().long().unsqueeze(-1)
    if split:
        num_bins = max(1, min(num_bins, int(total.min())))
    k = torch.arange(1, num_bins, device=total.device)
    if split:
        ranks = k * (total // num_bins) + torch.minimum(k, total % num_bins) - 1
    else:
        ranks = (k * total // num_bins).minimum(total - 1)
    reached = ordered.counts.cumsum(dim=-1).round().long()
    ends = torch.searchsorted(reached, ranks.expand(*reached.shape[:-1], -1).contiguous(), right=True) + 1
    return cut(ordered, ends.clamp(max=len(ordered.confidence)))


def accuracy(bins: BinStatistics) -> Tensor:
    """Fraction of correct predictions."""
    return bins.correct.sum(dim=-1).double() / bins.counts.sum(dim=-1)


def calibration_error(bins: BinStatistics, *, norm: int = 1) -> Tensor:
    r"""Plug-in estimate :math:`(\sum_b w_b |C_b - A_b|^p)^{1/p}`."""
    return (bins.weights() * bins.gaps().abs() ** norm).sum(dim=-1) ** (1 / norm)


def maximum_error(bins: BinStatistics) -> Tensor:
    """Largest absolute gap of a bin, NaN if all bins are empty."""
    return bins.gaps().abs().amax(dim=-1).where(bins.counts.sum(dim=-1) > 0, torch.nan)


def overconfidence(bins: BinStatistics) -> Tensor:
    """Mean positive gap."""
    return (bins.weights() * bins.gaps().clamp(min=0)).sum(dim=-1)


def underconfidence(bins: BinStatistics) -> Tensor:
    """Mean negative gap, as a positive number."""
    return (bins.weights() * bins.gaps().clamp(max=0).neg()).sum(dim=-1)


def debiased_estimate(bins: BinStatistics, *, norm: int = 1) -> Tensor:
    r"""Estimate without most of the bias caused by noise in the bins' accuracies (Kumar et al. 2019); may be negative.

    p = 2, before the root: :math:`\sum_b w_b [(C_b - A_b)^2 - A_b (1 - A_b) / (n_b - 1)]`, without bins
    of fewer than two samples. p = 1: twice the plug-in estimate minus its expectation when each :math:`A_b` is redrawn from
    a normal distribution with variance :math:`A_b (1 - A_b) / n_b`, in closed form by the folded normal distribution.
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


def debiased_error(bins: BinStatistics, *, norm: int = 1) -> Tensor:
    """The debiased estimate as an error: clipped at 0, and the root taken for p = 2."""
    error: Tensor = debiased_estimate(bins, norm=norm).clamp(min=0) ** (1 / norm)
    return error


# Over outcomes sorted by confidence


def adaptive_error(ordered: SortedOutcomes, *, num_bins: int = 15, norm: int = 1) -> Tensor:
    """Plug-in estimate with equal-mass bins."""
    return calibration_error(bins_of_equal_mass(ordered, num_bins), norm=norm)


def debiased_bins(ordered: SortedOutcomes, *, num_bins: int = 15, binning: Binning = "mass") -> BinStatistics:
    """The bins of :func:`debiased_sorted_error`."""
    by_mass = binning == "mass"
    return bins_of_equal_mass(ordered, num_bins, split=True) if by_mass else bins_of_equal_width(ordered, num_bins)


def debiased_sorted_error(
    ordered: SortedOutcomes, *, num_bins: int = 15, binning: Binning = "mass", norm: int = 1
) -> Tensor:
    """Debiased estimate with equal-mass or equal-width bins."""
    return debiased_error(debiased_bins(ordered, num_bins=num_bins, binning=binning), norm=norm)


def sweep_error(ordered: SortedOutcomes, *, binning: Binning = "mass", norm: int = 1) -> Tensor:
    """Plug-in estimate with as many bins as keep accuracy monotonic; see :func:`sweep`."""
    return sweep(ordered, binning=binning, norm=norm)[0]


def sweep(ordered: SortedOutcomes, *, binning: Binning = "mass", norm: int = 1) -> tuple[Tensor, Tensor]:
    """Plug-in estimate with as many bins as keep accuracy monotonic (Roelofs et al. 2022), and the number of bins.

    The number of bins grows from two until a bin is first less accurate than the one below; the last number before that is
    used, at most N - 1. Equal-mass bins divide samples by rank; samples of equal confidence have no order, so each bin gets
    its share of the correct ones.
    """
    flat = SortedOutcomes(ordered.confidence, *(x.reshape(-1, x.shape[-1]) for x in ordered[1:]))
    total = flat.total
    running = [
        torch.nn.functional.pad(x.cumsum(-1), (1, 0)) for x in (flat.counts, flat.counts * flat.confidence, flat.correct)
    ]

    def sums(share: Tensor, rows: Tensor) -> list[Tensor]:
        """Running sums up to given shares: of the interval [0, 1], or of the samples."""
        own = [x[rows] for x in running]
        if binning == "width":
            ends = torch.searchsorted(flat.confidence, share, right=True)
            ends = torch.where(share <= 0, 0, torch.where(share >= 1, len(flat.confidence), ends))
            return [x[:, ends] for x in own]
        return _at_ranks(own, (share * total[rows, None] - 1e-9).ceil().expand(len(rows), -1))

    def bins(number: int, rows: Tensor, edges: Tensor) -> BinStatistics:
        """Sums between some of the edges 0 .. ``number`` of ``number`` bins."""
        return BinStatistics(*(x.diff(dim=1) for x in sums(edges / number, rows)))

    def all_edges(number: int) -> Tensor:
        return torch.arange(number + 1, dtype=torch.float64, device=total.device)

    number = _in_order_always(flat)
    rows = (number == 0).nonzero().squeeze(1)
    lowest = 2
    while len(rows):
        # Of few rows several numbers are tried at once. Edges beyond the last make empty bins, which do not count.
        tried = torch.arange(lowest, lowest + max(1, 16 // len(rows)), device=total.device)
        edges = torch.minimum(all_edges(int(tried[-1])), tried[:, None]) / tried[:, None]
        parts = (x.view(len(rows), len(tried), -1).diff(dim=2) for x in sums(edges.flatten(), rows))
        wrong = (tried >= total[rows, None]) | ~_in_order(BinStatistics(*parts))
        stopped, first = wrong.max(dim=1)
        number[rows[stopped]] = lowest - 1 + first[stopped]
        rows = rows[~stopped]
        lowest += len(tried)
    values = torch.zeros_like(total)
    size = len(flat.confidence)
    for chosen in number.unique().tolist():
        # With more bins than entries, those within one entry have the same gap and can be merged: memory stays bounded.
        many = chosen > 4 * size
        for rows in (number == chosen).nonzero().squeeze(1).split(max(1, 2**20 // min(chosen, 4 * size))):
            at = running[0][rows, 1:] / total[rows, None] if binning == "mass" else flat.confidence.unsqueeze(0)
            edges = _edges_around(at, chosen) if many else all_edges(chosen)
            own = bins(chosen, rows, edges if binning == "mass" else edges.flatten().unique())
            values[rows] = calibration_error(own, norm=norm)
    shape = ordered.counts.shape[:-1]
    return values.view(shape), number.view(shape)


def _edges_around(at: Tensor, number: int) -> Tensor:
    """Those of the edges 0 .. ``number`` on either side of positions in [0, 1], and both ends, in ascending order."""
    left = (at * number).floor()
    near = torch.cat([left - 1, left, left + 1, left + 2, torch.zeros_like(left[:, :1]), left[:, :1] * 0 + number], dim=1)
    return near.clamp(0, number).sort(dim=1).values


def _in_order(bins: BinStatistics) -> Tensor:
    """Whether no bin is less accurate than one below it; empty bins do not count."""
    accuracy = (bins.correct / bins.counts).where(bins.counts > 0, -1)
    before = accuracy.cummax(dim=-1).values[..., :-1]
    return ((accuracy[..., 1:] >= before - 1e-12) | (bins.counts[..., 1:] <= 0)).all(dim=-1)


def _in_order_always(ordered: SortedOutcomes) -> Tensor:
    """N - 1 where the entries themselves are in order, as then is any number of bins; 1 where N <= 2; 0 elsewhere."""
    largest = (ordered.total.round().long() - 1).clamp(min=1)
    in_order = _in_order(BinStatistics(ordered.counts, ordered.counts, ordered.correct))
    return largest.where(in_order | (largest == 1), 0)


def _at_ranks(running: list[Tensor], ranks: Tensor) -> list[Tensor]:
    """Running sums up to given ranks, linear within an entry."""
    counts = running[0]
    entry = torch.searchsorted(counts[:, 1:].contiguous(), ranks.contiguous()).clamp(max=counts.shape[1] - 2)
    start, end = counts.gather(1, entry), counts.gather(1, entry + 1)
    share = ((ranks - start) / (end - start).where(end > start, 1)).clamp(0, 1)
    return [x.gather(1, entry).lerp(x.gather(1, entry + 1), share) for x in running]


def smooth_error(ordered: SortedOutcomes, *, points: int = 2**14) -> Tensor:
    r"""Smooth calibration error (Blasiok and Nakkiran 2024).

    The residuals A - C are smoothed with a Gaussian kernel reflected at 0 and 1, and the absolute value of the result
    is integrated; the width :math:`\sigma` is the one that equals this integral. Smoothing with reflection multiplies
    the cosine series by :math:`e^{-(\pi k \sigma)^2 / 2}`, here that of residuals spread over the nearest of
    ``points`` + 1 grid points.
    """
    position = ordered.confidence * points
    left = position.floor().long().clamp(max=points - 1)
    share = position - left
    residual = (ordered.correct - ordered.counts * ordered.confidence) / ordered.total.unsqueeze(-1)
    density = residual.new_zeros(*residual.shape[:-1], points + 1)
    for index, part in ((left, 1 - share), (left + 1, share)):
        density.index_add_(-1, index, residual * part)
    density[..., [0, -1]] *= 2  # points on the boundary are their own mirror image
    spectrum = torch.fft.rfft(torch.cat([density, density[..., 1:-1].flip(-1)], dim=-1))
    frequency = torch.pi * torch.arange(points + 1, dtype=torch.float64, device=residual.device)

    def smoothed(sigma: Tensor) -> Tensor:
        kernel = torch.exp(-((frequency * sigma.unsqueeze(-1)) ** 2) / 2)
        values: Tensor = torch.fft.irfft(spectrum * kernel, n=2 * points)[..., : points + 1].abs()
        return values.sum(dim=-1) - (values[..., 0] + values[..., -1]) / 2

    # The integral falls as sigma grows, so it equals sigma once: regula falsi with the Illinois modification.
    low, high = torch.zeros_like(ordered.total), torch.ones_like(ordered.total)
    above, below = smoothed(low), smoothed(high) - 1
    stayed = torch.zeros_like(low)
    for _ in range(12):
        slope = above - below
        middle = low + (high - low) * above / slope.where(slope > 0, 1)
        excess = smoothed(middle) - middle
        narrow = excess > 0
        low, high = torch.where(narrow, middle, low), torch.where(narrow, high, middle)
        above = torch.where(narrow, excess, torch.where(stayed < 0, above / 2, above))
        below = torch.where(narrow, torch.where(stayed > 0, below / 2, below), excess)
        stayed = torch.where(narrow, 1.0, -1.0)
        if bool((excess.abs() < 1e-9).all()):
            break
    return torch.where(above < -below, low, high)


def area_under_risk_coverage(ordered: SortedOutcomes) -> Tensor:
    r"""Mean over n of the error rate of the n most confident samples; ties are averaged over their order.

    An entry of n samples with error rate r after C more confident ones with E errors adds
    :math:`\sum_{j=1}^n \frac{E + j r}{C + j} = n r + (E - r C)(\psi(C + n + 1) - \psi(C + 1))`.
    """
    counts, wrong = ordered.counts.flip(-1), (ordered.counts - ordered.correct).flip(-1)
    covered, errors = counts.cumsum(dim=-1), wrong.cumsum(dim=-1)
    before, errors_before = covered - counts, errors - wrong
    rate = wrong / counts.where(counts > 0, 1)
    grown = torch.digamma(covered + 1) - torch.digamma(before + 1)
    return (wrong + (errors_before - rate * before) * grown).sum(dim=-1) / ordered.total


def coverage_at_risk(ordered: SortedOutcomes, *, risk: float = 0.05) -> Tensor:
    """Largest fraction of samples, taken by descending confidence, whose error rate is at most ``risk``.

    Samples of equal confidence are accepted together or not at all: no threshold separates them.
    """
    covered = ordered.counts.flip(-1).cumsum(dim=-1)
    errors = (ordered.counts - ordered.correct).flip(-1).cumsum(dim=-1)
    return covered.where(errors / covered <= risk, 0).amax(dim=-1) / ordered.total
