from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from calibrant.checks import in_range, one_of
from calibrant.losses.base import Loss, reduce_finite, with_gradient
from calibrant.losses.neighbours import Border, check_pixels, check_window, neighbours
from calibrant.losses.targets import Options, batch, with_options, without_weights

if TYPE_CHECKING:
    from typing_extensions import Unpack

Norm = Literal["l1", "l2"]


@with_options
def nacl_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: float = 0.1,
    kernel_size: int = 3,
    norm: Norm = "l1",
    border: Border = "valid",
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Neighbour-aware calibration of segmented images (NACL, Murugesan et al. 2023).

    .. math:: -\log s_y + \frac{w}{K} \sum_{k=1}^K \left| \tau_k - l_k \right|

    for each pixel, with :math:`\tau_k` the share of class k among the labels in a window around it: logits are drawn to
    these shares. ``norm="l2"`` takes squares. What lies outside of the image counts as nothing (``border="valid"``), as
    class 0 (``"released"``, the authors' code) or as no class (``"zeros"``, MONAI). Pixels to ignore have no penalty, and
    count for no class in the windows of others. For soft targets q, :math:`\tau` is the mean of q.

    Example:
        >>> import torch
        >>> from calibrant.functional import nacl_loss
        >>> logits, target = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), torch.tensor([[0, 1]])
        >>> round(float(nacl_loss(logits, target)), 4)
        0.2951
    """
    _check(weight, kernel_size, norm, border)
    given = batch(logits, target, **options)
    check_pixels(given, options, "NACL")
    unweighted = given if given.class_weights is None else batch(logits, target, **without_weights(options))
    shares = neighbours(unweighted, kernel_size, border, options).shares
    with torch.no_grad():
        gap, classes = given.logits - shares, given.logits.shape[1]
        values = (gap.abs() if norm == "l1" else gap.square()).mean(dim=1)
        slopes = gap.sign_().div_(classes) if norm == "l1" else gap.mul_(2 / classes)
    penalty = with_gradient(given.logits, values, slopes)
    return reduce_finite(given.nll() + weight * given.scaled(penalty), given)


def _check(weight: float, kernel_size: int, norm: Norm, border: Border) -> None:
    in_range("weight", weight, 0)
    check_window(kernel_size, border)
    one_of("norm", norm, get_args(Norm))


class NACL(Loss):
    """Neighbour-aware calibration of segmented images; see :func:`nacl_loss`.

    Args:
        weight: Weight of the penalty.
        kernel_size: Width of the window, an odd number.
        norm: ``"l1"``, absolute differences, or ``"l2"``, their squares.
        border: What lies outside of the image: ``"valid"`` nothing, ``"released"`` class 0, ``"zeros"`` no class.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import NACL
        >>> logits, target = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), torch.tensor([[0, 1]])
        >>> round(float(NACL(norm="l2")(logits, target)), 4)
        0.2951
    """

    @with_options
    def __init__(
        self,
        *,
        weight: float = 0.1,
        kernel_size: int = 3,
        norm: Norm = "l1",
        border: Border = "valid",
        **options: "Unpack[Options]",
    ) -> None:
        super().__init__(**options)
        _check(weight, kernel_size, norm, border)
        self.weight, self.kernel_size = weight, kernel_size
        self.norm: Norm = norm
        self.border: Border = border

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return nacl_loss(
            logits,
            target,
            weight=self.weight,
            kernel_size=self.kernel_size,
            norm=self.norm,
            border=self.border,
            **self.options,
        )
