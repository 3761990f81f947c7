from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from calibrant.metrics import calibration
from calibrant.metrics.cells import area_under_risk_coverage
from calibrant.plots.base import COLOURS, GREY, Figure, new_axes, panels, percent, styled
from calibrant.validation import whole

MARKERS = "osD^vP*X<>hp"


@dataclass(frozen=True)
class AccuracyVsECE(Figure):
    """Methods by accuracy and calibration error (CALS Figure 1): best is down and to the right.

    Attributes:
        names: Names of the methods.
        accuracy: Their accuracies, fractions.
        ece: Their calibration errors, fractions.
        accuracy_error: Half-widths of error bars, such as standard deviations over seeds; empty for none.
        ece_error: The same of the calibration errors.
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


@dataclass(frozen=True)
class RiskCoverage(Figure):
    """Error rate of the most confident predictions, against how many of all are kept.

    Attributes:
        name: Name of the model.
        coverage: Shares of the samples, ascending.
        risk: Error rate among the most confident of that share.
        aurc: Area under the curve.
    """

    name: str
    coverage: list[float]
    risk: list[float]
    aurc: float

    @classmethod
    def from_logits(
        cls, logits: Tensor, target: Tensor, name: str = "", points: int = 200, *, ignore_index: int = -100
    ) -> "RiskCoverage":
        """Measure a model at evenly spaced shares of its samples; of equal confidences, any may come first."""
        whole("points", points, 2)
        cells = calibration.ordered(logits, target, ignore_index)
        covered = cells.counts.flip(0).cumsum(0).cpu().numpy()
        wrong = (cells.counts - cells.correct).flip(0).cumsum(0).cpu().numpy()
        total = covered[-1]
        numbers = np.unique(np.linspace(1, total, points).round())
        errors = np.interp(numbers, np.concatenate([[0], covered]), np.concatenate([[0], wrong]))
        aurc = float(area_under_risk_coverage(cells))
        return cls(name, (numbers / total).tolist(), (errors / numbers).tolist(), aurc)

    @styled
    def plot(self, ax: Axes | None = None, *, colour: str = COLOURS[0]) -> Axes:
        """Draw the curve; several models may share axes."""
        ax = new_axes() if ax is None else ax
        name = f"{self.name}, " if self.name else ""
        label = f"{name}area {percent(self.aurc)}"
        ax.plot(100 * np.array(self.coverage), 100 * np.array(self.risk), color=colour, label=label)
        ax.set(xlabel="coverage, %", ylabel="error rate, %", xlim=(0, 100))
        ax.set_ylim(bottom=0)
        ax.legend(loc="upper left")
        return ax


@dataclass(frozen=True)
class MethodBars(Figure):
    """Mean of each measure for each method, with the standard deviation over seeds (AdaFocal, Appendix H).

    Attributes:
        names: Names of the methods.
        values: For each measure, the values over seeds of each method, fractions.
    """

    names: list[str]
    values: dict[str, list[list[float]]]

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw a row of bars for each measure, in two columns if they are many."""
        columns = 1 if len(self.values) <= 4 else 2
        rows = -(-len(self.values) // columns)
        ax = new_axes(columns * (0.9 + 0.55 * len(self.names)), 0.6 + 1.15 * rows) if ax is None else ax
        shown = panels(ax, rows, columns, gap=0.18, row_gap=0.32 / max(rows, 4))
        for spare in shown[len(self.values) :]:
            spare.set_axis_off()
        for number, (own, (measure, groups)) in enumerate(zip(shown, self.values.items(), strict=False)):
            scale = 1 if measure in ("nll", "brier") else 100
            means = [scale * float(np.mean(group)) for group in groups]
            spread = [scale * float(np.std(group, ddof=1)) if len(group) > 1 else 0.0 for group in groups]
            colours = [COLOURS[i % len(COLOURS)] for i in range(len(self.names))]
            own.bar(range(len(self.names)), means, yerr=spread, color=colours, width=0.7, error_kw={"elinewidth": 0.8})
            own.set_ylabel(_label(measure) + (", %" if scale == 100 else ""), fontsize=6)
            last = number + columns >= len(self.values)
            own.set_xticks(range(len(self.names)), self.names if last else [], rotation=30, ha="right")
        return ax


def _label(measure: str) -> str:
    """A measure's name as one writes it."""
    text = measure.replace("_", " ").replace("auroc:", "AUROC ")
    return " ".join({"ece": "ECE", "nll": "NLL", "iou": "IoU"}.get(word, word) for word in text.split())
