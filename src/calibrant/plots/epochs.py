from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from calibrant.losses import AdaptiveLoss
from calibrant.metrics.table import measure
from calibrant.plots.base import BLUE, COLOURS, GREY, ORANGE, Figure, new_axes, panels, styled


def by_class(multipliers: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Multipliers by epoch and class, and the names of their columns; those of CRaC are for boundaries and the inside."""
    path = np.asarray(multipliers, dtype=float)
    if path.ndim == 2:
        return path, list(names)
    return path.reshape(len(path), -1), [f"{name}, {region}" for region in ("boundary", "inside") for name in names]


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
        path, _ = by_class(history["multipliers"].double().numpy(), [])
        found = cls.from_history(history["epoch"].numpy(), path)
        return replace(found, classes={name: path[:, k].tolist() for name, k in (classes or {}).items()})

    @classmethod
    def from_history(cls, epochs: np.ndarray, multipliers: np.ndarray, names: Sequence[str] = ()) -> "MultiplierPath":
        """From multipliers by epoch and class; ``names`` are the class names, if they are to be kept."""
        path, names = by_class(multipliers, names)
        return cls(
            epochs=np.asarray(epochs).tolist(),
            highest=path.max(axis=1).tolist(),
            mean=path.mean(axis=1).tolist(),
            lowest=path.min(axis=1).tolist(),
            classes={name: path[:, k].tolist() for k, name in enumerate(names)},
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

    @staticmethod
    @styled
    def side_by_side(methods: "Mapping[str, Sequence[MultiplierPath]]") -> Canvas:
        """Several losses side by side with shared axes: all runs over epochs and, below, the final value of each class."""
        figure, axes = plt.subplots(2, len(methods), figsize=(0.6 + 2.6 * len(methods), 4.0), squeeze=False, sharey="row")
        for (name, runs), (above, below) in zip(methods.items(), axes.T, strict=True):
            for number, run in enumerate(runs):
                lines = {"largest": (run.highest, ORANGE), "mean": (run.mean, "black"), "smallest": (run.lowest, BLUE)}
                for label, (path, colour) in lines.items():
                    first = number == 0
                    above.plot(
                        run.epochs,
                        path,
                        color=colour,
                        linewidth=0.9,
                        alpha=1 if first else 0.5,
                        label=label if first else "",
                    )
            above.set(title=name, xlabel="epoch")
            above.xaxis.set_major_locator(MaxNLocator(integer=True))
            last = np.array([[path[-1] for path in run.classes.values()] for run in runs])
            places = np.arange(last.shape[1])
            spread = last.std(axis=0, ddof=1) if len(runs) > 1 else None
            below.bar(places, last.mean(axis=0), yerr=spread, color=BLUE, width=0.8, error_kw={"elinewidth": 0.7})
            few = len(places) <= 12
            below.set_xticks(places if few else [], list(runs[0].classes) if few else [], rotation=45 if few else 0)
            below.set_xlabel("class")
        axes[0, 0].set_ylabel("multiplier")
        axes[1, 0].set_ylabel("last multiplier")
        axes[0, 0].set_ylim(bottom=0)
        axes[0, -1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
        return figure


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
        for own in (above, below):
            own.xaxis.set_major_locator(MaxNLocator(integer=True))
        scale = mpl.cm.ScalarMappable(BoundaryNorm(np.arange(bins + 1) + 0.5, bins), mpl.colors.ListedColormap(colours))
        bar = ax.figure.colorbar(scale, ax=ax, fraction=0.05, pad=0.03, ticks=[1, (bins + 1) // 2, bins])
        bar.set_label("validation bin, by confidence")
        return ax


@dataclass(frozen=True, repr=False)
class MetricPath(Figure):
    """Metrics over epochs, one line per method with the standard deviation over runs (CALS Fig. 3a, AdaFocal Fig. 4).

    Attributes:
        names: Names of the methods.
        epochs: Epochs of each method.
        values: By metric key and method, the values of each run over epochs, as fractions.
        part: What was measured, such as ``"validation"``.

    Example:
        >>> from calibrant.plots import MetricPath
        >>> MetricPath(["ce"], [[1, 2, 3]], {"ece": [[[0.2, 0.1, 0.05]]], "accuracy": [[[0.5, 0.7, 0.8]]]})
        MetricPath(ce)
    """

    names: list[str]
    epochs: list[list[float]]
    values: dict[str, list[list[list[float]]]]
    part: str = "validation"

    @classmethod
    def from_histories(
        cls,
        histories: Mapping[str, Sequence[Mapping[str, Sequence[float | None]]]],
        keys: Sequence[str] = ("ece", "accuracy"),
        part: str = "validation",
    ) -> "MetricPath":
        """From the history columns of each method's runs, at the epochs where all of them were measured."""
        prefix = "test_" if part == "test" else ""
        columns = {key: prefix + ("accuracy" if key == "error" else key) for key in keys}
        values: dict[str, list[list[list[float]]]] = {key: [] for key in keys}
        epochs = []
        for runs in histories.values():
            length = min(len(run["epoch"]) for run in runs)
            kept = [i for i in range(length) if all(run[c][i] is not None for run in runs for c in columns.values())]
            epochs.append([float(runs[0]["epoch"][i] or 0) for i in kept])
            for key, column in columns.items():
                own = [[float(run[column][i] or 0) for i in kept] for run in runs]
                values[key].append([[1 - value for value in run] for run in own] if key == "error" else own)
        return cls(list(histories), epochs, values, part)

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw one panel per metric, stacked."""
        rows = len(self.values)
        ax = new_axes(4.2, 0.4 + 1.6 * rows) if ax is None else ax
        shown = panels(ax, rows, 1, gap=0.2 / max(2, rows))
        for own, (key, methods) in zip(shown, self.values.items(), strict=True):
            record = measure(key)
            for i, (name, runs) in enumerate(zip(self.names, methods, strict=True)):
                colour, dash = COLOURS[i % len(COLOURS)], ("-", "--", ":", "-.")[i // len(COLOURS) % 4]
                paths = record.scale * np.array(runs, dtype=float)
                mean, marker = paths.mean(axis=0), "o" if len(self.epochs[i]) == 1 else ""
                own.plot(self.epochs[i], mean, dash, color=colour, marker=marker, markersize=3, label=name)
                if len(runs) > 1:
                    spread = paths.std(axis=0, ddof=1)
                    own.fill_between(self.epochs[i], mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
            own.set(ylabel=record.label)
            if not record.higher:
                own.set_ylim(bottom=0)
            own.tick_params(labelbottom=own is shown[-1])
            if max(map(len, self.epochs), default=0) > 1:
                own.xaxis.set_major_locator(MaxNLocator(integer=True))
            else:
                own.set_xticks(sorted({epoch for path in self.epochs for epoch in path}))
        shown[-1].set_xlabel(f"epoch ({self.part} measures)")
        shown[0].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
        return ax
