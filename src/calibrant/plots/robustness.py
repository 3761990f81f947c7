from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes

from calibrant.inputs import Array
from calibrant.metrics.ood import Score, ood_auroc, uncertainty
from calibrant.plots.base import COLOURS, GREY, Figure, new_axes, panels, styled


@dataclass(frozen=True, repr=False)
class ROC(Figure):
    """ROC curves of OOD detection: detected OOD samples against rejected test samples (AdaFocal Figure 6).

    Attributes:
        title: Title of the figure.
        names: Name of each curve.
        known: Fraction of test samples above each threshold, for each curve.
        unknown: Fraction of OOD samples above it.
        auroc: Area under each curve.

    Example:
        >>> from calibrant.plots import ROC
        >>> known, unknown = [[4.0, 0.0], [3.0, 0.0], [0.5, 0.0]], [[0.0, 1.0], [0.2, 0.0]]
        >>> [round(area, 4) for area in ROC.from_logits({"network": (known, unknown)}).auroc]
        [0.8333]
    """

    title: str
    names: list[str]
    known: list[list[float]]
    unknown: list[list[float]]
    auroc: list[float]

    @classmethod
    def from_logits(
        cls,
        pairs: Mapping[str, tuple[Array, Array]],
        *,
        scores: Sequence[Score] = (),
        title: str = "",
        points: int = 500,
        probs: bool | None = None,
    ) -> "ROC":
        """From the logits of test and OOD samples, by name of the curve; by entropy if no scores are given.

        With ``probs=True`` they are probabilities; see :class:`calibrant.inputs.Given`.
        """
        known, unknown, areas = [], [], []
        chosen_scores: Sequence[Score] = scores or ["entropy"] * len(pairs)
        for (first, second), score in zip(pairs.values(), chosen_scores, strict=True):
            doubts = [uncertainty(logits, score, probs=probs).cpu() for logits in (first, second)]
            levels = torch.cat(doubts).unique().flip(0)
            chosen = levels[torch.linspace(0, len(levels) - 1, min(points, len(levels))).round().long()].unique()
            shares = [
                [0.0, *(1 - torch.searchsorted(doubt.sort().values, chosen) / len(doubt)).flip(0).tolist(), 1.0]
                for doubt in doubts
            ]
            known.append(shares[0])
            unknown.append(shares[1])
            areas.append(float(ood_auroc(first, second, score=score, probs=probs)))
        return cls(title, list(pairs), known, unknown, areas)

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the curves and the diagonal of random guessing."""
        ax = new_axes(3.2, 3.2 + 0.17 * (1 + len(self.names))) if ax is None else ax
        ax.plot([0, 100], [0, 100], color=GREY, linewidth=0.6, linestyle=":")
        for i, name in enumerate(self.names):
            ax.plot(
                100 * np.array(self.known[i]),
                100 * np.array(self.unknown[i]),
                color=COLOURS[i % len(COLOURS)],
                linestyle="-" if i < len(COLOURS) else "--",
                label=f"{name}: {100 * self.auroc[i]:.2f}%",
            )
        ax.set(xlabel="test samples rejected, %", ylabel="OOD samples detected, %", xlim=(0, 100), ylim=(0, 100.5))
        ax.set_aspect("equal")
        ax.set_title(self.title)
        ax.legend(title="area under the curve", loc="upper center", bbox_to_anchor=(0.5, -0.16))
        return ax


@dataclass(frozen=True, repr=False)
class ShiftCurves(Figure):
    """Accuracy and ECE of several models against the severity of corruptions, means over the corruptions.

    Attributes:
        names: Names of the models.
        severities: Severities, from 0 for clean images.
        accuracy: Accuracy of each model at each severity, a fraction.
        ece: Calibration error of each model at each severity, a fraction.

    Example:
        >>> from calibrant.plots import ShiftCurves
        >>> ShiftCurves(["ce"], [0, 1, 2], accuracy=[[0.9, 0.8, 0.6]], ece=[[0.02, 0.05, 0.14]])
        ShiftCurves(ce)
    """

    names: list[str]
    severities: list[int]
    accuracy: list[list[float]]
    ece: list[list[float]]

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw accuracy on the left and ECE on the right."""
        ax = new_axes(6.4, 2.6) if ax is None else ax
        left, right = panels(ax, 1, 2, gap=0.14)
        for part, values, title in ((left, self.accuracy, "accuracy, %"), (right, self.ece, "ECE, %")):
            for i, name in enumerate(self.names):
                part.plot(
                    self.severities,
                    100 * np.array(values[i]),
                    marker="o",
                    markersize=3,
                    color=COLOURS[i % len(COLOURS)],
                    linestyle="-" if i < len(COLOURS) else "--",
                    label=name,
                )
            part.set(xlabel="corruption severity (0: none)", ylabel=title, xticks=self.severities)
        right.set_ylim(bottom=0)
        if len(self.names) > 1:
            right.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        return ax
