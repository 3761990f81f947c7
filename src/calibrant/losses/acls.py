from typing import TYPE_CHECKING

from torch import Tensor

from calibrant.checks import in_range
from calibrant.losses.base import Loss, reduce_finite
from calibrant.losses.margin import cross_entropy_with_margin
from calibrant.losses.targets import Options, batch, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options
def acls_loss(
    logits: Tensor,
    target: Tensor,
    *,
    margin: float = 10.0,
    weight: float = 0.1,
    positive: float = 1.0,
    negative: float = 0.1,
    shift_invariant: bool = False,
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Adaptive and conditional label smoothing (ACLS, Park et al. 2023), as released.

    .. math:: -\log s_y + w \left[ \lambda_1 \max(0, l_{\hat y} - m)^2
              + \frac{\lambda_2}{K - 1} \sum_{k \ne \hat y} \max(0, l_{\hat y} - l_k - m)^2 \right],
              \qquad l_{\hat y} = \max_k l_k

    The largest logit is a constant in the gradient of the second penalty. The first one takes it as it is, so adding a
    constant to all logits changes the loss; ``shift_invariant`` replaces it by its distance from the smallest logit,
    which is a constant in the gradient as well. Classes that share the largest logit share its gradient. The penalties
    do not depend on labels: for soft targets q, only the first term changes, to :math:`-\sum_k q_k \log s_k`.

    Example:
        >>> import torch
        >>> from calibrant.functional import acls_loss
        >>> logits, target = torch.tensor([[20.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(acls_loss(logits, target)), 4)
        5.5
    """
    _check(margin, weight, positive, negative)
    given = batch(logits, target, **options)
    largest = given.logits.detach().amax(dim=1, keepdim=True)
    near, far = weight * positive, weight * negative / (given.logits.shape[1] - 1)

    def penalty(distance: Tensor, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
        span = distance.amax(dim=1, keepdim=True) if shift_invariant else largest
        lead = (span - margin).relu()
        excess = distance.sub_(margin).relu_()
        if gradient is not None:
            gradient.sub_(excess, alpha=2 * far)
        value = excess.square_().sum(dim=1, keepdim=True).mul_(far) + near * lead.square()
        return value, 2 * near * lead

    return reduce_finite(cross_entropy_with_margin(given, penalty), given)


def _check(margin: float, weight: float, positive: float, negative: float) -> None:
    in_range("margin", margin, 0)
    in_range("weight", weight, 0)
    in_range("positive", positive, 0)
    in_range("negative", negative, 0)


class ACLS(Loss):
    """Adaptive and conditional label smoothing; see :func:`acls_loss`.

    Args:
        margin: Margin of both penalties.
        weight: Weight of their sum.
        positive: Weight of the penalty on the largest logit.
        negative: Weight of the penalty on the others.
        shift_invariant: Penalise the distance of the largest logit from the smallest, instead of the largest logit itself.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import ACLS
        >>> logits, target = torch.tensor([[20.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(ACLS(margin=15.0)(logits, target)), 4)
        1.4
    """

    @with_options
    def __init__(
        self,
        *,
        margin: float = 10.0,
        weight: float = 0.1,
        positive: float = 1.0,
        negative: float = 0.1,
        shift_invariant: bool = False,
        **options: "Unpack[Options]",
    ) -> None:
        super().__init__(**options)
        _check(margin, weight, positive, negative)
        self.margin, self.weight, self.positive, self.negative = margin, weight, positive, negative
        self.shift_invariant = bool(shift_invariant)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return acls_loss(
            logits,
            target,
            margin=self.margin,
            weight=self.weight,
            positive=self.positive,
            negative=self.negative,
            shift_invariant=self.shift_invariant,
            **self.options,
        )
