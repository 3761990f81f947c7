from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from calibrant.checks import in_range, one_of
from calibrant.losses.base import Loss, with_gradient
from calibrant.losses.targets import Batch, Options, batch, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

ClassReduction = Literal["sum", "mean"]


@with_options
def confidence_penalty_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: float = 0.1,
    class_reduction: ClassReduction = "sum",
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Explicit confidence penalty (ECP): cross-entropy minus a multiple of the entropy.

    .. math:: -\log s_y - w H(s), \qquad H(s) = -\sum_{k=1}^K s_k \log s_k

    ``class_reduction="sum"`` is the entropy, for which w = 0.1 was chosen (Pereyra et al. 2017). ``"mean"`` divides it by K,
    as the code released with CALS does, which makes the penalty negligible when K is large. For soft targets q,
    the first term becomes :math:`-\sum_k q_k \log s_k`.

    Example:
        >>> import torch
        >>> from calibrant.functional import confidence_penalty_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(confidence_penalty_loss(logits, target)), 4)
        0.3891
    """
    _check(weight, class_reduction)
    given = batch(logits, target, **options)
    if class_reduction == "mean":
        weight = weight / given.logits.shape[1]
    return given.reduce(_with_entropy(given, weight))


def _check(weight: float, class_reduction: ClassReduction) -> None:
    in_range("weight", weight, 0)
    one_of("class_reduction", class_reduction, get_args(ClassReduction))


def _with_entropy(given: Batch, weight: float) -> Tensor:
    """-log s_y - w H with its gradient (s - onehot_y) + w s (log s + H): two temporaries instead of autograd's six."""
    logits, mass = given.logits, given.mass
    with torch.no_grad():
        log_s = logits.log_softmax(dim=1)
        s = log_s.exp()
        nll = -given.expected(log_s).unsqueeze(1)
        log_s.clamp_(min=-1e4)  # exp(-1e4) is 0, and 0 * log 0 = 0 needs a number
        minus_entropy = (s * log_s).sum(dim=1, keepdim=True)
        values = (nll + weight * mass * minus_entropy).squeeze(1)
        gradient = log_s.sub_(minus_entropy).mul_(weight * mass).mul_(s)
        gradient.add_(given.minus_target(s))
    return with_gradient(logits, values, gradient)


class ConfidencePenalty(Loss):
    """Explicit confidence penalty (ECP); see :func:`confidence_penalty_loss`.

    Args:
        weight: Weight of the entropy.
        class_reduction: ``"sum"``, the entropy, or ``"mean"``, the entropy divided by the number of classes.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import ConfidencePenalty
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(ConfidencePenalty(weight=0.2)(logits, target)), 4)
        0.2988
    """

    @with_options
    def __init__(
        self,
        *,
        weight: float = 0.1,
        class_reduction: ClassReduction = "sum",
        **options: "Unpack[Options]",
    ) -> None:
        super().__init__(**options)
        _check(weight, class_reduction)
        self.weight = weight
        self.class_reduction: ClassReduction = class_reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return confidence_penalty_loss(
            logits, target, weight=self.weight, class_reduction=self.class_reduction, **self.options
        )
