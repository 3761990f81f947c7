from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.ticker import MaxNLocator

from calibrant.losses import AdaptiveLoss
from calibrant.plots.base import BLUE, COLOURS, GREY, Figure, new_axes, panels, styled


@dataclass(frozen=True, repr=False)
class MultiplierPath(Figure):
    """Multipliers of CALS over epochs: the largest, the mean, the smallest, and some classes (CALS Figure 3b).

    Attributes:
        epochs: Epochs.
        highest: Largest multiplier.
        mean: Mean.
        lowest: Smallest.
        classes: Multipliers of some classes, by name.

    Example:
        >>> import torch
        >>> from calibrant.losses import CALSALM
        >>> from calibrant.plots import MultiplierPath
        >>> loss = CALSALM(num_classes=3)
        >>> loss.observe(torch.tensor([[20.0, 0.0, 1.0]]), torch.tensor([0]))
        >>> loss.adapt()
        >>> path = MultiplierPath.from_loss(loss)
        >>> path.epochs, round(path.highest[-1], 4)
        ([0, 1], 1.0)
    """

    epochs: list[float]
    highest: list[float]
    mean: list[float]
    lowest: list[float]
    classes: dict[str, list[float]]

    @classmethod
    def from_loss(cls, loss: AdaptiveLoss, classes: dict[str, int] | None = None) -> "MultiplierPath":
        """Take the path from a loss's history; ``classes`` are names and indices of classes to show."""
        history = loss.history()
        if "multipliers" not in history:
            raise TypeError(f"{type(loss).__name__} has no multipliers; CALSALM and CALSHR do")
        path = history["multipliers"].double()
        return cls(
            epochs=history["epoch"].tolist(),
            highest=path.amax(dim=1).tolist(),
            mean=path.mean(dim=1).tolist(),
            lowest=path.amin(dim=1).tolist(),
            classes={name: path[:, k].tolist() for name, k in (classes or {}).items()},
        )

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the range as a band, the mean and the classes as lines."""
        ax = new_axes(3.8, 2.5) if ax is None else ax
        ax.fill_between(self.epochs, self.lowest, self.highest, color=BLUE, alpha=0.18, linewidth=0)
        ax.plot(self.epochs, self.highest, color=BLUE, linewidth=0.9, label="largest")
        ax.plot(self.epochs, self.mean, color="black", label="mean")
        ax.plot(self.epochs, self.lowest, color=BLUE, linewidth=0.9, linestyle="--", label="smallest")
        for i, (name, path) in enumerate(self.classes.items()):
            ax.plot(self.epochs, path, color=COLOURS[(i + 1) % len(COLOURS)], linewidth=0.9, label=name)
        ax.set(xlabel="epoch", ylabel="multiplier")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylim(bottom=0)
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        return ax


@dataclass(frozen=True, repr=False)
class GammaPath(Figure):
    """Gammas of AdaFocal or CalFocal over epochs, and the calibration error of their validation bins (AdaFocal Figure 5).

    Attributes:
        epochs: Epochs.
        gammas: Gamma of each bin, by epoch.
        errors: Mean confidence minus accuracy of each bin, by epoch.

    Example:
        >>> import torch
        >>> from calibrant.losses import AdaFocal
        >>> from calibrant.plots import GammaPath
        >>> loss = AdaFocal(num_bins=2)
        >>> loss.observe(torch.tensor([[4.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
        >>> loss.adapt()
        >>> [[round(gamma, 3) for gamma in row] for row in GammaPath.from_loss(loss).gammas]
        [[1.0, 1.0], [1.428, 1.0]]
    """

    epochs: list[float]
    gammas: list[list[float]]
    errors: list[list[float]]

    @classmethod
    def from_loss(cls, loss: AdaptiveLoss) -> "GammaPath":
        """Take the path from a loss's history."""
        history = loss.history()
        if "gammas" not in history:
            raise TypeError(f"{type(loss).__name__} has no gammas; AdaFocal and CalFocal do")
        errors = history["confidences"].double() - history["accuracies"].double()
        return cls(history["epoch"].tolist(), history["gammas"].double().tolist(), errors.tolist())

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw errors above, gammas below, coloured from the least confident bin (dark) to the most (bright)."""
        ax = new_axes(3.8, 3.8) if ax is None else ax
        above, below = panels(ax, 2, 1, gap=0.1)
        bins = len(self.gammas[0])
        colours = mpl.colormaps["viridis"](np.linspace(0, 0.93, bins))
        gammas, errors = np.array(self.gammas), 100 * np.array(self.errors)
        for b in range(bins):
            above.plot(self.epochs, errors[:, b], color=colours[b], linewidth=0.9)
            below.plot(self.epochs, gammas[:, b], color=colours[b], linewidth=0.9)
        above.axhline(0, color=GREY, linewidth=0.8, linestyle="--")
        above.set(ylabel="confidence - accuracy, %")
        above.tick_params(labelbottom=False)
        below.set(xlabel="epoch", ylabel="gamma")
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
        scale = mpl.cm.ScalarMappable(BoundaryNorm(np.arange(bins + 1) + 0.5, bins), mpl.colors.ListedColormap(colours))
        bar = ax.figure.colorbar(scale, ax=ax, fraction=0.05, pad=0.03, ticks=[1, (bins + 1) // 2, bins])
        bar.set_label("validation bin, by confidence")
        return ax


@dataclass(frozen=True, repr=False)
class MetricPath(Figure):
    """Calibration error and accuracy over epochs, for one or more methods.

    Attributes:
        names: Names of the methods.
        epochs: Epochs of each method.
        ece: Calibration errors of each, fractions.
        accuracy: Accuracies of each, fractions.

    Example:
        >>> from calibrant.plots import MetricPath
        >>> MetricPath(["ce"], [[0, 1, 2]], ece=[[0.2, 0.1, 0.05]], accuracy=[[0.5, 0.7, 0.8]])
        MetricPath(ce)
    """

    names: list[str]
    epochs: list[list[float]]
    ece: list[list[float]]
    accuracy: list[list[float]]

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the ECE above, the accuracy below."""
        ax = new_axes(4.2, 3.6) if ax is None else ax
        above, below = panels(ax, 2, 1, gap=0.1)
        for i, name in enumerate(self.names):
            colour = COLOURS[i % len(COLOURS)]
            dash = ("-", "--", ":", "-.")[i // len(COLOURS) % 4]
            style: Any = {"color": colour, "marker": "o" if len(self.epochs[i]) == 1 else "", "markersize": 3}
            above.plot(self.epochs[i], 100 * np.array(self.ece[i]), dash, label=name, **style)
            below.plot(self.epochs[i], 100 * np.array(self.accuracy[i]), dash, **style)
        above.set(ylabel="ECE, %")
        above.set_ylim(bottom=0)
        above.tick_params(labelbottom=False)
        below.set(xlabel="epoch", ylabel="accuracy, %")
        if max(map(len, self.epochs), default=0) > 1:
            below.xaxis.set_major_locator(MaxNLocator(integer=True))
        else:
            below.set_xticks(sorted({epoch for own in self.epochs for epoch in own}))
        above.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
        return ax
