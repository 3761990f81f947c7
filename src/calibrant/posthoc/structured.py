"""Structured scaling: vector and matrix scaling with penalties that need no tuning."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from calibrant.checks import in_range
from calibrant.posthoc.base import Pointwise, rows
from calibrant.posthoc.linear import curvature, minimise
from calibrant.posthoc.temperature import optimal_temperature
from calibrant.tensors import Samples


class StructuredVectorScaling(Pointwise):
    r"""Vector scaling after temperature scaling, kept close to it by penalties (SVS; Berta et al., AISTATS 2026).

    With n samples, the temperature T that minimises the NLL, and a share of the uniform distribution that keeps all
    probabilities positive, :math:`x = \log\big((1 - \frac1{n + 1})\, s(l / T) + \frac1{(n + 1) K}\big)`. Then
    :math:`\mathrm{softmax}(v \odot x + b)` minimises the mean NLL plus
    :math:`\frac{K^\rho}{n^\tau} (\lambda_b \|b\|^2 + \lambda_d \|v - 1\|^2)`, a convex problem, solved in float64. The
    fewer samples per class there are, the closer it stays to temperature scaling.

    Args:
        intercept: :math:`\lambda_b`.
        diagonal: :math:`\lambda_d`.
        rho: Power of the number of classes.
        tau: Power of the number of samples.

    Example:
        >>> from calibrant.posthoc import StructuredVectorScaling
        >>> logits, target = [[4.0, 0.0]] * 80, [0] * 60 + [1] * 20  # 98% confident, correct in 60 of 80 cases
        >>> calibrator = StructuredVectorScaling().fit(logits, target)
        >>> round(calibrator.predict_proba([[4.0, 0.0]])[0][0], 2)
        0.75
    """

    key = "svs"
    learned: ClassVar[tuple[str, ...]] = ("temperature_", "uniform_", "weight_", "bias_")
    temperature_: Tensor
    uniform_: Tensor
    weight_: Tensor
    bias_: Tensor

    def __init__(self, *, intercept: float = 1.0, diagonal: float = 1.0, rho: float = 1.0, tau: float = 1.0) -> None:
        super().__init__()
        self.intercept = in_range("intercept", intercept, 0)
        self.diagonal = in_range("diagonal", diagonal, 0)
        self.rho, self.tau = in_range("rho", rho, 0), in_range("tau", tau, 0)

    def _fit(self, samples: Samples) -> None:
        logits, target = rows(samples)
        size, classes = logits.shape
        self.temperature_ = logits.new_tensor(optimal_temperature(samples), dtype=torch.float64)
        self.uniform_ = logits.new_tensor(1 / (size + 1), dtype=torch.float64)
        start = self._start(classes).to(logits.device)

        bias = torch.zeros(classes, dtype=torch.float64, device=logits.device)
        on_weights = self._strengths(start, size)
        on_bias = self._strength(self.intercept, classes, size)

        def penalty(weight: Tensor, bias: Tensor) -> Tensor:
            return (on_weights * (weight - start).square()).sum() + on_bias * bias.square().sum()

        in_weights, in_bias = curvature(self._features, logits, matrix=start.dim() == 2)
        self.weight_, self.bias_ = minimise(
            [start, bias],
            lambda part, *x: self._scores(self._features(part), *x),
            penalty,
            logits,
            target,
            curvature=[in_weights + 2 * on_weights, in_bias + 2 * on_bias],
        )

    def _features(self, logits: Tensor) -> Tensor:
        """X."""
        share = self.uniform_.to(logits.dtype)
        scaled = (logits / self.temperature_.to(logits.dtype)).log_softmax(dim=-1)
        return torch.logaddexp(torch.log1p(-share) + scaled, (share / logits.shape[-1]).log())

    def _start(self, classes: int) -> Tensor:
        return torch.ones(classes, dtype=torch.float64)

    def _strengths(self, start: Tensor, size: int) -> Tensor:
        """Weight of the penalty on each weight."""
        return torch.full_like(start, self._strength(self.diagonal, len(start), size))

    def _strength(self, weight: float, parameters: int, size: int) -> float:
        return float(weight * parameters**self.rho / size**self.tau)

    def _scores(self, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return features * weight + bias

    def _log_probs(self, logits: Tensor) -> Tensor:
        weight, bias = self.weight_.to(logits.dtype), self.bias_.to(logits.dtype)
        return self._scores(self._features(logits), weight, bias).log_softmax(dim=-1)


class StructuredMatrixScaling(StructuredVectorScaling):
    r"""The same with a full matrix (SMS): :math:`\mathrm{softmax}(W x + b)`.

    Entries off the diagonal have the penalty :math:`\lambda_o \frac{(K (K - 1))^\rho}{n^\tau} \sum_{i \ne j} W_{ij}^2`.

    Args:
        off_diagonal: :math:`\lambda_o`.
        intercept: :math:`\lambda_b`.
        diagonal: :math:`\lambda_d`.
        rho: Power of the number of classes.
        tau: Power of the number of samples.

    Example:
        >>> from calibrant.posthoc import StructuredMatrixScaling
        >>> logits, target = [[4.0, 0.0]] * 80, [0] * 60 + [1] * 20  # 98% confident, correct in 60 of 80 cases
        >>> calibrator = StructuredMatrixScaling().fit(logits, target)
        >>> round(calibrator.predict_proba([[4.0, 0.0]])[0][0], 2)
        0.75
    """

    key = "sms"

    def __init__(
        self,
        *,
        off_diagonal: float = 1.0,
        intercept: float = 1.0,
        diagonal: float = 1.0,
        rho: float = 1.0,
        tau: float = 1.0,
    ) -> None:
        super().__init__(intercept=intercept, diagonal=diagonal, rho=rho, tau=tau)
        self.off_diagonal = in_range("off_diagonal", off_diagonal, 0)

    def _start(self, classes: int) -> Tensor:
        return torch.eye(classes, dtype=torch.float64)

    def _strengths(self, start: Tensor, size: int) -> Tensor:
        classes = len(start)
        off = self._strength(self.off_diagonal, classes * (classes - 1), size)
        return torch.where(start == 1, self._strength(self.diagonal, classes, size), off)

    def _scores(self, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.linear(features, weight, bias)
