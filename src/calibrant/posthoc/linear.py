"""Calibrators that are linear in the logits: vector, matrix and Dirichlet scaling."""

import warnings
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from calibrant.checks import in_range
from calibrant.posthoc.base import Pointwise, rows
from calibrant.posthoc.temperature import optimal_temperature
from calibrant.tensors import Samples

#: Elements of logits processed at once while fitting, in float64.
CHUNK = 2**22


class VectorScaling(Pointwise):
    r"""A weight and an intercept for each class: :math:`\log \mathrm{softmax}(w \odot l + b)` (Guo et al., ICML 2017).

    Args:
        intercept: Weight of the penalty :math:`\frac1K \sum_k b_k^2`.

    Example:
        >>> from calibrant.posthoc import VectorScaling
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> calibrator = VectorScaling().fit(logits, target)
        >>> round(calibrator.predict_proba([[4.0, 0.0]])[0][0], 2)
        0.75
    """

    key = "vector"
    soft = True
    learned: ClassVar[tuple[str, ...]] = ("weight_", "bias_")
    weight_: Tensor
    bias_: Tensor

    def __init__(self, *, intercept: float = 0.0) -> None:
        super().__init__()
        self.intercept = in_range("intercept", intercept, 0)

    def _fit(self, samples: Samples) -> None:
        logits, target = rows(samples)
        beta = _sharpness(samples)
        start = torch.full((logits.shape[1],), beta, dtype=torch.float64, device=logits.device)
        self.weight_, self.bias_ = minimise(
            [start, torch.zeros_like(start)],
            lambda part, w, b: part * w + b,
            lambda w, b: self.intercept * b.square().mean(),  # noqa: ARG005
            logits,
            target,
            curvature=curvature(lambda part: part, logits, beta),
        )

    def _log_probs(self, logits: Tensor) -> Tensor:
        return (logits * self.weight_.to(logits.dtype) + self.bias_.to(logits.dtype)).log_softmax(dim=-1)


class MatrixScaling(Pointwise):
    r"""A full linear map: :math:`\log \mathrm{softmax}(W l + b)` (Guo et al., ICML 2017).

    The off-diagonal and intercept regularisation (ODIR, Kull et al., NeurIPS 2019) is :math:`\frac{\lambda}{K (K - 1)}
    \sum_{i \ne j} W_{ij}^2 + \frac{\mu}{K} \sum_i b_i^2`.

    Args:
        off_diagonal: :math:`\lambda`.
        intercept: :math:`\mu`.

    Example:
        >>> from calibrant.posthoc import MatrixScaling
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> calibrator = MatrixScaling().fit(logits, target)
        >>> round(calibrator.predict_proba([[4.0, 0.0]])[0][0], 2)
        0.75
    """

    key = "matrix"
    soft = True
    learned: ClassVar[tuple[str, ...]] = ("weight_", "bias_")
    weight_: Tensor
    bias_: Tensor

    def __init__(self, *, off_diagonal: float = 10.0, intercept: float = 1.0) -> None:
        super().__init__()
        self.off_diagonal = in_range("off_diagonal", off_diagonal, 0)
        self.intercept = in_range("intercept", intercept, 0)

    def _features(self, logits: Tensor) -> Tensor:
        return logits

    def _fit(self, samples: Samples) -> None:
        logits, target = rows(samples)
        classes = logits.shape[1]
        if len(logits) < classes * (classes + 1):
            warnings.warn(
                f"{type(self).__name__} fits {classes * (classes + 1):,} parameters to {len(logits):,} samples; it will "
                "overfit unless off_diagonal is large; temperature or vector scaling needs less data",
                UserWarning,
                stacklevel=4,
            )
        beta = _sharpness(samples)
        diagonal = torch.eye(classes, dtype=torch.float64, device=logits.device)
        beside = 1 - diagonal

        def penalty(weight: Tensor, bias: Tensor) -> Tensor:
            squares = (weight * beside).square().sum() / (classes * (classes - 1))
            return self.off_diagonal * squares + self.intercept * bias.square().mean()

        self.weight_, self.bias_ = minimise(
            [beta * diagonal, torch.zeros_like(diagonal[0])],
            lambda part, w, b: functional.linear(self._features(part), w, b),
            penalty,
            logits,
            target,
            curvature=curvature(self._features, logits, beta, matrix=True),
        )

    def _log_probs(self, logits: Tensor) -> Tensor:
        weight, bias = self.weight_.to(logits.dtype), self.bias_.to(logits.dtype)
        return functional.linear(self._features(logits), weight, bias).log_softmax(dim=-1)


