from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from calibrant.checks import whole
from calibrant.inputs import Array, Given, shown
from calibrant.metrics.estimators import area_under_risk_coverage
from calibrant.metrics.selective import by_confidence
from calibrant.plots.base import COLOURS, Figure, new_axes, percent, styled

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, repr=False)
class RiskCoverage(Figure):
    """Error rate of the most confident predictions against coverage, the fraction of samples kept.

    Attributes:
        name: Name of the model.
        coverage: Fractions of the samples, ascending.
        risk: Error rate of that fraction of the most confident samples.
        aurc: Area under the curve.

    Example:
        >>> from calibrant.plots import RiskCoverage
        >>> curve = RiskCoverage.from_logits([[4.0, 0.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]], [0, 0, 1, 0], points=4)
        >>> curve.coverage, [round(risk, 3) for risk in curve.risk]
        ([0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.333, 0.25])
    """

    name: str
    coverage: list[float]
    risk: list[float]
    aurc: float

    @classmethod
    @shown
    def from_logits(
        cls, logits: Array, target: Array, name: str = "", *, points: int = 200, **given: "Unpack[Given]"
    ) -> "RiskCoverage":
        """Measure a model at evenly spaced coverages; ties come in any order.

        ``ignore_index``, ``probs`` and ``task`` are those of :class:`calibrant.inputs.Given`.
        """
        whole("points", points, 2)
        ordered = by_confidence(logits, target, **given)
        covered = ordered.counts.flip(0).cumsum(0).cpu().numpy()
        wrong = (ordered.counts - ordered.correct).flip(0).cumsum(0).cpu().numpy()
        total = covered[-1]
        numbers = np.unique(np.linspace(1, total, points).round())
        errors = np.interp(numbers, np.concatenate([[0], covered]), np.concatenate([[0], wrong]))
        aurc = float(area_under_risk_coverage(ordered))
        return cls(name, (numbers / total).tolist(), (errors / numbers).tolist(), aurc)

    @styled
    def plot(self, ax: Axes | None = None, *, colour: str = COLOURS[0]) -> Axes:
        """Draw the curve; several models may share axes."""
        ax = new_axes() if ax is None else ax
        name = f"{self.name}, " if self.name else ""
        label = f"{name}area {percent(self.aurc)}"
        ax.plot(100 * np.array(self.coverage), 100 * np.array(self.risk), color=colour, label=label)
        ax.set(xlabel="coverage, %", ylabel="error rate, %", xlim=(0, 100))
        ax.set_ylim(bottom=0, auto=True)  # the top follows curves that come later
        ax.legend(loc="upper left")
        return ax
