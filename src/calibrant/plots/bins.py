from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from calibrant.checks import one_of
from calibrant.metrics.epochs import Binning, EpochBins, Label
from calibrant.plots.base import COLOURS, GREY, Figure, new_axes, panels, styled

#: Rows of panels by name: (axis title, kinds of lines).
ROWS: Final = {
    "error": ("confidence - accuracy, %", ("validation",)),
    "confidence": ("mean confidence", ("train", "validation")),
    "all": ("confidence, accuracy", ("train", "validation", "accuracy")),
    "labels": ("mean training confidence", ("true", "top")),
    "edges": ("edges of the bin", ("lower", "upper")),
    "gamma": ("gamma", ("gamma",)),
}
#: Line style and legend entry of each kind of line.
STYLES: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "train": ({"linestyle": "-"}, "training confidence"),
    "validation": ({"linestyle": "-", "linewidth": 0.6, "marker": "*", "markersize": 4}, "validation confidence"),
    "accuracy": ({"linestyle": "--"}, "validation accuracy"),
    "true": ({"linestyle": "-"}, "of the true class"),
    "top": ({"linestyle": ":"}, "of the predicted class"),
}
PLAIN: Final[dict[str, Any]] = {"linestyle": "-"}
#: Maximum number of bins side by side.
ACROSS: Final = 5


