"""Calibration of the probability of every class or label, not only the predicted one."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant import inputs, outcomes, tensors
from calibrant.binning import Binning, BinStatistics, bin_index, equal_width_edges, sums_by, width_index
from calibrant.checks import one_of, whole
from calibrant.inputs import Array, Given, in_kind
from calibrant.metrics import estimators
from calibrant.outcomes import Outcomes, Softmax, judged
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
    stops at the largest label. With ``task="multilabel"``, the mean over labels of the ECE of each one's probability.

    Example:
        >>> from calibrant.functional import classwise_ece
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> round(classwise_ece(logits, target), 4)
        0.232
    """
    samples = inputs.for_measuring(logits, target, soft=None, **given)
    tensors.check_not_empty(int(samples.kept.sum()), **given)
    one_of("norm", norm, (1, 2))
    whole("num_bins", num_bins, 1)
    if one_of("binning", binning, ("mass", "width")) == "width":
        return classwise_error(class_bins(samples, num_bins), norm=norm)
    return _of_equal_mass(samples, num_bins, norm)


def per_label(
    metric: Callable[..., Tensor],
    logits: Array,
    target: Array,
    *,
    ignore_index: int = -100,
    probs: bool | None = None,
    **options: Any,
) -> list[float]:
    """A metric of each label of a multi-label task.

    Args:
        metric: A function such as :func:`ece`.
        logits: ``(N, L, *spatial)``.
        target: 0 or 1, or probabilities of 1, in the same shape.
        ignore_index: Value of targets to ignore; a label of which nothing is left gets NaN.
        probs: Whether these are probabilities; see :class:`calibrant.inputs.Given`.
        **options: Passed on to ``metric``.

    Example:
        >>> from calibrant.functional import ece, per_label
        >>> logits, target = [[4.0, 0.0]] * 8, [[1, 1]] * 4 + [[1, 0]] * 2 + [[0, 0]] * 2
        >>> [round(error, 3) for error in per_label(ece, logits, target)]  # 98% against 6 of 8, 50% against 4 of 8
        [0.232, 0.0]
    """
    samples = inputs.for_measuring(logits, target, ignore_index, probs=probs, task="multilabel", soft=None)
    targets = samples.targets(ignore_index)
    chosen = {"ignore_index": ignore_index, "probs": False, "task": "binary", **options}
    return [
        float(metric(samples.logits[:, :, k], targets[:, k], **chosen)) if bool(samples.kept[:, k].any()) else float("nan")
        for k in range(samples.logits.shape[2])
    ]


def classwise_error(bins: BinStatistics, *, norm: int = 1) -> Tensor:
    """Mean over classes, from bins of each class's probability ``(K, M)``."""
    return estimators.calibration_error(bins, norm=norm).mean()


@torch.no_grad()
def class_bins(samples: Samples, num_bins: int) -> BinStatistics:
    """Bins of equal width of each class's probability, ``(K, M)``, or of each label's, ``(L, M)``."""
    if samples.task == "multilabel":
        confidence, happened = judged(samples)
        labels = samples.logits.shape[2]
        place = label_index(samples).to(confidence.device) * num_bins + width_index(confidence, num_bins)
        return sums_by(place, labels * num_bins, confidence, happened).view(labels, num_bins)
    sums = BinStatistics.zeros(samples.logits.shape[1], num_bins, device=samples.logits.device)
    if samples.soft is not None:
        sums = sums._replace(correct=sums.correct.double())
    for block in tensors.blocks(samples):
        sums.add_(of_block(block, outcomes.softmax(block), num_bins))
    return sums


def label_index(samples: Samples) -> Tensor:
    """Which label each kept event of a multi-label task belongs to."""
    places = torch.arange(samples.kept.shape[1], device=samples.kept.device).view(-1, *[1] * (samples.kept.dim() - 2))
    return places.expand(samples.kept.shape)[samples.kept]


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

    if block.soft is None:
        place = block.pick(block.target) * num_bins + bin_index(own, edges)
        correct = torch.bincount(place, minlength=classes * num_bins).view(classes, num_bins)
    else:
        rows = torch.arange(classes, device=edges.device).view(-1, *[1] * (block.logits.dim() - 2))
        place = (rows * num_bins + bin_index(probabilities.double().contiguous(), edges)).flatten()
        mass = block.soft.where(block.kept.unsqueeze(1), 0).double().flatten()
        correct = confidence.new_zeros(classes * num_bins).index_add_(0, place, mass).view(classes, num_bins)
    return BinStatistics(counts, confidence, correct)


@torch.no_grad()
def _of_equal_mass(samples: Samples, num_bins: int, norm: int) -> Tensor:
    """Mean over classes with equal-mass bins, one class at a time, as each has its own order."""
    if samples.task == "multilabel":
        confidence, happened = judged(samples)
        index = label_index(samples).to(confidence.device)
        parts = [Outcomes(confidence[index == k], happened[index == k]) for k in range(samples.kept.shape[1])]
        ordered_parts = [estimators.sort_outcomes(part) for part in parts if len(part.confidence)]
        errors = [estimators.adaptive_error(part, num_bins=num_bins, norm=norm) for part in ordered_parts]
        return torch.stack(errors).mean()
    logits, target = samples.logits, samples.target[samples.kept]
    normalisers, errors = [], []
    for block in tensors.blocks(samples):
        softmax = outcomes.softmax(block)
        normalisers.append(block.pick(softmax.largest + softmax.total.log()))
    normaliser = torch.cat(normalisers)
    for k in range(logits.shape[1]):
        probability = (logits[:, k][samples.kept].to(normaliser.dtype) - normaliser).exp()
        own = target == k if samples.soft is None else samples.soft[:, k][samples.kept]
        ordered = estimators.sort_outcomes(Outcomes(probability, own))
        errors.append(estimators.adaptive_error(ordered, num_bins=num_bins, norm=norm))
    return torch.stack(errors).mean()
