"""Calibration of the probability of every class, not only the predicted one."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant import inputs, outcomes, tensors
from calibrant.binning import Binning, BinStatistics, bin_index, equal_width_edges, sums_by
from calibrant.checks import one_of, whole
from calibrant.inputs import Array, Given, in_kind
from calibrant.metrics import estimators
from calibrant.outcomes import Outcomes, Softmax
from calibrant.tensors import Block, Samples

if TYPE_CHECKING:
    from typing_extensions import Unpack


@in_kind
def classwise_ece(
    logits: Array,
    target: Array,
    *,
    num_bins: int = 15,
    binning: Binning = "width",
    norm: int = 1,
    **given: "Unpack[Given]",
) -> Tensor:
    r"""Classwise ECE: the calibration error of each class's probability, averaged over all K classes.

    .. math:: \frac1K \sum_k \Big(\sum_b \frac{n_{kb}}{N} |C_{kb} - A_{kb}|^p\Big)^{1/p}

    Bin b of class k holds the samples whose probability of class k falls into it; :math:`C_{kb}` is the mean of that
    probability, :math:`A_{kb}` the frequency of class k. Classes without samples count too, unlike in released code, which
    stops at the largest label.

    Example:
        >>> from calibrant.functional import classwise_ece
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> round(classwise_ece(logits, target), 4)
        0.232
    """
    samples = inputs.for_measuring(logits, target, **given)
    tensors.check_not_empty(int(samples.kept.sum()), **given)
    one_of("norm", norm, (1, 2))
    whole("num_bins", num_bins, 1)
    if one_of("binning", binning, ("mass", "width")) == "width":
        return classwise_error(class_bins(samples, num_bins), norm=norm)
    return _of_equal_mass(samples, num_bins, norm)


def classwise_error(bins: BinStatistics, *, norm: int = 1) -> Tensor:
    """Mean over classes, from bins of each class's probability ``(K, M)``."""
    return estimators.calibration_error(bins, norm=norm).mean()


@torch.no_grad()
def class_bins(samples: Samples, num_bins: int) -> BinStatistics:
    """Bins of equal width of each class's probability, ``(K, M)``."""
    sums = BinStatistics.zeros(samples.logits.shape[1], num_bins, device=samples.logits.device)
    for block in tensors.blocks(samples):
        sums.add_(of_block(block, outcomes.softmax(block), num_bins))
    return sums


def of_block(block: Block, softmax: Softmax, num_bins: int) -> BinStatistics:
    """Bins of each class's probability, for a block; overwrites the exponentials.

    Fewer than M of a sample's K probabilities exceed 1 / M. Only those are looked up; the rest, nearly all of them when
    there are many classes, belong to the first bin, whose sums follow from the totals.
    """
    classes = block.logits.shape[1]
    probabilities = softmax.exponentials.div_(softmax.total)
    if block.places is not None:
        probabilities.masked_fill_(~block.kept.unsqueeze(1), 0)
    edges = equal_width_edges(num_bins).to(probabilities.device)

    flat = probabilities.flatten()
    beyond = (flat > (1 - 1e-6) / num_bins).nonzero().squeeze(1)  # with a margin for float32 rounding at the edge
    values = flat[beyond].double()
    pixels = max(1, probabilities.shape[2:].numel())
    place = beyond // pixels % classes * num_bins + bin_index(values, edges)
    own = block.pick(probabilities.gather(1, block.target.unsqueeze(1))).double()
    nothing = torch.zeros_like(values, dtype=torch.bool)
    counts, confidence, _ = sums_by(place, classes * num_bins, values, nothing).view(classes, num_bins)
    over_samples = [0, *range(2, probabilities.dim())]
    counts[:, 0] += len(own) - counts.sum(dim=1)
    confidence[:, 0] += probabilities.sum(dim=over_samples, dtype=torch.float64) - confidence.sum(dim=1)

    place = block.pick(block.target) * num_bins + bin_index(own, edges)
    correct = torch.bincount(place, minlength=classes * num_bins).view(classes, num_bins)
    return BinStatistics(counts, confidence, correct)


@torch.no_grad()
def _of_equal_mass(samples: Samples, num_bins: int, norm: int) -> Tensor:
    """Mean over classes with equal-mass bins, one class at a time, as each has its own order."""
    logits, target = samples.logits, samples.target[samples.kept]
    normalisers, errors = [], []
    for block in tensors.blocks(samples):
        softmax = outcomes.softmax(block)
        normalisers.append(block.pick(softmax.largest + softmax.total.log()))
    normaliser = torch.cat(normalisers)
    for k in range(logits.shape[1]):
        probability = (logits[:, k][samples.kept].to(normaliser.dtype) - normaliser).exp()
        ordered = estimators.sort_outcomes(Outcomes(probability, target == k))
        errors.append(estimators.adaptive_error(ordered, num_bins=num_bins, norm=norm))
    return torch.stack(errors).mean()
