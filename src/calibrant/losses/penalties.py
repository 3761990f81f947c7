r"""Penalty-Lagrangian functions :math:`P(z, \rho, \lambda)` of the augmented Lagrangian (CALS Appendix A).

Each satisfies :math:`P'(0, \rho, \lambda) = \lambda` and :math:`P' \ge 0`, where :math:`P'` is the derivative in z; as rho
grows, P approaches the ideal penalty that is 0 for z <= 0 and infinite beyond. Arguments broadcast; rho and the
multiplier are positive.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.losses.margin import MarginPenalty
from calibrant.losses.temperature import Scalar

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


class Penalty(NamedTuple):
    """A penalty.

    Attributes:
        value: P, a function of z, rho and the multiplier.
        derivative: Its derivative in z.
        fused: Takes margin, rho, multipliers and the number of classes, and returns the mean over classes of
            P(d / m - 1, rho, lambda), computed with its gradient in one pass over the distances d.
    """

    value: Function
    derivative: Function
    fused: Callable[[Scalar, Tensor, Tensor, int], MarginPenalty]


def phr(z: Tensor, rho: Tensor, multiplier: Tensor) -> Tensor:
    r"""Powell-Hestenes-Rockafellar (Eq. 13, 16): :math:`\lambda z + \rho z^2 / 2` if :math:`\lambda + \rho z \ge 0`.

    Below :math:`z = -\lambda / \rho`, where that parabola has its minimum, it stays at :math:`-\lambda^2 / 2\rho`.
    """
    z = z.clamp(min=-multiplier / rho)
    return z * (multiplier + rho * z / 2)


def phr_derivative(z: Tensor, rho: Tensor, multiplier: Tensor) -> Tensor:
    r"""Derivative of :func:`phr`: :math:`\max(0, \lambda + \rho z)`."""
    return (multiplier + rho * z).relu()


# P2 and P3 have a branch for z >= 0 and one for z <= 0. Both are evaluated everywhere, each on the part of z that belongs
# to it, and vanish on the other part: their sum needs no selection, and no branch is evaluated where it is infinite.


def p2(z: Tensor, rho: Tensor, multiplier: Tensor) -> Tensor:
    r""":math:`P_2` (Eq. 17): :math:`\lambda z + \lambda\rho z^2 + \rho^2 z^3 / 6` for z >= 0, like :func:`p3` for z <= 0."""
    positive = z.relu()
    return p3(z, rho, multiplier) + rho**2 * positive**3 / 6


def p2_derivative(z: Tensor, rho: Tensor, multiplier: Tensor) -> Tensor:
    """Derivative of :func:`p2`."""
    positive = z.relu()
    return p3_derivative(z, rho, multiplier) + (rho * positive) ** 2 / 2


def p3(z: Tensor, rho: Tensor, multiplier: Tensor) -> Tensor:
    r""":math:`P_3` (Eq. 18): :math:`\lambda z + \lambda\rho z^2` for z >= 0, :math:`\lambda z / (1 - \rho z)` for z <= 0."""
    positive = z.relu()
    negative = z - positive
    return multiplier * (positive + rho * positive**2 + negative / (1 - rho * negative))


def p3_derivative(z: Tensor, rho: Tensor, multiplier: Tensor) -> Tensor:
    """Derivative of :func:`p3`."""
    positive = z.relu()
    negative = z - positive
    return multiplier * (2 * rho * positive + (1 - rho * negative) ** -2)


# The same in one pass over the distances, for training. Values and gradients are those of the functions above.


def subtract(gradient: Tensor, slopes: Tensor, scale: Tensor | float) -> None:
    """Subtract ``scale`` times ``slopes`` in place; a scale that is learned stays on its device."""
    if isinstance(scale, Tensor):
        gradient.addcmul_(slopes, scale, value=-1)
    else:
        gradient.sub_(slopes, alpha=scale)


def fused_phr(margin: Scalar, rho: Tensor, multipliers: Tensor, classes: int) -> MarginPenalty:
    """In place, on P' = relu(lambda + rho z), from which P = (P'^2 - lambda^2) / 2 rho."""
    chain = 1 / (classes * margin)  # dz/dd, and the mean

    def penalty(distance: Tensor, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
        derivative = distance.mul_(rho / margin).add_(multipliers - rho).relu_()
        slope = derivative.sum(dim=1, keepdim=True).mul_(chain)
        if gradient is not None:
            subtract(gradient, derivative, chain)
        value = derivative.square_().sub_(multipliers**2).mul_(1 / (2 * rho * classes)).sum(dim=1, keepdim=True)
        return value, slope

    return penalty


def fused_in_blocks(value: Function, derivative: Function) -> Callable[[Scalar, Tensor, Tensor, int], MarginPenalty]:
    """For any penalty, from its value and derivative: an eighth of the samples at a time, to bound temporary memory.

    The compiler needs no temporaries and gets all samples at once.
    """

    def fused(margin: Scalar, rho: Tensor, multipliers: Tensor, classes: int) -> MarginPenalty:
        chain = 1 / (classes * margin)

        def block(z: Tensor, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
            slopes = derivative(z, rho, multipliers)
            if gradient is not None:
                subtract(gradient, slopes, chain)
            slope = slopes.sum(dim=1, keepdim=True).mul_(chain)
            del slopes
            return value(z, rho, multipliers).sum(dim=1, keepdim=True).div_(classes), slope

        def penalty(distance: Tensor, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
            z = distance.div_(margin).sub_(1)
            if torch.compiler.is_compiling():
                return block(z, gradient)
            gradients = [None] * 8 if gradient is None else gradient.tensor_split(8)
            parts = [block(*part) for part in zip(z.tensor_split(8), gradients, strict=True)]
            return torch.cat([own for own, _ in parts]), torch.cat([slope for _, slope in parts])

        return penalty

    return fused


#: The penalties by name.
PENALTIES = {
    "phr": Penalty(phr, phr_derivative, fused_phr),
    "p2": Penalty(p2, p2_derivative, fused_in_blocks(p2, p2_derivative)),
    "p3": Penalty(p3, p3_derivative, fused_in_blocks(p3, p3_derivative)),
}
