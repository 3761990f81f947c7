"""Selective prediction: how often are the predictions one would act on wrong?"""

from typing import TYPE_CHECKING

from torch import Tensor

from calibrant import inputs, tensors
from calibrant.checks import in_range
from calibrant.inputs import Array, Given, in_kind
from calibrant.metrics import estimators
from calibrant.metrics.estimators import SortedOutcomes, sort_outcomes
from calibrant.outcomes import top_label

if TYPE_CHECKING:
    from typing_extensions import Unpack


@in_kind
def aurc(logits: Array, target: Array, **given: "Unpack[Given]") -> Tensor:
    """Area under the risk-coverage curve: mean error rate of the n most confident samples, n = 1 .. N.

    Example:
        >>> from calibrant.functional import aurc
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> round(aurc(logits, target), 4)
        0.25
    """
    return estimators.area_under_risk_coverage(by_confidence(logits, target, **given))


@in_kind
def coverage_at_risk(logits: Array, target: Array, *, risk: float = 0.05, **given: "Unpack[Given]") -> Tensor:
    """Largest fraction of the samples, taken by descending confidence, whose error rate is at most ``risk``.

    Samples of equal confidence are accepted together or not at all.

    Example:
        >>> from calibrant.functional import coverage_at_risk
        >>> logits, target = [[4.0, 0.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]], [0, 0, 0, 1]
        >>> coverage_at_risk(logits, target, risk=0.1)
        0.75
    """
    in_range("risk", risk, 0, 1)
    return estimators.coverage_at_risk(by_confidence(logits, target, **given), risk=risk)


def by_confidence(logits: Array, target: Array, **given: "Unpack[Given]") -> SortedOutcomes:
    """Outcomes of the predicted class, also of events: one acts on what is more probable."""
    samples = inputs.for_measuring(logits, target, soft=None, **given)
    tensors.check_not_empty(int(samples.kept.sum()), **given)
    return sort_outcomes(top_label(samples))