@dataclass(frozen=True, repr=False)
class BinCurves(Figure):
    """Equal-mass bins over epochs: a panel for each bin and quantity, a colour for each method (AdaFocal Figures 1b, 2, 5).

    Attributes:
        names: Names of the methods.
        epochs: Epochs of each method.
        bins: The bins shown, from 0 for the least confident.
        rows: For each row of panels, by name, and each kind of line: the values of each method, by bin and epoch.

    Example:
        >>> import torch
        >>> from calibrant.metrics import BinRecorder, EpochBins
        >>> from calibrant.plots import BinCurves
        >>> recorder, rows = BinRecorder(num_bins=3), []
        >>> for epoch in range(4):
        ...     recorder.train(torch.randn(90, 3), torch.arange(90) % 3)
        ...     recorder.validation(torch.randn(90, 3), torch.arange(90) % 3)
        ...     rows.append(recorder.take())
        >>> bins = EpochBins.from_rows(rows, epochs=[1, 2, 3, 4])
        >>> BinCurves.from_bins({"ce": [bins]}, rows=["error", "confidence"]).bins
        [0, 1, 2]
    """

    names: list[str]
    epochs: list[list[float]]
    bins: list[int]
    rows: dict[str, dict[str, list[list[list[float]]]]]

    @classmethod
    def from_bins(
        cls,
        runs: Mapping[str, Sequence[EpochBins]],
        *,
        rows: Sequence[str] = ("error",),
        bins: Sequence[int] | None = None,
        label: Label = "true",
        binning: Binning = "common",
        gammas: Mapping[str, np.ndarray] | None = None,
    ) -> "BinCurves":
        """From the bins of runs, by method; draws the mean over runs, for the epochs that all of them have.

        Args:
            runs: Bins of the runs of each method.
            rows: What to draw: ``"error"`` (of the validation bins), ``"confidence"`` (training and validation), ``"all"``
                (the same and validation accuracy), ``"labels"`` (training confidence by true and predicted class),
                ``"edges"`` and ``"gamma"``.
            bins: Bins to show, by default the first, the middle and the last.
            label: Which probability of training samples to show: of the true or of the predicted (``"top"``) class.
            binning: Training samples in the bins of the validation samples (``"common"``) or in their own.
            gammas: ``(T, M)`` gammas of the methods that have them, for the row of that name.
        """
        for row in rows:
            one_of("rows", row, tuple(ROWS))
        length = {name: min(len(own.epochs) for own in group) for name, group in runs.items()}
        first = next(iter(runs.values()))[0]
        shown = [0, first.num_bins // 2, first.num_bins - 1] if bins is None else list(bins)
        shown = list(dict.fromkeys(b for b in shown if 0 <= b < first.num_bins))
        found: dict[str, dict[str, list[list[list[float]]]]] = {}
        for row in rows:
            found[row] = {}
            for kind in ROWS[row][1]:
                found[row][kind] = [
                    cls._values(name, group, length[name], shown, (row, kind), (label, binning), gammas or {})
                    for name, group in runs.items()
                ]
        epochs = [group[0].epochs[: length[name]].tolist() for name, group in runs.items()]
        return cls(list(runs), epochs, shown, found)

    @staticmethod
    def _values(
        name: str,
        group: Sequence[EpochBins],
        length: int,
        shown: Sequence[int],
        what: tuple[str, str],
        how: tuple[Label, Binning],
        gammas: Mapping[str, np.ndarray],
    ) -> list[list[float]]:
        """One kind of line of one method, by bin and epoch."""
        if what[0] == "gamma":
            path = gammas[name][:length] if name in gammas else np.full((length, group[0].num_bins), np.nan)
        else:
            values = np.stack([_quantity(own, what, how)[:length] for own in group])
            filled = ~np.isnan(values)
            path = np.where(filled, values, 0).sum(axis=0) / np.where(filled.any(axis=0), filled.sum(axis=0), np.nan)
        return [path[:, b].tolist() for b in shown]

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw up to five bins side by side, each with its rows of panels."""
        across = min(ACROSS, len(self.bins))
        blocks, rows = -(-len(self.bins) // across), list(self.rows)
        height = blocks * len(rows)
        if ax is None:
            ax = new_axes(0.6 + 1.75 * across, 0.5 + 1.35 * height)
        shown = panels(ax, height, across, gap=0.28 / across, row_gap=0.3 / height)
        for own in shown[(blocks - 1) * len(rows) * across :]:
            own.set_visible(False)
        for place, b in enumerate(self.bins):
            block, column = divmod(place, across)
            for r, row in enumerate(rows):
                own = shown[(block * len(rows) + r) * across + column]
                own.set_visible(True)
                self._panel(own, row, place)
                if r == 0:
                    own.set_title(f"bin {b}", fontsize=7, pad=3)
                if column == 0:
                    own.set_ylabel(
                        ROWS[row][0].replace(" - ", " -\n") if len(ROWS[row][0]) > 18 else ROWS[row][0], fontsize=6.5
                    )
                last = r == len(rows) - 1
                own.tick_params(labelbottom=last, labelsize=6)
                if last and place + across >= len(self.bins):
                    own.set_xlabel("epoch")
        self._legend(shown[across - 1])
        return ax

    def _panel(self, ax: Axes, row: str, place: int) -> None:
        for kind, methods in self.rows[row].items():
            style = {**PLAIN, **(STYLES[kind][0] if kind in STYLES and row != "error" else {})}
            scale = 100 if row == "error" else 1
            for i, values in enumerate(methods):
                own = scale * np.array(values[place], dtype=float)
                if "marker" in style:
                    style["markevery"] = max(1, len(own) // 12)
                ax.plot(self.epochs[i], own, color=COLOURS[i % len(COLOURS)], **{"linewidth": 1.0, **style})
        if row == "error":
            ax.axhline(0, color="black", linewidth=0.6)
        ax.xaxis.set_major_locator(MaxNLocator(3, integer=True))

    def _legend(self, ax: Axes) -> None:
        """Legend: colours for methods, line styles for kinds of lines."""
        handles = [Line2D([], [], color=COLOURS[i % len(COLOURS)], label=name) for i, name in enumerate(self.names)]
        kinds = list(
            dict.fromkeys(kind for row, own in self.rows.items() if row != "error" for kind in own if kind in STYLES)
        )
        handles += [Line2D([], [], color=GREY, label=STYLES[kind][1], **STYLES[kind][0]) for kind in kinds]
        ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.05, 1.0))


def _quantity(bins: EpochBins, what: tuple[str, str], how: tuple[Label, Binning]) -> np.ndarray:
    """The values of a line, ``(T, M)``."""
    row, kind = what
    label, binning = how
    validation = bins.of("validation")
    if row == "error":
        return validation.error
    if row == "edges":
        outside = np.zeros_like(validation.edges[:, :1])
        return np.concatenate([outside, validation.edges] if kind == "lower" else [validation.edges, outside + 1], axis=1)
    if row == "labels":
        return bins.of("train", label="top" if kind == "top" else "true", binning=binning).confidence
    if kind == "train":
        return bins.of("train", label=label, binning=binning).confidence
    return validation.confidence if kind == "validation" else validation.accuracy
