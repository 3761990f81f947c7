"""Calibrators that are mixed with the network's own probabilities where they would do harm on their own."""

import warnings
from abc import abstractmethod

import torch
from torch import Tensor

from calibrant.posthoc.base import Pointwise, own_log_probs
from calibrant.tensors import Samples


class Mixed(Pointwise):
    """A calibrator whose family of maps does not contain the identity.

    For a network that is already calibrated, such a map can worsen even the predictions it was fitted on. It is then mixed
    with the network's own probabilities, with the weight that minimises the NLL, a convex problem, and a warning is issued.

    Attributes:
        share_: Weight of the map where it is mixed, else None.
    """

    share_: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("share_", None)

    @abstractmethod
    def _learn(self, samples: Samples) -> None:
        """Learn the map itself."""

    def _fit(self, samples: Samples) -> None:
        self.share_ = None
        self._learn(samples)
        before = own_log_probs(samples, lambda logits: logits.log_softmax(dim=1))
        after = own_log_probs(samples, self._map)
        if not float(after.mean()) < float(before.mean()) - 1e-9:
            return
        share = _best_share(before, after)
        self.share_ = torch.tensor(share, dtype=torch.float64, device=samples.logits.device)
        change = f"(NLL {-float(before.mean()):.4f} to {-float(after.mean()):.4f})"
        warnings.warn(
            f"{type(self).__name__} alone would make the predictions it was fitted on worse {change}; "
            f"it is mixed with the network's own probabilities, its share is {share:.2f}",
            UserWarning,
            stacklevel=4,
        )

    def _calibrate(self, logits: Tensor) -> Tensor:
        result = super()._calibrate(logits)
        if self.share_ is None:
            return result
        share = self.share_.to(result.dtype)
        return torch.logaddexp(result + share.log(), logits.log_softmax(dim=1) + torch.log1p(-share))

    def _prepare_to_load(self, state: dict[str, Tensor]) -> None:
        super()._prepare_to_load(state)
        self.share_ = torch.empty_like(state["share_"]) if "share_" in state else None


def _best_share(before: Tensor, after: Tensor) -> float:
    """The weight w at which the mean of log((1 - w) p + w q) is largest, from log p and log q: a root of its slope."""
    ratio = (after - before).exp() - 1
    if float(ratio.mean()) <= 0:  # the slope at 0: any share makes it worse
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if float((ratio / (1 + middle * ratio)).mean()) > 0 else (low, middle)
    return low
