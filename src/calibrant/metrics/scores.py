"""Averages of per-sample scores: accuracy, and the proper scores, which measure calibration and sharpness together."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from calibrant import inputs, outcomes, tensors
from calibrant.binning import BinStatistics
from calibrant.checks import whole
from calibrant.inputs import Array, Given, in_kind, shown
from calibrant.metrics.classwise import class_bins
from calibrant.outcomes import Softmax
from calibrant.tensors import Block, Samples

if TYPE_CHECKING:
    from typing_extensions import Unpack


class BrierSplit(NamedTuple):
    """The Brier score and its parts, ``total = calibration + refinement``.

    Attributes:
        total: Brier score.
        calibration: What a recalibration of each class's probabilities, bin by bin, could remove.
        refinement: What would remain.

    Example:
        >>> from calibrant.functional import brier_split
        >>> split = brier_split([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2)
        >>> round(split.calibration + split.refinement - split.total, 4)
        0.0
    """

    total: Tensor | float
    calibration: Tensor | float
    refinement: Tensor | float


@in_kind
def accuracy(logits: Array, target: Array, **given: "Unpack[Given]") -> Tensor:
    """Fraction of correct predictions; ties go to the first class.

    Example:
        >>> from calibrant.functional import accuracy
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> round(accuracy(logits, target), 4)
        0.75
    """
    return mean_of(right, logits, target, **given)


@in_kind
def top_k_accuracy(logits: Array, target: Array, *, k: int = 5, **given: "Unpack[Given]") -> Tensor:
    """Fraction of samples whose true class is among the k largest logits; ties go to the first classes.

    Example:
        >>> from calibrant.functional import top_k_accuracy
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> top_k_accuracy(logits, target, k=1), top_k_accuracy(logits, target, k=2)
        (0.75, 1.0)
    """
    whole("k", k, 1)
    return mean_of(lambda block, softmax: in_top_k(block, softmax, k=k), logits, target, **given)


@in_kind
def nll(logits: Array, target: Array, **given: "Unpack[Given]") -> Tensor:
    r"""Negative log-likelihood, the mean of :math:`-\log s_y`; infinite if a true class has probability 0.

    With soft targets q, the mean of :math:`-\sum_k q_k \log s_k`.

    Example:
        >>> from calibrant.functional import nll
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> round(nll(logits, target), 4)
        1.0181
    """
    return mean_of(negative_log_likelihood, logits, target, **given)


@in_kind
def brier_score(logits: Array, target: Array, **given: "Unpack[Given]") -> Tensor:
    r"""Brier score, the mean of :math:`\sum_k (s_k - 1[k = y])^2`, between 0 and 2.

    With soft targets q, its expectation, :math:`\sum_k (s_k - q_k)^2 + 1 - \sum_k q_k^2`. With ``task="binary"``, still the
    sum over both classes: twice :math:`(s_1 - y)^2`.

    Example:
        >>> from calibrant.functional import brier_score
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> round(brier_score(logits, target), 4)
        0.4827
    """
    return mean_of(brier, logits, target, **given)


@shown
def brier_split(logits: Array, target: Array, *, num_bins: int = 15, **given: "Unpack[Given]") -> BrierSplit:
    r"""Brier score with its calibration and refinement parts.

    The calibration part is :math:`\sum_k \sum_b \frac{n_{kb}}{N} (C_{kb} - A_{kb})^2` over equal-width bins of each
    class's probability, with :math:`C_{kb}` its mean and :math:`A_{kb}` how often k is the true class; the refinement
    is the rest.

    Example:
        >>> from calibrant.functional import brier_split
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> total, calibration, refinement = brier_split(logits, target)
        >>> round(total, 4), round(calibration, 4), round(refinement, 4)
        (0.4827, 0.1077, 0.375)
    """
    samples = inputs.for_measuring(logits, target, soft=None, **given)
    tensors.check_not_empty(int(samples.kept.sum()), **given)
    total = of_samples(brier, samples).mean()
    calibration = calibration_part(class_bins(samples, whole("num_bins", num_bins, 1)), classes=samples.logits.shape[1])
    parts = (total, calibration, total - calibration)
    return BrierSplit(*parts) if isinstance(logits, Tensor) else BrierSplit(*map(float, parts))


def calibration_part(class_bins: BinStatistics, *, classes: int | None = None) -> Tensor:
    """Calibration part of the Brier score, from bins of each class's probability, or of each label's with 2 classes."""
    squares = (class_bins.weights() * class_bins.gaps() ** 2).sum(dim=-1)
    return squares.mean() * (len(squares) if classes is None else classes)


def right(block: Block, softmax: Softmax) -> Tensor:
    """Whether each prediction is correct, or how probably."""
    return outcomes.correct(block, softmax.largest, softmax.total)


def rank(block: Block) -> Tensor:
    """How many classes rank ahead of the true one."""
    own = block.logits.gather(1, block.target.unsqueeze(1))
    classes = torch.arange(block.logits.shape[1], device=own.device).view(-1, *[1] * (block.logits.dim() - 2))
    before = (block.logits > own) | ((block.logits == own) & (classes < block.target.unsqueeze(1)))
    return before.sum(dim=1)


def in_top_k(block: Block, softmax: Softmax, *, k: int = 5) -> Tensor:
    """Whether the true class is among the first k, or how probably."""
    del softmax
    if block.soft is not None:
        first = block.logits.sort(dim=1, descending=True, stable=True).indices[:, :k]
        return block.soft.gather(1, first).sum(dim=1)
    return rank(block) < k


def negative_log_likelihood(block: Block, softmax: Softmax) -> Tensor:
    """-log s_y of each sample, or its expectation."""
    if block.soft is not None:
        log_probs = block.logits - (softmax.largest + softmax.total.log())
        return -torch.where(block.soft > 0, block.soft * log_probs, 0).sum(dim=1)
    own = block.logits.gather(1, block.target.unsqueeze(1))
    return (softmax.total.log() + (softmax.largest - own)).squeeze(1)


def brier(block: Block, softmax: Softmax) -> Tensor:
    """Brier score of each sample, with 1 - s_y summed over the other classes: it does not cancel near certainty."""
    if block.soft is not None:
        off = softmax.exponentials / softmax.total - block.soft
        return off.square().sum(dim=1) + 1 - block.soft.square().sum(dim=1)
    index = block.target.unsqueeze(1)
    own = softmax.exponentials.gather(1, index)
    others = softmax.exponentials.scatter_(1, index, 0)
    score = (others.sum(dim=1).square() + others.square().sum(dim=1)) / softmax.total.squeeze(1).square()
    softmax.exponentials.scatter_(1, index, own)
    return score


@torch.no_grad()
def of_samples(score: Callable[[Block, Softmax], Tensor], samples: Samples) -> Tensor:
    """A score of each sample that is not ignored, in float64."""
    values = [block.pick(score(block, outcomes.softmax(block))).double() for block in tensors.blocks(samples)]
    return torch.cat(values) if values else samples.logits.new_zeros(0, dtype=torch.float64)


def mean_of(score: Callable[[Block, Softmax], Tensor], logits: Array, target: Array, **given: "Unpack[Given]") -> Tensor:
    """Mean of a score over the samples that are not ignored."""
    values = of_samples(score, inputs.for_measuring(logits, target, soft=None, **given))
    tensors.check_not_empty(len(values), **given)
    return values.mean()
