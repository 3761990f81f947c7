"""What all figures share: colours that everyone can tell apart, and sizes that fit a paper's column."""

import functools
import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

P = ParamSpec("P")
R = TypeVar("R")

#: Okabe and Ito's palette, which colour-blind readers can tell apart; black, its eighth, is for text and axes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
BLUE, ORANGE, GREEN, PINK = COLOURS[:4]
GREY = "#808080"

STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.3,
    "figure.constrained_layout.use": True,
    "figure.dpi": 150,
    "savefig.dpi": 200,
}


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Draw in the package's style, whatever the user's is."""

    @functools.wraps(function)
    def draw(*args: P.args, **kwargs: P.kwargs) -> R:
        with mpl.rc_context(STYLE):
            return function(*args, **kwargs)

    return draw


class Figure(ABC):
    """A figure: a dataclass with its data."""

    @abstractmethod
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw into ``ax``, or into a new figure of suitable size, and return the axes."""

    def to_dict(self) -> dict[str, Any]:
        """The data, in plain Python types."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @styled
    def save(self, path: str | Path | IO[bytes], **options: Any) -> None:
        """Draw into a new figure and save it; the extension sets the format. Options are those of ``savefig``."""
        figure = self.plot().get_figure(root=True)
        if figure is not None:
            figure.savefig(path, bbox_inches="tight", **options)
            plt.close(figure)

    def __repr__(self) -> str:
        names = getattr(self, "names", None) or [getattr(self, "name", "")]
        return f"{type(self).__name__}({', '.join(filter(None, names))})"

    def _repr_png_(self) -> bytes:
        """The figure as shown in a notebook."""
        image = io.BytesIO()
        self.save(image, format="png")
        return image.getvalue()


def new_axes(width: float = 3.4, height: float = 2.6) -> Axes:
    """Axes of a new figure, sized in inches; 3.4 is a column of a paper."""
    _, ax = plt.subplots(figsize=(width, height))
    return ax


def panels(
    ax: Axes, rows: int, columns: int, *, count: int | None = None, gap: float = 0.12, row_gap: float | None = None
) -> list[Axes]:
    """Divide axes into a grid of smaller ones, row by row; of the last row, only as many as make up ``count``."""
    ax.set_axis_off()
    below = gap if row_gap is None else row_gap
    width, height = (1 - gap * (columns - 1)) / columns, (1 - below * (rows - 1)) / rows
    return [
        ax.inset_axes((column * (width + gap), 1 - (row + 1) * height - row * below, width, height))
        for row in range(rows)
        for column in range(columns)
        if count is None or row * columns + column < count
    ]


def percent(value: float, digits: int = 2) -> str:
    """A fraction as percent."""
    return f"{100 * value:.{digits}f}%"


def close_all() -> None:
    """Free the memory of all figures drawn so far."""
    plt.close("all")
