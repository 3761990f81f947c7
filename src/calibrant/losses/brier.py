from torch import Tensor

from calibrant import tensors
from calibrant.losses.base import Loss
from calibrant.tensors import Reduction


def brier_loss(logits: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: Reduction = "mean") -> Tensor:
    r"""Brier loss, summed over classes: :math:`\sum_{k=1}^K (s_k - 1[k = y])^2`, between 0 and 2."""
    logits, target, kept = tensors.batch(logits, target, ignore_index)
    target = target.unsqueeze(1)
    error = logits.softmax(dim=1).scatter_add(1, target, logits.new_full((), -1).expand_as(target))
    return tensors.reduce(error.square().sum(dim=1), kept, reduction)


class Brier(Loss):
    """Brier loss; see :func:`brier_loss`."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return brier_loss(logits, target, ignore_index=self.ignore_index, reduction=self.reduction)
