from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant.losses.base import Loss, with_gradient
from calibrant.losses.targets import Batch, Options, batch, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options
def brier_loss(logits: Tensor, target: Tensor, **options: "Unpack[Options]") -> Tensor:
    r"""Brier loss, summed over classes: :math:`\sum_{k=1}^K (s_k - 1[k = y])^2`, between 0 and 2.

    For soft targets q, the expected loss: :math:`\sum_k (s_k - q_k)^2 + 1 - \sum_k q_k^2`.

    Example:
        >>> import torch
        >>> from calibrant.functional import brier_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(brier_loss(logits, target)), 4)
        0.2248
    """
    given = batch(logits, target, **options)
    return given.reduce(_brier(given))


def _brier(given: Batch) -> Tensor:
    """Values with their gradient 2 s (e - <s, e>), e = s - onehot_y: three temporaries instead of autograd's five."""
    logits = given.logits
    with torch.no_grad():
        s = logits.softmax(dim=1)
        error = given.minus_target(s.clone())
        if given.soft:  # the sum of q_y |s - onehot_y|^2 = |s|^2 - 2 s_y + 1 over y
            values = (given.mass * (s.square().sum(dim=1, keepdim=True) + 1)).squeeze(1) - 2 * (given.target * s).sum(dim=1)
        else:
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
        return brier_loss(logits, target, **self.options)
