from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant.checks import in_range
from calibrant.losses.base import Loss
from calibrant.losses.sorting import largest
from calibrant.losses.targets import Options, batch, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options
def dual_focal_loss(
    logits: Tensor, target: Tensor, *, gamma: float = 5.0, detach: bool = False, **options: "Unpack[Options]"
) -> Tensor:
    r"""Dual focal loss (DFL, Tao et al. 2023): focal loss that also looks at the runner-up.

    .. math:: -(1 - s_y + s_j)^\gamma \log s_y, \qquad s_j = \max\{s_k : s_k < s_y\} \text{, or 0}

    The weight is smaller the further the true class is ahead of the next class below it. The gradient flows through
    :math:`s_y` and :math:`s_j`; with ``detach`` the whole weight is a constant in the gradient. A class with exactly
    the probability of the true one does not count. For soft targets q, the expected loss over labels drawn from q.

    Example:
        >>> import torch
        >>> from calibrant.functional import dual_focal_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(dual_focal_loss(logits, target)), 4)
        0.042
    """
    in_range("gamma", gamma, 0)
    given = batch(logits, target, **options)
    log_s = given.logits.log_softmax(dim=1)
    if given.soft:
        nll, below = -log_s, _next_below_each(log_s)
    else:
        nll, below = _with_next_below(log_s, given.target)
    weight = (below.exp() - torch.expm1(-nll)).clamp(min=torch.finfo(nll.dtype).tiny).pow(gamma)
    values = (weight.detach() if detach else weight) * nll
    return given.reduce(given.expected(values) if given.soft else values)


def _with_next_below(log_s: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """-log s of the labels, and the largest log s below theirs, -infinity if there is none."""
    y = labels.unsqueeze(1)
    with torch.no_grad():
        # -1 / (log s_k - log s_y) is largest for the nearest below, negative above, and -infinity for y itself. Selecting
        # those below takes several times as long on CPUs.
        nearness = (log_s - log_s.gather(1, y)).reciprocal_().neg_()
        j = largest(nearness).unsqueeze(1)
        some = nearness.amax(dim=1) > 0
    own, below = log_s.gather(1, torch.cat([y, j], dim=1)).unbind(1)
    return -own, torch.where(some, below, -torch.inf)


def _next_below_each(log_s: Tensor) -> Tensor:
    """For each class, the largest log s below its own, -infinity if there is none."""
    ordered, order = log_s.sort(dim=1)
    place = torch.arange(log_s.shape[1], device=log_s.device).view(-1, *[1] * (log_s.dim() - 2)).expand_as(log_s)
    rises = torch.cat([torch.zeros_like(order[:, :1], dtype=torch.bool), ordered[:, 1:] > ordered[:, :-1]], dim=1)
    first = torch.where(rises, place, 0).cummax(dim=1).values  # of the classes with the same probability
    below = ordered.gather(1, (first - 1).clamp(min=0)).where(first > 0, -torch.inf)
    return torch.empty_like(below).scatter(1, order, below)


class DualFocal(Loss):
    """Dual focal loss (DFL); see :func:`dual_focal_loss`.

    Args:
        gamma: Exponent; 0 gives cross-entropy. The authors chose 5 for ResNet-50 on CIFAR, 2.3 on Tiny-ImageNet.
        detach: Treat the weight as a constant in the gradient.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import DualFocal
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(DualFocal(gamma=2.0)(logits, target)), 4)
        0.1799
    """

    @with_options
    def __init__(self, *, gamma: float = 5.0, detach: bool = False, **options: "Unpack[Options]") -> None:
        super().__init__(**options)
        self.gamma = in_range("gamma", gamma, 0)
        self.detach = bool(detach)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return dual_focal_loss(logits, target, gamma=self.gamma, detach=self.detach, **self.options)
