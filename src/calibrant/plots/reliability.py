from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, NullLocator

from calibrant import inputs, tensors
from calibrant.binning import Binning, BinStatistics, bin_statistics, equal_mass_edges
from calibrant.checks import one_of, whole
from calibrant.inputs import Array, Given, column_names, shown
from calibrant.metrics import calibration
from calibrant.metrics.estimators import calibration_error
from calibrant.metrics.panel import Panel, PanelResult
from calibrant.outcomes import top_label
from calibrant.plots.base import BLUE, COLOURS, GREY, ORANGE, Figure, new_axes, percent, styled
from calibrant.stats import Interval, bootstrap, true_error_interval, wilson
from calibrant.stats.inversion import INVERSION

if TYPE_CHECKING:
    from typing_extensions import Unpack

OVER, UNDER = "#F2B48A", "#7FCDB5"  # light ORANGE and GREEN


@dataclass(frozen=True, repr=False)
class ReliabilityDiagram(Figure):
    """Accuracy against confidence, bin by bin; a calibrated model lies on the diagonal.

    Attributes:
        name: Name of the model.
        counts: Samples in each bin.
        confidence: Mean confidence of each bin, 0 if it is empty.
        accuracy: Accuracy of each bin, 0 if it is empty.
        low: Lower end of the accuracy's interval.
        high: Upper end.
        ece: The expected calibration error.
        ece_low: Lower end of the interval of the true error; the ECE itself is biased upwards on small samples. Where
            samples are not independent, such as pixels, it is the interval of the ECE over images.
        ece_high: Upper end.
        level: Confidence level of the intervals.
        samples: Number of samples.
        event: Name of the event, if it is one's probability that is compared with its frequency.
        edges: Inner edges of equal-mass bins; empty for bins of equal width.
        resampled: Whether the interval is that of the ECE itself, from resampling images, and not of the true error.

    Example:
        >>> from calibrant.plots import ReliabilityDiagram
        >>> logits, target = [[4.0, 0.0]] * 80, [0] * 60 + [1] * 20
        >>> diagram = ReliabilityDiagram.from_logits(logits, target, name="overconfident")
        >>> diagram
        ReliabilityDiagram(overconfident)
        >>> round(diagram.ece, 3), diagram.samples
        (0.232, 80)
        >>> axes = diagram.plot()  # or diagram.save("reliability.png")
    """

    name: str
    counts: list[int]
    confidence: list[float]
    accuracy: list[float]
    low: list[float]
    high: list[float]
    ece: float
    ece_low: float
    ece_high: float
    level: float
    samples: int
    event: str = ""
    edges: list[float] = field(default_factory=list)
    resampled: bool = False

    @classmethod
    @shown
    def from_logits(
        cls,
        logits: Array,
        target: Array,
        name: str = "",
        *,
        num_bins: int = 15,
        binning: Binning = "width",
        level: float = 0.95,
        resamples: int = 1000,
        **given: "Unpack[Given]",
    ) -> "ReliabilityDiagram":
        """Measure a model; 15 equal-width bins by default, 25 in the CALS paper's Figure 4.

        With ``binning="mass"``, bins hold (nearly) equal numbers of samples. ``ignore_index``, ``probs`` and ``task`` are
        those of :class:`calibrant.inputs.Given`.
        """
        one_of("binning", binning, ("width", "mass"))
        options: Any = {"level": level, "resamples": resamples}
        outcomes = calibration.measured(logits, target, soft=calibration.NO_NOISE, **given)
        edges: list[float] = []
        if binning == "mass":
            confidence = outcomes.confidence.double()
            inner = equal_mass_edges(confidence, whole("num_bins", num_bins, 1), lambda tensor: tensor)
            bins, edges = bin_statistics(confidence, outcomes.correct, inner), inner.tolist()
        else:
            bins = calibration.width_bins(outcomes, num_bins)
        event = "" if given.get("task", "multiclass") == "multiclass" else "the event"
        metric = "adaptive_ece" if edges else "ece"
        if len(np.shape(target)) > 1:  # pixels of an image, or labels of a sample, are not independent
            ece = bootstrap(metric, logits, target, num_bins=num_bins, **options, **given)
            return cls.from_bins(bins, ece, name, event=event, edges=edges)
        return cls.from_bins(bins, true_error_interval(bins, **options), name, event=event, edges=edges)

    @classmethod
    def per_label(
        cls, logits: Array, target: Array, names: Sequence[str] | None = None, *, num_bins: int = 15, **given: Any
    ) -> "list[ReliabilityDiagram]":
        """A diagram for each label of a multi-label task, to be drawn with :meth:`side_by_side`.

        Args:
            logits: ``(N, L)``.
            target: 0 or 1, in the same shape.
            names: Names of the labels; those of the columns of a data frame by default.
            num_bins: Number of equal-width bins.
            **given: ``ignore_index`` and ``probs``; see :class:`calibrant.inputs.Given`.
        """
        panel = Panel(np.shape(logits)[1], num_bins=num_bins, task="multilabel", **given)
        panel.update(logits, target)
        bins = panel.compute().class_bins
        names = names or [str(name) for name in column_names(logits) or range(len(bins.counts))]
        if len(names) != len(bins.counts):
            raise ValueError(f"names must have one name for each of {len(bins.counts)} labels, got {len(names)}")
        return [
            cls.from_bins(BinStatistics(*(part[k] for part in bins)), name=name, event=name) for k, name in enumerate(names)
        ]

    @classmethod
    def from_panel(cls, result: PanelResult, name: str = "", *, ece: Interval | None = None) -> "ReliabilityDiagram":
        """From the bins of a panel; ``ece`` is the interval of the error, by default that of independent samples."""
        return cls.from_bins(result.bins, ece, name, event="" if result.task == "multiclass" else "the event")

    @classmethod
    def from_bins(
        cls,
        bins: BinStatistics,
        ece: Interval | None = None,
        name: str = "",
        *,
        event: str = "",
        edges: Sequence[float] = (),
    ) -> "ReliabilityDiagram":
        """From sums over bins, of equal width if no ``edges`` are given.

        ``ece`` is the interval of the error, by default that of independent samples.
        """
        resampled = ece is not None and ece.method != INVERSION
        ece = true_error_interval(bins) if ece is None else ece
        confidence, accuracy = bins.means()
        low, high = wilson(bins.correct, bins.counts, level=ece.level)
        return cls(
            name=name,
            counts=bins.counts.long().tolist(),
            confidence=confidence.tolist(),
            accuracy=accuracy.tolist(),
            low=low.tolist(),
            high=high.tolist(),
            ece=float(calibration_error(bins)),
            ece_low=ece.low,
            ece_high=ece.high,
            level=ece.level,
            samples=int(bins.counts.sum()),
            event=event,
            edges=list(edges),
            resampled=resampled,
        )

    @property
    def axes(self) -> tuple[str, str]:
        """What is on the horizontal and the vertical axis."""
        return (f"probability of {self.event}", "frequency") if self.event else ("confidence", "accuracy")

    @property
    def label(self) -> str:
        """The ECE, and the interval of the true error."""
        what = "interval" if self.resampled else "true error"
        name = "AdaECE" if self.edges else "ECE"
        return f"{name} {percent(self.ece)}, {what} {100 * self.ece_low:.2f} to {100 * self.ece_high:.2f}%"

    @property
    def how(self) -> str:
        """Bins and samples."""
        return f"{len(self.counts)} equal-{'mass' if self.edges else 'width'} bins, n = {self.samples:,}"

    @styled
    def plot(
        self,
        ax: Axes | None = None,
        *,
        style: Literal["bars", "line"] = "bars",
        colour: str = BLUE,
        counts: bool = True,
        legend: bool = True,
    ) -> Axes:
        """Draw bars, or a line that can share its axes; with ``counts``, also the number of samples in each bin, below.

        Empty bins are hatched. Whiskers are intervals of the accuracy.
        """
        ax = new_axes(3.0, 3.7 if counts else 3.0) if ax is None else ax
        edges = np.array([0, *self.edges, 1]) if self.edges else np.linspace(0, 1, len(self.counts) + 1)
        filled = np.array(self.counts) > 0
        confidence, accuracy = np.array(self.confidence), np.array(self.accuracy)
        whiskers = np.abs(np.array([self.low, self.high]) - accuracy)[:, filled]
        ax.plot([0, 1], [0, 1], "--", color=GREY, linewidth=0.8, zorder=3)
        if style == "bars":
            self._bars(ax, edges, filled, colour)
            centres = confidence if self.edges else (edges[:-1] + edges[1:]) / 2
            ax.errorbar(centres[filled], accuracy[filled], whiskers, fmt="none", ecolor="black", elinewidth=0.7, zorder=4)
            ax.set_title(self.name, pad=22)
            ax.text(0.5, 1.02, f"{self.label}\n{self.how}", transform=ax.transAxes, ha="center", va="bottom", fontsize=6.5)
        else:
            label = f"{self.name}: {self.label}" if self.name else self.label
            line: Any = {"fmt": "o-", "markersize": 2.5, "elinewidth": 0.4, "color": colour, "label": label}
            ax.errorbar(confidence[filled], accuracy[filled], whiskers, **line)
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
        ax.set(xlim=(0, 1), ylim=(0, 1), ylabel=self.axes[1])
        if counts:
            self._histogram(ax, edges, colour, legend=legend)
        else:
            ax.set_xlabel(self.axes[0])
        return ax

    def _bars(self, ax: Axes, edges: np.ndarray, filled: np.ndarray, colour: str) -> None:
        """Accuracy, and the gap by which confidence exceeds or falls short of it."""
        widths = np.diff(edges)
        width = widths[filled]
        confidence, accuracy = np.array(self.confidence)[filled], np.array(self.accuracy)[filled]
        both, left = np.minimum(confidence, accuracy), edges[:-1][filled]
        style: Any = {"align": "edge", "edgecolor": "white", "linewidth": 0.3 if self.edges else 0.5, "zorder": 2}
        empty: Any = {"align": "edge", "fill": False, "edgecolor": "#D9D9D9", "hatch": "////", "linewidth": 0}
        ax.bar(edges[:-1][~filled], 1, widths[~filled], **empty)
        ax.bar(left, both, width, color=colour, **style)
        ax.bar(
            left,
            np.maximum(confidence - accuracy, 0),
            width,
            both,
            color=OVER,
            label="too high" if self.event else "overconfident",
            **style,
        )
        ax.bar(
            left,
            np.maximum(accuracy - confidence, 0),
            width,
            both,
            color=UNDER,
            label="too low" if self.event else "underconfident",
            **style,
        )

    def _histogram(self, ax: Axes, edges: np.ndarray, colour: str, *, legend: bool) -> None:
        ax.tick_params(labelbottom=False)
        below = ax.inset_axes((0, -0.26, 1, 0.2), sharex=ax)
        style: Any = {"align": "edge", "color": colour, "edgecolor": "white", "linewidth": 0.3 if self.edges else 0.5}
        below.bar(edges[:-1], self.counts, np.diff(edges), **style)
        below.set(xlabel=self.axes[0], ylabel="samples", yscale="log", ylim=(0.7, 2 * max(self.counts)))
        below.yaxis.set_major_locator(LogLocator(numticks=3))
        below.yaxis.set_minor_locator(NullLocator())
        below.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        below.tick_params(labelbottom=True)
        handles, labels = ax.get_legend_handles_labels()
        if legend and handles:
            below.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.85), ncols=2, columnspacing=1)

    @staticmethod
    @styled
    def side_by_side(diagrams: "list[ReliabilityDiagram]") -> Canvas:
        """Several models, or one before and after calibration, next to each other on the same axes."""
        rows = -(-len(diagrams) // 4)  # at most four in a row, and rows as even as possible
        columns = -(-len(diagrams) // rows)
        figure, axes = plt.subplots(rows, columns, figsize=(2.4 * columns, 3.6 * rows), squeeze=False)
        for ax, diagram in zip(axes.flat, diagrams, strict=False):
            diagram.plot(ax, legend=False)
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        for ax in axes.flat[len(diagrams) :]:
            ax.set_visible(False)
        for ax in axes[:, 1:].flat:
            ax.set_ylabel("")
        return figure

    @staticmethod
    @styled
    def overlay(diagrams: "list[ReliabilityDiagram]", ax: Axes | None = None) -> Axes:
        """Several models as lines in one diagram."""
        ax = new_axes(3.2, 3.4) if ax is None else ax
        for i, diagram in enumerate(diagrams):
            diagram.plot(ax, style="line", colour=COLOURS[i % len(COLOURS)], counts=False)
        return ax


@dataclass(frozen=True, repr=False)
class ConfidenceHistogram(Figure):
    """Histogram of the confidence of correct and wrong predictions.

    Attributes:
        name: Name of the model.
        right: Correct predictions in each equal-width bin.
        wrong: Wrong predictions in each bin.
        mean_confidence: Mean confidence.
        accuracy: Accuracy.

    Example:
        >>> from calibrant.plots import ConfidenceHistogram
        >>> histogram = ConfidenceHistogram.from_logits([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2, num_bins=2)
        >>> histogram.right, histogram.wrong, round(histogram.mean_confidence, 3), histogram.accuracy
        ([0, 6], [0, 2], 0.982, 0.75)
    """

    name: str
    right: list[int]
    wrong: list[int]
    mean_confidence: float
    accuracy: float

    @classmethod
    @shown
    def from_logits(
        cls, logits: Array, target: Array, name: str = "", *, num_bins: int = 25, **given: "Unpack[Given]"
    ) -> "ConfidenceHistogram":
        """Measure a model; see :class:`calibrant.inputs.Given`."""
        whole("num_bins", num_bins, 1)
        samples = inputs.for_measuring(logits, target, **given)
        tensors.check_not_empty(int(samples.kept.sum()), **given)
        outcomes = top_label(samples)
        bins = calibration.width_bins(outcomes, num_bins)
        return cls(
            name=name,
            right=bins.correct.tolist(),
            wrong=(bins.counts - bins.correct).tolist(),
            mean_confidence=float(outcomes.confidence.double().mean()),
            accuracy=float(outcomes.correct.double().mean()),
        )

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw stacked bars and the two means, which coincide if the network is calibrated overall."""
        ax = new_axes() if ax is None else ax
        edges = np.linspace(0, 1, len(self.right) + 1)
        width = edges[1] - edges[0]
        total = sum(self.right) + sum(self.wrong)
        right, wrong = np.array(self.right) / total, np.array(self.wrong) / total
        style: Any = {"align": "edge", "edgecolor": "white", "linewidth": 0.4}
        ax.bar(edges[:-1], 100 * wrong, width, color=ORANGE, label="wrong", **style)
        ax.bar(edges[:-1], 100 * right, width, bottom=100 * wrong, color=BLUE, label="correct", **style)
        ax.axvline(self.accuracy, color="black", linewidth=1, label=f"accuracy {percent(self.accuracy, 1)}")
        ax.axvline(
            self.mean_confidence,
            color="black",
            linestyle=":",
            linewidth=1.2,
            label=f"confidence {percent(self.mean_confidence, 1)}",
        )
        ax.set(xlim=(0, 1), xlabel="confidence", ylabel="samples, %", title=self.name)
        ax.legend(loc="upper left")
        return ax
