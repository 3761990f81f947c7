from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import FuncFormatter, LogLocator

from calibrant.metrics.table import measure
from calibrant.plots.base import BLUE, GREY, ORANGE, Figure, new_axes, panels, styled


@dataclass(frozen=True, repr=False)
class SearchPlot(Figure):
    """The score of each trial of a search over hyper-parameters, against each option.

    Attributes:
        by: Key of the measure that trials are ranked by.
        scores: Score of each trial, in the order of the search, as a fraction.
        options: For each option, its value in each trial; None where the trial does not have it.
        log: Options with a logarithmic axis.
        ranges: The ranges that were searched, which the axes show.

    Example:
        >>> from calibrant.plots import SearchPlot
        >>> SearchPlot("nll", [0.4, 0.3, 0.35], {"loss.margin": [4.0, 8.0, 16.0]})
        SearchPlot(loss.margin)
    """

    by: str
    scores: list[float]
    options: dict[str, list[Any]]
    log: list[str] = field(default_factory=list)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The options."""
        return list(self.options)

    @property
    def best(self) -> int | None:
        """Index of the best trial; None if there is none."""
        scores = np.array(self.scores, dtype=float)
        if not np.isfinite(scores).any():
            return None
        return int(np.nanargmax(scores) if measure(self.by).higher else np.nanargmin(scores))

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw one panel per option, three per row; later trials are darker, and the best is marked."""
        columns = min(3, max(1, len(self.options)))
        rows = -(-len(self.options) // columns)
        ax = new_axes(0.6 + 2.1 * columns, 0.5 + 1.9 * rows) if ax is None else ax
        shown = panels(ax, rows, columns, count=len(self.options), gap=0.12, row_gap=0.4 / rows)
        scores = measure(self.by).scale * np.array(self.scores, dtype=float)
        shades = LinearSegmentedColormap.from_list("later", ["#C8DCEB", BLUE])(np.linspace(0, 1, max(1, len(scores))))
        for number, (own, (name, values)) in enumerate(zip(shown, self.options.items(), strict=True)):
            places, ticks = _places(values)
            there = np.isfinite(places) & np.isfinite(scores)
            own.scatter(places[there], scores[there], c=shades[there], s=18, edgecolors="white", linewidths=0.4, zorder=2)
            if self.best is not None and there[self.best]:
                spot = (places[self.best], scores[self.best])
                own.scatter(*spot, marker="*", s=90, color=ORANGE, edgecolors="white", linewidths=0.5, zorder=3)
            if name in self.log:
                own.set_xscale("log")
            if name in self.ranges:
                _show_range(own, *self.ranges[name], log=name in self.log)
            if name in self.log:
                _log_ticks(own)
            if ticks is not None:
                own.set_xticks(range(len(ticks)), ticks)
                own.set_xlim(-0.5, len(ticks) - 0.5)
            own.set_xlabel(name)
            if number % columns == 0:
                own.set_ylabel(measure(self.by).label)
            else:
                own.tick_params(labelleft=False)
            own.grid(axis="y", color=GREY, alpha=0.2, linewidth=0.5)
        limits = [own.get_ylim() for own in shown if own.has_data()]
        for own in shown:  # labels stand at the first panel of a row only
            own.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
        return ax


def _show_range(ax: Axes, low: float, high: float, *, log: bool) -> None:
    """Show the whole range, with a little room at its ends."""
    if log:
        room = (high / low) ** 0.04
        ax.set_xlim(low / room, high * room)
    else:
        room = 0.04 * (high - low)
        ax.set_xlim(low - room, high + room)


def _log_ticks(ax: Axes) -> None:
    """As many labels as there is room for: decades, and between them only if there are few."""
    low, high = ax.get_xlim()
    decades = np.log10(high / low)
    subs = (1.0,) if decades > 2.2 else (1.0, 3.0) if decades > 1.2 else (1.0, 2.0, 5.0)
    ax.xaxis.set_major_locator(LogLocator(subs=subs, numticks=4))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.minorticks_off()


def _places(values: list[Any]) -> tuple[np.ndarray, list[str] | None]:
    """Positions of values on their axis, NaN for None, and the labels of those that are not numbers."""
    if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
        return np.array(values, dtype=float), None
    ticks = list(dict.fromkeys(str(value) for value in values if value is not None))
    return np.array([np.nan if value is None else ticks.index(str(value)) for value in values], dtype=float), ticks