class DirichletCalibration(MatrixScaling):
    r"""Matrix scaling of log-probabilities, :math:`\log \mathrm{softmax}(W \log s(l) + b)` (Kull et al., NeurIPS 2019).

    The probabilities are assumed to be Dirichlet distributed in each class. Regularised like matrix scaling.

    Args:
        off_diagonal: :math:`\lambda`.
        intercept: :math:`\mu`.

    Example:
        >>> from calibrant.posthoc import DirichletCalibration
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> calibrator = DirichletCalibration().fit(logits, target)
        >>> round(calibrator.predict_proba([[4.0, 0.0]])[0][0], 2)
        0.75
    """

    key = "dirichlet"

    def _features(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(dim=-1)


def _sharpness(samples: Samples) -> float:
    """1/T for the temperature T that minimises the NLL, at most 1: where a fit starts.

    At T = 1, a network that is far too sure has no curvature left, in double precision either.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return min(1.0, 1 / optimal_temperature(samples))


def curvature(
    features: Callable[[Tensor], Tensor], logits: Tensor, beta: float = 1.0, *, matrix: bool = False
) -> list[Tensor]:
    """Second derivatives of the mean NLL of softmax(w x + b) in each weight and intercept, at w = beta and b = 0.

    They are means of s_i (1 - s_i) x_j^2 and s_i (1 - s_i).
    """
    size, classes = logits.shape
    weights = torch.zeros((classes, classes) if matrix else (classes,), dtype=torch.float64, device=logits.device)
    intercepts = torch.zeros(classes, dtype=torch.float64, device=logits.device)
    for part in logits.split(max(1, CHUNK // classes)):
        x = features(part.double())
        s = (beta * x).softmax(dim=1)
        variance = s - s.square()
        weights += variance.T @ x.square() if matrix else (variance * x.square()).sum(dim=0)
        intercepts += variance.sum(dim=0)
    return [weights / size, intercepts / size]


def minimise(
    start: list[Tensor],
    scores: Callable[..., Tensor],
    penalty: Callable[..., Tensor] | None,
    logits: Tensor,
    target: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    *,
    curvature: list[Tensor] | None = None,
) -> list[Tensor]:
    """Minimise NLL plus penalty, in float64, by L-BFGS with a strong Wolfe line search.

    Args:
        start: Initial parameters.
        scores: Maps a chunk of the logits and the parameters to new logits.
        penalty: Penalty on the parameters, if any.
        logits: ``(n, K)``.
        target: ``(n,)``.
        loss: Sum over a chunk's samples, from scores and labels; cross-entropy by default.
        curvature: Second derivatives in each parameter at the start, roughly; parameters in their units need far fewer
            steps.
    """
    given = curvature or [torch.ones_like(value) for value in start]
    units = [h.clamp(min=max(1e-12, 1e-6 * float(h.max()))).rsqrt() for h in given]
    parameters = [torch.zeros_like(value).requires_grad_() for value in start]
    step = max(1, CHUNK // logits.shape[1])
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=500,
        max_eval=1000,
        history_size=20,
        tolerance_grad=1e-9,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def values() -> list[Tensor]:
        return [origin + unit * number for origin, unit, number in zip(start, units, parameters, strict=True)]

    def closure() -> float:
        optimizer.zero_grad()
        total = 0.0
        if penalty is not None:
            value = penalty(*values())
            value.backward()
            total = float(value.detach())
        for part, labels in zip(logits.split(step), target.split(step), strict=True):
            z = scores(part.double(), *values())
            wanted = labels.double() if labels.is_floating_point() else labels  # soft targets or labels
            nll = functional.cross_entropy(z, wanted, reduction="sum") if loss is None else loss(z, labels)
            nll = nll / len(logits)
            nll.backward()
            total += float(nll.detach())
        return total

    with torch.enable_grad():
        optimizer.step(closure)
    return [value.detach() for value in values()]
