from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes

from calibrant.checks import one_of
from calibrant.losses.adafocal import calfocal_loss
from calibrant.losses.focal import focal_loss
from calibrant.losses.penalties import PENALTIES
from calibrant.plots.base import COLOURS, GREY, Figure, new_axes, panels, styled


@dataclass(frozen=True, repr=False)
class PenaltyShapes(Figure):
    """A penalty of CALS-ALM as a function of the constraint z, for several rho and multipliers (CALS Figure 2).

    Attributes:
        name: Name of the penalty.
        z: Values of the constraint.
        by_rho: P at these values for each rho, by label.
        by_multiplier: The same for each multiplier.

    Example:
        >>> from calibrant.plots import PenaltyShapes
        >>> shapes = PenaltyShapes.of("phr", rhos=(1, 10), multipliers=(1, 2))
        >>> list(shapes.by_rho), list(shapes.by_multiplier)
        (['rho 1', 'rho 10'], ['multiplier 1', 'multiplier 2'])
    """

    name: str
    z: list[float]
    by_rho: dict[str, list[float]]
    by_multiplier: dict[str, list[float]]

    @classmethod
    def of(
        cls, penalty: str = "phr", *, rhos: Sequence[float] = (1, 4, 16), multipliers: Sequence[float] = (0.5, 1, 2)
    ) -> "PenaltyShapes":
        """A penalty for several rho at a multiplier of 1, and for several multipliers at a rho of 1."""
        function = PENALTIES[one_of("penalty", penalty, tuple(PENALTIES))].value
        z = torch.linspace(-1.5, 1.5, 301, dtype=torch.float64)

        def values(rho: float, multiplier: float) -> list[float]:
            found: list[float] = function(
                z, torch.tensor(float(rho)).double(), torch.tensor(float(multiplier)).double()
            ).tolist()
            return found

        return cls(
            penalty,
            z.tolist(),
            {f"rho {rho:g}": values(rho, 1) for rho in rhos},
            {f"multiplier {multiplier:g}": values(1, multiplier) for multiplier in multipliers},
        )

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw P for several rho on the left, for several multipliers on the right, with the tangent at 0."""
        ax = new_axes(5.2, 2.2) if ax is None else ax
        ax.set_title(f"penalty {self.name}", pad=8)
        z = np.array(self.z)
        for own, curves in zip(panels(ax, 1, 2, gap=0.16), (self.by_rho, self.by_multiplier), strict=True):
            own.axvline(0, color=GREY, linewidth=0.6, linestyle=":")
            for i, (label, values) in enumerate(curves.items()):
                own.plot(z, values, color=COLOURS[i % len(COLOURS)], label=label)
                slope = float(np.interp(0, z, np.gradient(np.array(values), z)))
                near = np.abs(z) < 0.5
                own.plot(z[near], slope * z[near], color=COLOURS[i % len(COLOURS)], linewidth=0.7, linestyle="--")
            own.set(xlabel="constraint z", ylim=(-1.2, 3.2))
            own.legend(loc="upper left")
        return ax


@dataclass(frozen=True, repr=False)
class FocalShapes(Figure):
    """CalFocal's loss against the probability of the true class, next to cross-entropy and focal loss (AdaFocal Figure 3a).

    Attributes:
        accuracy: Accuracy of the validation bin that the probabilities lie in.
        p: Probabilities of the true class.
        losses: Losses at these probabilities, by name.

    Example:
        >>> from calibrant.plots import FocalShapes
        >>> list(FocalShapes.of(scales=(10, 100)).losses)
        ['cross-entropy', 'focal loss, gamma 3', 'CalFocal, lambda 10', 'CalFocal, lambda 100']
    """

    accuracy: float
    p: list[float]
    losses: dict[str, list[float]]

    @classmethod
    def of(cls, *, accuracy: float = 0.8, scales: Sequence[float] = (5, 20, 100), gamma: float = 3.0) -> "FocalShapes":
        """Losses of samples in a bin of the given accuracy."""
        p = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
        logits, target = torch.stack([p.log(), (1 - p).log()], dim=1), torch.zeros(len(p), dtype=torch.int64)
        accuracies, edges = torch.tensor([accuracy]).double(), torch.zeros(0).double()
        losses = {"cross-entropy": focal_loss(logits, target, gamma=0.0, reduction="none")}
        losses[f"focal loss, gamma {gamma:g}"] = focal_loss(logits, target, gamma=gamma, reduction="none")
        for scale in scales:
            own = calfocal_loss(logits, target, accuracies, edges, scale=scale, reduction="none")
            losses[f"CalFocal, lambda {scale:g}"] = own
        return cls(accuracy, p.tolist(), {name: values.tolist() for name, values in losses.items()})

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw one line per loss, and mark the accuracy."""
        ax = new_axes(3.6, 2.6) if ax is None else ax
        ax.axvline(self.accuracy, color=GREY, linewidth=0.8, linestyle=":", label=f"accuracy {self.accuracy:g}")
        for i, (name, values) in enumerate(self.losses.items()):
            ax.plot(self.p, values, color=COLOURS[i % len(COLOURS)], label=name)
        ax.set(xlabel="probability of the true class", ylabel="loss", xlim=(0, 1), ylim=(0, 3))
        ax.legend(loc="upper right")
        return ax
