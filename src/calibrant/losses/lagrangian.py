"""The state of an augmented Lagrangian, and how it changes after an epoch."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.checks import in_range, whole
from calibrant.errors import lookup
from calibrant.losses.base import AdaptiveLoss
from calibrant.losses.penalties import PENALTIES

#: Multipliers are kept in this interval (CALS, below Eq. 12).
SAFEGUARD = (1e-6, 1e6)


class AugmentedLagrangian(AdaptiveLoss):
    """A loss with multipliers and penalty parameters that follow constraints on validation data (CALS, Algorithm 2).

    Attributes:
        multipliers: Multipliers.
        rho: Penalty parameters, in their shape.
        constraint: Mean constraints at the last :meth:`adapt`, in their shape.
    """

    learned: ClassVar[tuple[str, ...]] = ("multipliers", "rho", "constraint")
    logged: ClassVar[tuple[str, ...]] = ("multipliers", "rho")
    multipliers: Tensor
    rho: Tensor
    constraint: Tensor

    def _set_up(
        self,
        penalty: str,
        rho_init: float,
        gamma: float,
        tau: float,
        rho_period: int,
        rho_max: float | None,
        multiplier_period: int,
    ) -> None:
        """Keep the options, and start rho and constraint in the shape of the multipliers."""
        lookup(penalty, PENALTIES, "penalty")
        self.penalty = penalty
        self.rho_max = rho_max if rho_max is None else in_range("rho_max", rho_max, 0, above=True)
        self.rho_init = in_range("rho_init", rho_init, 0, math.inf if rho_max is None else rho_max, above=True)
        self.gamma = in_range("gamma", gamma, 1)
        self.tau = in_range("tau", tau, 0)
        self.rho_period = whole("rho_period", rho_period, 0)
        self.multiplier_period = whole("multiplier_period", multiplier_period, 1)
        self.register_buffer("rho", torch.full_like(self.multipliers, float(rho_init)))
        self.register_buffer("constraint", torch.zeros_like(self.multipliers))

    def _step(self, derivative: Tensor, constraint: Tensor) -> None:
        """Multipliers become the mean ``derivative`` of the penalty; rho grows where a ``constraint`` did not improve."""
        epoch = int(self.epoch) + 1
        if epoch % self.multiplier_period == 0:
            self.multipliers.copy_(derivative.clamp(*SAFEGUARD))
        if epoch > 1 and self.rho_period and epoch % self.rho_period == 0:
            not_improved = constraint > self.tau * self.constraint.clamp(min=0)
            grown = (self.gamma * self.rho).clamp(max=math.inf if self.rho_max is None else self.rho_max)
            self.rho.copy_(torch.where(not_improved, grown, self.rho))
        self.constraint.copy_(constraint)
