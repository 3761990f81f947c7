"""Calibration of the predicted class: are predictions with a confidence of 0.8 correct in 80 of 100 cases?

Of events, ``task="binary"`` or ``"multilabel"``: do events with a probability of 0.8 happen in 80 of 100 cases? With soft
targets q, a prediction k is correct with probability :math:`q_k`.

All functions take logits ``(N, K)`` or ``(N, K, *spatial)`` and integer labels, or any other form that
:class:`calibrant.inputs.Given` describes, ignore what is labelled ``ignore_index``, and return a fraction as a float64
scalar. Bins are ``(lower, upper]``. Without any samples, a ValueError is raised.
"""

from typing import TYPE_CHECKING

from torch import Tensor

from calibrant import inputs, tensors
from calibrant.binning import Binning, BinStatistics, bin_statistics, equal_width_edges
from calibrant.checks import one_of, whole
from calibrant.inputs import Array, Given, in_kind
from calibrant.metrics import estimators
from calibrant.metrics.estimators import SortedOutcomes, sort_outcomes
from calibrant.outcomes import Outcomes, judged

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Why some estimates need labels.
NO_NOISE = ", whose noise it allows for"


@in_kind
def ece(logits: Array, target: Array, *, num_bins: int = 15, norm: int = 1, **given: "Unpack[Given]") -> Tensor:
    r"""Expected calibration error with equal-width bins (CALS Eq. 14), a fraction.

    .. math:: \Big(\sum_b \frac{n_b}{N} |C_b - A_b|^p\Big)^{1/p}

    :math:`C_b` is the mean confidence of the predicted class in bin b, :math:`A_b` the accuracy.

    Args:
        logits: ``(N, K)`` or ``(N, K, *spatial)``.
        target: Labels, ``(N,)`` or ``(N, *spatial)``.
        num_bins: Number of equal-width bins.
        norm: The norm p, 1 or 2.
        **given: ``ignore_index``, ``probs`` and ``task``; see :class:`calibrant.inputs.Given`.

    Example:
        >>> from calibrant.functional import ece
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> round(ece(logits, target), 4)
        0.232
        >>> round(ece([0.02] * 8, target, probs=True, task="binary"), 2)  # the event, class 1, happens in 2 of 8 cases
        0.23
    """
    one_of("norm", norm, (1, 2))
    return estimators.calibration_error(width_bins(measured(logits, target, **given), num_bins), norm=norm)


@in_kind
def mce(logits: Array, target: Array, *, num_bins: int = 15, **given: "Unpack[Given]") -> Tensor:
    """Maximum calibration error: the largest :math:`|C_b - A_b|` of a non-empty equal-width bin.

    Example:
        >>> from calibrant.functional import mce
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> round(mce(logits, target), 4)
        0.232
    """
    return estimators.maximum_error(width_bins(measured(logits, target, **given), num_bins))


@in_kind
def overconfidence(logits: Array, target: Array, *, num_bins: int = 15, **given: "Unpack[Given]") -> Tensor:
    r"""Part of the ECE that comes from overconfident bins, :math:`\sum_b \frac{n_b}{N} \max(0, C_b - A_b)`.

    Example:
        >>> from calibrant.functional import overconfidence
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> round(overconfidence(logits, target), 4)
        0.232
    """
    return estimators.overconfidence(width_bins(measured(logits, target, **given), num_bins))


@in_kind
def underconfidence(logits: Array, target: Array, *, num_bins: int = 15, **given: "Unpack[Given]") -> Tensor:
    r"""Part of the ECE that comes from underconfident bins, :math:`\sum_b \frac{n_b}{N} \max(0, A_b - C_b)`.

    Example:
        >>> from calibrant.functional import underconfidence
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> round(underconfidence(logits, target), 4)
        0.0
    """
    return estimators.underconfidence(width_bins(measured(logits, target, **given), num_bins))


