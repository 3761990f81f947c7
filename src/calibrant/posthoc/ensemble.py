"""Ensemble temperature scaling."""

from typing import ClassVar

import torch
from torch import Tensor

from calibrant.posthoc.base import Pointwise, rows
from calibrant.posthoc.temperature import optimal_temperature
from calibrant.tensors import Samples


class EnsembleTemperatureScaling(Pointwise):
    r"""Mix the scaled softmax with the plain one and the uniform distribution: :math:`w_1 s(l / T) + w_2 s(l) + w_3 / K`.

    T is that of temperature scaling; the weights, non-negative and summing to 1, then minimise the NLL, a convex problem
    solved by expectation maximisation (Zhang et al., ICML 2020).

    Example:
        >>> from calibrant.posthoc import EnsembleTemperatureScaling
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> calibrator = EnsembleTemperatureScaling().fit(logits, target)
        >>> round(calibrator.predict_proba([[4.0, 0.0]])[0][0], 2)
        0.75
    """

    key = "ets"
    preserves_accuracy = True
    learned: ClassVar[tuple[str, ...]] = ("temperature_", "weights_")
    temperature_: Tensor
    weights_: Tensor

    def _fit(self, samples: Samples) -> None:
        logits, target = rows(samples)
        temperature = optimal_temperature(samples)
        columns = [(logits / t).log_softmax(dim=1).gather(1, target[:, None]).exp().double() for t in (temperature, 1.0)]
        likelihood = torch.cat([*columns, torch.full_like(columns[0], 1 / logits.shape[1])], dim=1)
        weights = torch.tensor([0.9, 0.05, 0.05], dtype=torch.float64, device=logits.device)
        for _ in range(2000):
            share = likelihood * weights
            new = (share / share.sum(dim=1, keepdim=True)).mean(dim=0)
            moved = float((new - weights).abs().max())
            weights = new
            if moved < 1e-9:
                break
        # EM approaches a weight of 0 very slowly: check whether 0 itself is better.
        candidates = [weights, *torch.eye(3, dtype=torch.float64, device=weights.device)[:2]]
        self.weights_ = max(candidates, key=lambda w: float((likelihood @ w).log().mean()))
        self.temperature_ = torch.tensor(temperature, dtype=torch.float64, device=logits.device)

    def _log_probs(self, logits: Tensor) -> Tensor:
        weights = self.weights_.to(logits.dtype)
        parts = [
            (logits / self.temperature_.to(logits.dtype)).log_softmax(dim=-1) + weights[0].log(),
            logits.log_softmax(dim=-1) + weights[1].log(),
            (weights[2] / logits.shape[-1]).log().expand(logits.shape),
        ]
        return torch.stack(parts).logsumexp(dim=0)
