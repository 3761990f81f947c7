import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from calibrant.metrics.table import measure
from calibrant.plots.base import COLOURS, GREY, ORANGE, Figure, new_axes, panels, styled


@dataclass(frozen=True, repr=False)
class Sweep(Figure):
    """Metrics against an option, one line per method with the standard deviation over seeds (CALS Figure 3c).

    Attributes:
        option: The option on the x-axis.
        names: Names of the methods.
        points: The option's values for each method; empty for a method without it, drawn as a horizontal line.
        values: By metric key and method, the values over seeds at each point, as fractions; a method without the option has
            one list.

    Example:
        >>> from calibrant.plots import Sweep
        >>> Sweep("margin", ["mbls", "ce"], [[5, 10], []], {"ece": [[[0.02, 0.03], [0.04]], [[0.08, 0.09]]]})
        Sweep(mbls, ce)
    """

    option: str
    names: list[str]
    points: list[list[float]]
    values: dict[str, list[list[list[float]]]]

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw one panel per metric, two per row."""
        columns = min(2, len(self.values))
        rows = -(-len(self.values) // columns)
        ax = new_axes(2.7 * columns, 0.35 + 1.75 * rows) if ax is None else ax
        shown = panels(ax, rows, columns, count=len(self.values), gap=0.24, row_gap=0.2 / rows)
        scale = Scale.of(point for own in self.points for point in own)
        for number, (own, (key, lines)) in enumerate(zip(shown, self.values.items(), strict=True)):
            for i, name in enumerate(self.names):
                self._line(own, scale, i, lines[i], measure(key).scale, name)
            own.set_ylabel(measure(key).label)
            scale.mark(own, labels=number + columns >= len(self.values))
            if number + columns >= len(self.values):
                own.set_xlabel(self.option)
        shown[columns - 1].legend(loc="upper left", bbox_to_anchor=(1.03, 1.0))
        return ax

    def _line(self, ax: Axes, scale: "Scale", i: int, groups: list[list[float]], unit: int, name: str) -> None:
        means = [unit * float(np.mean(group)) for group in groups]
        spread = [unit * float(np.std(group, ddof=1)) if len(group) > 1 else 0.0 for group in groups]
        colour, dash = COLOURS[i % len(COLOURS)], ("-", "--", ":", "-.")[i // len(COLOURS) % 4]
        if not self.points[i]:
            ax.axhline(means[0], color=colour, linestyle="--", linewidth=0.9, label=name)
            if spread[0]:
                ax.axhspan(means[0] - spread[0], means[0] + spread[0], color=colour, alpha=0.12, linewidth=0)
            return
        style: Any = {"linestyle": dash, "marker": "o", "markersize": 3, "elinewidth": 0.7, "capsize": 1.5, "label": name}
        ax.errorbar(scale.places(self.points[i]), means, spread if any(spread) else None, color=colour, **style)


@dataclass(frozen=True, repr=False)
class SweepMap(Figure):
    """Mean metrics of one method over two options, as heat maps.

    Attributes:
        name: Name of the method.
        options: The options: rows, then columns.
        points: The values of each.
        values: By metric key, the values over seeds for each pair of points; empty where there is no run.

    Example:
        >>> from calibrant.plots import SweepMap
        >>> SweepMap("cals-alm", ["rho", "margin"], [[1], [5, 10]], {"ece": [[[0.02, 0.03], [0.04]]]})
        SweepMap(cals-alm)
    """

    name: str
    options: list[str]
    points: list[list[float]]
    values: dict[str, list[list[list[float]]]]

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw one heat map per metric, two per row; the best value is framed."""
        columns = min(2, len(self.values))
        rows = -(-len(self.values) // columns)
        down, across = (len(own) for own in self.points)
        ax = new_axes(columns * (1.1 + 0.42 * across), 0.4 + rows * (0.6 + 0.3 * down)) if ax is None else ax
        ax.set_title(self.name, pad=16)
        shown = panels(ax, rows, columns, count=len(self.values), gap=0.22, row_gap=0.34 / rows)
        for number, (own, (key, table)) in enumerate(zip(shown, self.values.items(), strict=True)):
            record = measure(key)
            means = np.array([[np.mean(group) if group else np.nan for group in row] for row in table]) * record.scale
            colours = "viridis" if record.higher else "viridis_r"  # bright is good
            image = own.imshow(np.ma.masked_invalid(means), cmap=colours, aspect="auto")
            self._write(own, means, image, 2 if record.percent else 3)
            signed = -means if record.higher else means
            y, x = np.unravel_index(np.nanargmin(signed), means.shape)
            own.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor=ORANGE, linewidth=1.4, clip_on=False))
            own.set_title(record.label, fontsize=7, pad=3)
            own.set_xticks(range(across), [f"{x:g}" for x in self.points[1]])
            own.set_yticks(range(down), [f"{y:g}" for y in self.points[0]])
            own.tick_params(length=0)
            own.spines[:].set_visible(False)
            if number % columns == 0:
                own.set_ylabel(self.options[0])
            if number + columns >= len(self.values):
                own.set_xlabel(self.options[1])
        return ax

    @staticmethod
    def _write(ax: Axes, means: np.ndarray, image: Any, digits: int) -> None:
        """Write each mean into its cell, in a contrasting colour."""
        for (y, x), value in np.ndenumerate(means):
            if not math.isnan(value):
                red, green, blue, _ = image.cmap(image.norm(value))
                dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
                ax.text(x, y, f"{value:.{digits}f}", ha="center", va="center", size=6, color="white" if dark else "black")


@dataclass(frozen=True)
class Scale:
    """The axis of an option: linear, logarithmic if its values span decades, or evenly spaced if one is infinite.

    Attributes:
        points: All values, sorted.
        kind: ``"linear"``, ``"log"`` or ``"even"``.
    """

    points: list[float]
    kind: str

    @staticmethod
    def of(points: Any) -> "Scale":
        """The scale for these values."""
        found = sorted(set(points))
        if found and math.isinf(found[-1]):
            return Scale(found, "even")
        wide = len(found) > 2 and found[0] > 0 and found[-1] / found[0] >= 50
        return Scale(found, "log" if wide else "linear")

    def places(self, points: Sequence[float]) -> list[float]:
        """Positions of values on the axis."""
        return [self.points.index(point) for point in points] if self.kind == "even" else list(points)

    def mark(self, ax: Axes, *, labels: bool) -> None:
        """Put ticks at the values."""
        if self.kind == "log":
            ax.set_xscale("log")
            ax.minorticks_off()
        ax.set_xticks(self.places(self.points), [f"{p:g}" for p in self.points] if labels else [])
        ax.grid(axis="y", color=GREY, alpha=0.2, linewidth=0.5)
