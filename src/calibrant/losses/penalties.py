r"""Penalty-Lagrangian functions :math:`P(z, \rho, \lambda)` of the augmented Lagrangian (CALS Appendix A).

Each satisfies :math:`P'(0, \rho, \lambda) = \lambda` and :math:`P' \ge 0`, where :math:`P'` is the derivative in z; as rho
grows, P comes closer to the ideal penalty that is 0 for z <= 0 and infinite beyond. Arguments broadcast; rho and the
multiplier are positive.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Penalty(NamedTuple):
    """A penalty: ``value(z, rho, multiplier)`` and its derivative in z, ``derivative(z, rho, multiplier)``."""

    value: Callable[[Tensor, Tensor, Tensor], Tensor]
    derivative: Callable[[Tensor, Tensor, Tensor], Tensor]


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
    r""":math:`P_2` (Eq. 17): :math:`\lambda z + \lambda\rho z^2 + \rho^2 z^3 / 6` for z >= 0, as :func:`p3` for z <= 0."""
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


#: The penalties by name.
PENALTIES = {"phr": Penalty(phr, phr_derivative), "p2": Penalty(p2, p2_derivative), "p3": Penalty(p3, p3_derivative)}