@in_kind
def adaptive_ece(logits: Array, target: Array, *, num_bins: int = 15, norm: int = 1, **given: "Unpack[Given]") -> Tensor:
    """ECE with equal-mass bins (AdaECE, AECE).

    The edges are those of the papers, the sorted confidences at positions k N / M; unlike in their code, the least confident
    samples count too. Samples of equal confidence share a bin, so there may be fewer bins than requested.

    Example:
        >>> from calibrant.functional import adaptive_ece
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> round(adaptive_ece(logits, target), 4)
        0.232
    """
    one_of("norm", norm, (1, 2))
    whole("num_bins", num_bins, 1)
    return estimators.adaptive_error(ordered(logits, target, **given), num_bins=num_bins, norm=norm)


@in_kind
def debiased_ece(
    logits: Array,
    target: Array,
    *,
    num_bins: int = 15,
    binning: Binning = "mass",
    norm: int = 1,
    **given: "Unpack[Given]",
) -> Tensor:
    """ECE without most of its upward bias (Kumar et al. 2019), at least 0.

    The plug-in ECE of a perfectly calibrated network is not 0, because the accuracies of its bins are noisy. ``norm=2``
    subtracts the variance, ``norm=1`` the expected effect of the noise, in closed form where the authors simulate;
    see :func:`calibrant.metrics.estimators.debiased_estimate`.

    Example:
        >>> from calibrant.functional import debiased_ece
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> round(debiased_ece(logits, target), 4)
        0.2234
    """
    _check_binning(binning)
    one_of("norm", norm, (1, 2))
    whole("num_bins", num_bins, 1)
    outcomes = ordered(logits, target, soft=NO_NOISE, **given)
    return estimators.debiased_sorted_error(outcomes, num_bins=num_bins, binning=binning, norm=norm)


@in_kind
def sweep_ece(logits: Array, target: Array, *, binning: Binning = "mass", norm: int = 1, **given: "Unpack[Given]") -> Tensor:
    """ECE with as many bins as keep accuracy monotonic in confidence (Roelofs et al. 2022).

    AdaFocal's tables match ``norm=1``; the authors' code defaults to 2.

    Example:
        >>> from calibrant.functional import sweep_ece
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> round(sweep_ece(logits, target), 4)
        0.232
    """
    _check_binning(binning)
    one_of("norm", norm, (1, 2))
    return estimators.sweep_error(ordered(logits, target, **given), binning=binning, norm=norm)


@in_kind
def smooth_ece(logits: Array, target: Array, **given: "Unpack[Given]") -> Tensor:
    """Smooth calibration error (smECE, Blasiok and Nakkiran 2024): a kernel that chooses its own width, instead of bins.

    Example:
        >>> from calibrant.functional import smooth_ece
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> round(smooth_ece(logits, target), 4)
        0.232
    """
    return estimators.smooth_error(ordered(logits, target, **given))


def measured(logits: Array, target: Array, *, soft: str | None = None, **given: "Unpack[Given]") -> Outcomes:
    """Outcomes of the samples that are not ignored; there must be at least one.

    ``soft`` says why targets must not be soft, if so.
    """
    outcomes = judged(inputs.for_measuring(logits, target, soft=soft, **given))
    tensors.check_not_empty(len(outcomes.confidence), **given)
    return outcomes


def ordered(logits: Array, target: Array, *, soft: str | None = None, **given: "Unpack[Given]") -> SortedOutcomes:
    """The same, sorted by confidence."""
    return sort_outcomes(measured(logits, target, soft=soft, **given))


def width_bins(outcomes: Outcomes, num_bins: int) -> BinStatistics:
    """Bins of equal width."""
    edges = equal_width_edges(whole("num_bins", num_bins, 1)).to(outcomes.confidence.device)
    return bin_statistics(outcomes.confidence.double(), outcomes.correct, edges)


def _check_binning(binning: Binning) -> Binning:
    checked: Binning = one_of("binning", binning, ("mass", "width"))
    return checked
