from torch import Tensor
from torch.nn import functional

from calibrant import tensors
from calibrant.losses.base import Loss
from calibrant.tensors import Reduction


def cross_entropy_loss(logits: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: Reduction = "mean") -> Tensor:
    r"""Cross-entropy, :math:`-\log s_y` with :math:`s = \mathrm{softmax}(l)` (CALS Eq. 1).

    Example:
        >>> import torch
        >>> from calibrant.functional import cross_entropy_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(cross_entropy_loss(logits, target)), 4)
        0.4795
    """
    logits, target, kept = tensors.for_training(logits, target, ignore_index)
    return tensors.reduce(functional.cross_entropy(logits, target, reduction="none"), kept, reduction)


class CrossEntropy(Loss):
    """Cross-entropy; see :func:`cross_entropy_loss`.

    Example:
        >>> import torch
        >>> from calibrant.losses import CrossEntropy
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(CrossEntropy()(logits, target)), 4)
        0.4795
    """

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return cross_entropy_loss(logits, target, ignore_index=self.ignore_index, reduction=self.reduction)
