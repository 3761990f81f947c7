from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant.checks import in_range
from calibrant.losses.base import Loss
from calibrant.losses.targets import Options, batch, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options
def bsce_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 2.0,
    norm: float = 2,
    detach: bool = True,
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Cross-entropy weighted by the distance of the prediction from the label (BSCE, Lin et al. 2025).

    .. math:: -\left\| s - e_y \right\|_q^\gamma \log s_y, \qquad e_y \text{ the one-hot label}

    With q = 2 and :math:`\gamma` = 2 the weight is the Brier score. With q = 1 the distance is :math:`2 (1 - s_y)`, and the
    loss is nothing but :math:`2^\gamma` times the focal loss. With ``detach``, the weight is a constant in the
    gradient (BSCE-GRA, the authors' choice): it then weights gradients instead of the loss. For soft targets q, the
    expected loss over labels drawn from q.

    Example:
        >>> import torch
        >>> from calibrant.functional import bsce_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(bsce_loss(logits, target)), 4)
        0.111
    """
    _check(gamma, norm)
    given = batch(logits, target, **options)
    with torch.no_grad() if detach else nullcontext():
        powers = given.logits.softmax(dim=1).pow(norm).sum(dim=1, keepdim=given.soft)

    def weighted(nll: Tensor) -> Tensor:
        log_s = -nll.detach() if detach else -nll
        others = (powers - (norm * log_s).exp()).clamp(min=0)
        # 1 - s from log s, which is exact near 1; a root at 0 has no derivative.
        distance = (-torch.expm1(log_s)).pow(norm) + others
        return distance.clamp(min=torch.finfo(nll.dtype).tiny).pow(gamma / norm) * nll

    return given.reduce(given.of_true_class(weighted))


def _check(gamma: float, norm: float) -> None:
    in_range("gamma", gamma, 0)
    in_range("norm", norm, 1)


class BSCE(Loss):
    """Brier-score-weighted cross-entropy (BSCE, by default BSCE-GRA); see :func:`bsce_loss`.

    Args:
        gamma: Exponent of the distance; 0 gives cross-entropy.
        norm: Order q of the norm that measures the distance.
        detach: Treat the weight as a constant in the gradient: BSCE-GRA; False is BSCE.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import BSCE
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(BSCE(gamma=1.0)(logits, target)), 4)
        0.2296
    """

    @with_options
    def __init__(self, *, gamma: float = 2.0, norm: float = 2, detach: bool = True, **options: "Unpack[Options]") -> None:
        super().__init__(**options)
        _check(gamma, norm)
        self.gamma, self.norm = gamma, norm
        self.detach = bool(detach)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return bsce_loss(logits, target, gamma=self.gamma, norm=self.norm, detach=self.detach, **self.options)
