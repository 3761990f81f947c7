"""Selective prediction: how often are the predictions one would act on wrong?"""

from torch import Tensor

from calibrant.checks import in_range
from calibrant.metrics import estimators
from calibrant.metrics.calibration import ordered


def aurc(logits: Tensor, target: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Area under the risk-coverage curve: mean error rate of the n most confident samples, n = 1 .. N."""
    return estimators.area_under_risk_coverage(ordered(logits, target, ignore_index))


def coverage_at_risk(logits: Tensor, target: Tensor, *, risk: float = 0.05, ignore_index: int = -100) -> Tensor:
    """Largest fraction of the samples, taken by descending confidence, whose error rate is at most ``risk``.

    Samples of equal confidence are accepted together or not at all.
    """
    in_range("risk", risk, 0, 1)
    return estimators.coverage_at_risk(ordered(logits, target, ignore_index), risk=risk)
