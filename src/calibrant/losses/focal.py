from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant.checks import in_range
from calibrant.losses.base import Loss
from calibrant.losses.targets import Options, batch, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


def modulate(nll: Tensor, gamma: Tensor | float, *, detach: bool = False) -> Tensor:
    r"""Focal term :math:`-(1 - p)^\gamma \log p` from ``nll`` :math:`= -\log p`.

    ``gamma`` is a number, or a tensor with one value per sample; for negative values the term is the inverse focal one,
    :math:`-(1 + p)^{|\gamma|} \log p`. The gradient flows through p, not through gamma; with ``detach``, the weight of
    :math:`-\log p` is a constant.
    """
    log_p = -nll.detach() if detach else -nll
    # Where p rounds to 1 the derivative of (1 - p)^gamma is infinite for gamma < 1, times log p = 0: keep it finite.
    focal = -torch.expm1(log_p).clamp(max=-torch.finfo(nll.dtype).tiny)
    if not isinstance(gamma, Tensor):  # as a tensor, a number would have to be copied to the device
        return focal.pow(gamma) * nll
    return torch.where(gamma < 0, 1 + torch.exp(log_p), focal).pow(gamma.abs()) * nll


@with_options
def focal_loss(
    logits: Tensor, target: Tensor, *, gamma: float = 3.0, detach: bool = False, **options: "Unpack[Options]"
) -> Tensor:
    r"""Focal loss (FL): :math:`-(1 - p)^\gamma \log p` with :math:`p = s_y`, the probability of the true class.

    For soft targets q, the expected loss: :math:`-\sum_k q_k (1 - s_k)^\gamma \log s_k`. With ``detach``, the weight
    :math:`(1 - p)^\gamma` is a constant in the gradient.

    Example:
        >>> import torch
        >>> from calibrant.functional import focal_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(focal_loss(logits, target)), 4)
        0.0286
    """
    in_range("gamma", gamma, 0)
    given = batch(logits, target, **options)
    return given.reduce(given.of_true_class(lambda nll: modulate(nll, gamma, detach=detach)))


@with_options
def focal_sd_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 3.0,
    gamma_hard: float = 5.0,
    threshold: float = 0.2,
    detach: bool = False,
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Sample-dependent focal loss (FLSD): ``gamma_hard`` where :math:`s_y` < ``threshold``, ``gamma`` elsewhere.

    For soft targets, the expected loss, and ``detach``, as in :func:`focal_loss`.

    The defaults are FLSD-53 of Mukhoti et al. (2020): 5 for :math:`s_y \in [0, 0.2)`, 3 for :math:`s_y \in [0.2, 1]`.

    Example:
        >>> import torch
        >>> from calibrant.functional import focal_sd_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(focal_sd_loss(logits, target)), 4)
        0.0286
    """
    _check_sample_dependent(gamma, gamma_hard, threshold)
    given = batch(logits, target, **options)

    def focal(nll: Tensor) -> Tensor:
        hard = torch.exp(-nll.detach()) < threshold
        return modulate(nll, torch.where(hard, nll.new_full((), gamma_hard), gamma), detach=detach)

    return given.reduce(given.of_true_class(focal))


def _check_sample_dependent(gamma: float, gamma_hard: float, threshold: float) -> None:
    in_range("gamma", gamma, 0)
    in_range("gamma_hard", gamma_hard, 0)
    in_range("threshold", threshold, 0, 1)


class Focal(Loss):
    """Focal loss (FL); see :func:`focal_loss`.

    Args:
        gamma: Exponent; 0 gives cross-entropy.
        detach: Treat the weight of the cross-entropy as a constant in the gradient.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import Focal
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(Focal(gamma=2.0)(logits, target)), 4)
        0.0724
    """

    @with_options
    def __init__(self, *, gamma: float = 3.0, detach: bool = False, **options: "Unpack[Options]") -> None:
        super().__init__(**options)
        self.gamma = in_range("gamma", gamma, 0)
        self.detach = bool(detach)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return focal_loss(logits, target, gamma=self.gamma, detach=self.detach, **self.options)


class FocalSD(Loss):
    """Sample-dependent focal loss (FLSD, by default FLSD-53); see :func:`focal_sd_loss`.

    Args:
        gamma: Exponent for samples whose true-class probability is at least ``threshold``.
        gamma_hard: Exponent for the others.
        threshold: Probability that separates them.
        detach: Treat the weight of the cross-entropy as a constant in the gradient.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import FocalSD
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(FocalSD()(logits, target)), 4)
        0.0286
    """

    @with_options
    def __init__(
        self,
        *,
        gamma: float = 3.0,
        gamma_hard: float = 5.0,
        threshold: float = 0.2,
        detach: bool = False,
        **options: "Unpack[Options]",
    ) -> None:
        super().__init__(**options)
        _check_sample_dependent(gamma, gamma_hard, threshold)
        self.gamma, self.gamma_hard, self.threshold = gamma, gamma_hard, threshold
        self.detach = bool(detach)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return focal_sd_loss(
            logits,
            target,
            gamma=self.gamma,
            gamma_hard=self.gamma_hard,
            threshold=self.threshold,
            detach=self.detach,
            **self.options,
        )
