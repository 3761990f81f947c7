import torch
from torch import Tensor
from torch.nn import functional

from calibrant import tensors
from calibrant.checks import in_range
from calibrant.losses.base import Loss
from calibrant.tensors import Reduction


def modulate(nll: Tensor, gamma: Tensor | float) -> Tensor:
    r"""Focal term :math:`-(1 - p)^\gamma \log p` from ``nll`` :math:`= -\log p`.

    ``gamma`` is a number, or a tensor with one value per sample; for negative values the term is the inverse focal one,
    :math:`-(1 + p)^{|\gamma|} \log p`. The gradient flows through p, not through gamma.
    """
    # Where p rounds to 1 the derivative of (1 - p)^gamma is infinite for gamma < 1, times log p = 0: keep it finite.
    focal = -torch.expm1(-nll).clamp(max=-torch.finfo(nll.dtype).tiny)
    if not isinstance(gamma, Tensor):  # as a tensor, a number would have to be copied to the device
        return focal.pow(gamma) * nll
    return torch.where(gamma < 0, 1 + torch.exp(-nll), focal).pow(gamma.abs()) * nll


def focal_loss(
    logits: Tensor, target: Tensor, *, gamma: float = 3.0, ignore_index: int = -100, reduction: Reduction = "mean"
) -> Tensor:
    r"""Focal loss (FL): :math:`-(1 - p)^\gamma \log p` with :math:`p = s_y`, the probability of the true class.

    Example:
        >>> import torch
        >>> from calibrant.functional import focal_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(focal_loss(logits, target)), 4)
        0.0286
    """
    in_range("gamma", gamma, 0)
    logits, target, kept = tensors.for_training(logits, target, ignore_index)
    nll = functional.cross_entropy(logits, target, reduction="none")
    return tensors.reduce(modulate(nll, gamma), kept, reduction)


def focal_sd_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 3.0,
    gamma_hard: float = 5.0,
    threshold: float = 0.2,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Sample-dependent focal loss (FLSD): ``gamma_hard`` where :math:`s_y` < ``threshold``, ``gamma`` elsewhere.

    The defaults are FLSD-53 of Mukhoti et al. (2020): 5 for :math:`s_y \in [0, 0.2)`, 3 for :math:`s_y \in [0.2, 1]`.

    Example:
        >>> import torch
        >>> from calibrant.functional import focal_sd_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(focal_sd_loss(logits, target)), 4)
        0.0286
    """
    _check_sample_dependent(gamma, gamma_hard, threshold)
    logits, target, kept = tensors.for_training(logits, target, ignore_index)
    nll = functional.cross_entropy(logits, target, reduction="none")
    hard = torch.exp(-nll.detach()) < threshold
    return tensors.reduce(modulate(nll, torch.where(hard, nll.new_full((), gamma_hard), gamma)), kept, reduction)


def _check_sample_dependent(gamma: float, gamma_hard: float, threshold: float) -> None:
    in_range("gamma", gamma, 0)
    in_range("gamma_hard", gamma_hard, 0)
    in_range("threshold", threshold, 0, 1)


class Focal(Loss):
    """Focal loss (FL); see :func:`focal_loss`.

    Args:
        gamma: Exponent; 0 gives cross-entropy.
        ignore_index: Label of samples or pixels to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> from calibrant.losses import Focal
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(Focal(gamma=2.0)(logits, target)), 4)
        0.0724
    """

    def __init__(self, *, gamma: float = 3.0, ignore_index: int = -100, reduction: Reduction = "mean") -> None:
        super().__init__(ignore_index=ignore_index, reduction=reduction)
        self.gamma = in_range("gamma", gamma, 0)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return focal_loss(logits, target, gamma=self.gamma, ignore_index=self.ignore_index, reduction=self.reduction)


class FocalSD(Loss):
    """Sample-dependent focal loss (FLSD, by default FLSD-53); see :func:`focal_sd_loss`.

    Args:
        gamma: Exponent for samples whose true-class probability is at least ``threshold``.
        gamma_hard: Exponent for the others.
        threshold: Probability that separates them.
        ignore_index: Label of samples or pixels to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> from calibrant.losses import FocalSD
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(FocalSD()(logits, target)), 4)
        0.0286
    """

    def __init__(
        self,
        *,
        gamma: float = 3.0,
        gamma_hard: float = 5.0,
        threshold: float = 0.2,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(ignore_index=ignore_index, reduction=reduction)
        _check_sample_dependent(gamma, gamma_hard, threshold)
        self.gamma, self.gamma_hard, self.threshold = gamma, gamma_hard, threshold

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return focal_sd_loss(
            logits,
            target,
            gamma=self.gamma,
            gamma_hard=self.gamma_hard,
            threshold=self.threshold,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )
