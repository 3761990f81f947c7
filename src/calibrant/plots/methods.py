from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from calibrant.metrics.table import measure
from calibrant.plots.base import COLOURS, GREY, Figure, new_axes, panels, styled

MARKERS = "osD^vP*X<>hp"
#: More methods than this stand below one another, so that their names can be read.
MANY = 10


@dataclass(frozen=True, repr=False)
class AccuracyVsECE(Figure):
    """Methods by accuracy and calibration error (CALS Figure 1); the best are at the lower right.

    Attributes:
        names: Names of the methods.
        accuracy: Their accuracies, fractions.
        ece: Their calibration errors, fractions.
        accuracy_error: Half-widths of error bars, such as standard deviations over seeds; empty for none.
        ece_error: The same for the calibration errors.

    Example:
        >>> from calibrant.plots import AccuracyVsECE
        >>> figure = AccuracyVsECE.from_runs({"ce": [(0.90, 0.06), (0.92, 0.04)], "mbls": [(0.91, 0.02), (0.93, 0.01)]})
        >>> figure.names, [round(ece, 3) for ece in figure.ece]
        (['ce', 'mbls'], [0.05, 0.015])
    """

    names: list[str]
    accuracy: list[float]
    ece: list[float]
    accuracy_error: list[float]
    ece_error: list[float]

    @classmethod
    def from_runs(cls, runs: dict[str, list[tuple[float, float]]]) -> "AccuracyVsECE":
        """From (accuracy, ECE) of every run, by method: means, and standard deviations if there are several."""
        table = [np.array(values, dtype=float) for values in runs.values()]
        means = np.array([values.mean(axis=0) for values in table])
        several = any(len(values) > 1 for values in table)
        errors = np.array([values.std(axis=0, ddof=1) if len(values) > 1 else [0.0, 0.0] for values in table])
        return cls(
            names=list(runs),
            accuracy=means[:, 0].tolist(),
            ece=means[:, 1].tolist(),
            accuracy_error=errors[:, 0].tolist() if several else [],
            ece_error=errors[:, 1].tolist() if several else [],
        )

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw a marker for each method, named in the legend."""
        ax = new_axes(4.4, 2.8) if ax is None else ax
        for i, name in enumerate(self.names):
            ax.errorbar(
                100 * self.accuracy[i],
                100 * self.ece[i],
                xerr=100 * self.accuracy_error[i] if self.accuracy_error else None,
                yerr=100 * self.ece_error[i] if self.ece_error else None,
                fmt=MARKERS[i % len(MARKERS)],
                color=COLOURS[i % len(COLOURS)],
                markeredgecolor="black",
                markeredgewidth=0.4,
                markersize=6,
                elinewidth=0.7,
                label=name,
            )
        ax.set(xlabel="accuracy, %", ylabel="ECE, %")
        ax.set_ylim(bottom=0)
        ax.margins(x=0.1)
        ax.annotate(
            "better",
            xy=(0.97, 0.04),
            xytext=(0.85, 0.17),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=GREY,
            ha="center",
            arrowprops={"arrowstyle": "->", "color": GREY},
        )
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        return ax


@dataclass(frozen=True, repr=False)
class MethodBars(Figure):
    """Mean of each measure for each method, with the standard deviation over seeds (AdaFocal, Appendix H).

    Attributes:
        names: Names of the methods.
        values: For each measure, by its key, the values over seeds of each method, fractions.
        after: The same after temperature scaling, drawn as lighter bars; empty for none.

    Example:
        >>> from calibrant.plots import MethodBars
        >>> MethodBars(["ce", "mbls"], {"ece": [[0.06, 0.04], [0.02, 0.01]]})
        MethodBars(ce, mbls)
    """

    names: list[str]
    values: dict[str, list[list[float]]]
    after: dict[str, list[list[float]]] = field(default_factory=dict)

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw a row of bars for each measure, in two columns if there are many; many methods stand below one another."""
        across = len(self.names) > MANY
        columns = len(self.values) if across else 1 if len(self.values) <= 4 else 2
        rows = -(-len(self.values) // columns)
        if ax is None:
            small, large = 1.2 + 1.3 * columns, 0.5 + 0.15 * len(self.names)
            ax = new_axes(small, large) if across else new_axes(columns * (0.9 + 0.55 * len(self.names)), 0.6 + 1.15 * rows)
        gaps = {"gap": 0.1 / columns} if across else {"gap": 0.18, "row_gap": 0.32 / max(rows, 4)}
        shown = panels(ax, rows, columns, count=len(self.values), **gaps)
        for number, (own, key) in enumerate(zip(shown, self.values, strict=True)):
            self._bars(own, key, across=across)
            places = range(len(self.names))
            if across:
                own.set_yticks(places, [] if number else self.names)
                own.invert_yaxis()
                own.set_title(measure(key).label, fontsize=7)
                own.grid(visible=False, axis="y")
            else:
                own.set_ylabel(measure(key).label, fontsize=6)
                last = number + columns >= len(self.values)
                own.set_xticks(places, self.names if last else [], rotation=30, ha="right")
        if self.after:
            place: Any = {"y": -0.06, "va": "top"} if across else {}
            shown[0].set_title("light: after temperature scaling", fontsize=6, loc="left", pad=3, **place)
        return ax

    def _bars(self, ax: Axes, key: str, *, across: bool) -> None:
        """The bars of a measure, upright or across."""
        scale = measure(key).scale
        colours = [COLOURS[0] if across else COLOURS[i % len(COLOURS)] for i in range(len(self.names))]
        stages = [self.values[key], self.after[key]] if key in self.after else [self.values[key]]
        width = 0.7 / len(stages)
        for stage, groups in enumerate(stages):
            means = [scale * float(np.mean(group)) for group in groups]
            spread = [scale * float(np.std(group, ddof=1)) if len(group) > 1 else 0.0 for group in groups]
            places = np.arange(len(self.names)) + width * (stage - (len(stages) - 1) / 2)
            look: Any = {"color": colours, "error_kw": {"elinewidth": 0.8}, **({"alpha": 0.45} if stage else {})}
            if across:
                ax.barh(places, means, xerr=spread, height=width, **look)
                ax.set_ylim(-0.6, len(self.names) - 0.4)
            else:
                ax.bar(places, means, yerr=spread, width=width, **look)
