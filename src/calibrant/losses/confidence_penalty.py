from typing import Literal, get_args

import torch
from torch import Tensor

from calibrant import tensors
from calibrant.checks import in_range, one_of
from calibrant.losses.base import Loss, with_gradient
from calibrant.tensors import Reduction

ClassReduction = Literal["sum", "mean"]


def confidence_penalty_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: float = 0.1,
    class_reduction: ClassReduction = "sum",
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Explicit confidence penalty (ECP): cross-entropy minus a multiple of the entropy.

    .. math:: -\log s_y - w H(s), \qquad H(s) = -\sum_{k=1}^K s_k \log s_k

    ``class_reduction="sum"`` is the entropy, for which w = 0.1 was chosen (Pereyra et al. 2017). ``"mean"`` divides it by K,
    as the code released with CALS does, which makes the penalty negligible when K is large.

    Example:
        >>> import torch
        >>> from calibrant.functional import confidence_penalty_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(confidence_penalty_loss(logits, target)), 4)
        0.3891
    """
    _check(weight, class_reduction)
    logits, target, kept = tensors.for_training(logits, target, ignore_index)
    if class_reduction == "mean":
        weight = weight / logits.shape[1]
    return tensors.reduce(_with_entropy(logits, target.unsqueeze(1), weight), kept, reduction)


def _check(weight: float, class_reduction: ClassReduction) -> None:
    in_range("weight", weight, 0)
    one_of("class_reduction", class_reduction, get_args(ClassReduction))


def _with_entropy(logits: Tensor, target: Tensor, weight: float) -> Tensor:
    """-log s_y - w H with its gradient (s - onehot_y) + w s (log s + H): two temporaries instead of autograd's six."""
    with torch.no_grad():
        log_s = logits.log_softmax(dim=1)
        s = log_s.exp()
        nll = -log_s.gather(1, target)
        log_s.clamp_(min=-1e4)  # exp(-1e4) is 0, and 0 * log 0 = 0 needs a number
        minus_entropy = (s * log_s).sum(dim=1, keepdim=True)
        values = (nll + weight * minus_entropy).squeeze(1)
        gradient = log_s.sub_(minus_entropy).mul_(weight).add_(1).mul_(s)
        gradient.scatter_add_(1, target, nll.new_full((), -1).expand_as(target))
    return with_gradient(logits, values, gradient)


class ConfidencePenalty(Loss):
    """Explicit confidence penalty (ECP); see :func:`confidence_penalty_loss`.

    Args:
        weight: Weight of the entropy.
        class_reduction: ``"sum"``, the entropy, or ``"mean"``, the entropy divided by the number of classes.
        ignore_index: Label of samples or pixels to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> from calibrant.losses import ConfidencePenalty
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(ConfidencePenalty(weight=0.2)(logits, target)), 4)
        0.2988
    """

    def __init__(
        self,
        *,
        weight: float = 0.1,
        class_reduction: ClassReduction = "sum",
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(ignore_index=ignore_index, reduction=reduction)
        _check(weight, class_reduction)
        self.weight = weight
        self.class_reduction: ClassReduction = class_reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return confidence_penalty_loss(
            logits,
            target,
            weight=self.weight,
            class_reduction=self.class_reduction,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )
