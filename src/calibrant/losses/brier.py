import torch
from torch import Tensor

from calibrant import tensors
from calibrant.losses.base import Loss, with_gradient
from calibrant.tensors import Reduction


def brier_loss(logits: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: Reduction = "mean") -> Tensor:
    r"""Brier loss, summed over classes: :math:`\sum_{k=1}^K (s_k - 1[k = y])^2`, between 0 and 2.

    Example:
        >>> import torch
        >>> from calibrant.functional import brier_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(brier_loss(logits, target)), 4)
        0.2248
    """
    logits, target, kept = tensors.for_training(logits, target, ignore_index)
    return tensors.reduce(_brier(logits, target.unsqueeze(1)), kept, reduction)


def _brier(logits: Tensor, target: Tensor) -> Tensor:
    """Values with their gradient 2 s (e - <s, e>), e = s - onehot_y: three temporaries instead of autograd's five."""
    with torch.no_grad():
        s = logits.softmax(dim=1)
        error = s.scatter_add(1, target, s.new_full((), -1).expand_as(target))
        values = error.square().sum(dim=1)
        gradient = error.sub_((s * error).sum(dim=1, keepdim=True)).mul_(s).mul_(2)
    return with_gradient(logits, values, gradient)


class Brier(Loss):
    """Brier loss; see :func:`brier_loss`.

    Example:
        >>> import torch
        >>> from calibrant.losses import Brier
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(Brier()(logits, target)), 4)
        0.2248
    """

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return brier_loss(logits, target, ignore_index=self.ignore_index, reduction=self.reduction)
