"""Figures: each holds its data (``to_dict``) and draws it (``plot``) into given axes or new ones."""

from calibrant.extras import require

require("matplotlib", "calibrant.plots")

from calibrant.plots.bins import BinCurves  # noqa: E402
from calibrant.plots.epochs import GammaPath, MetricPath, MultiplierPath  # noqa: E402
from calibrant.plots.methods import AccuracyVsECE, MethodBars  # noqa: E402
from calibrant.plots.pixels import PixelReliability  # noqa: E402
from calibrant.plots.reliability import ConfidenceHistogram, ReliabilityDiagram  # noqa: E402
from calibrant.plots.risk_coverage import RiskCoverage  # noqa: E402
from calibrant.plots.robustness import ROC, ShiftCurves  # noqa: E402
from calibrant.plots.search import SearchPlot  # noqa: E402
from calibrant.plots.shapes import FocalShapes, PenaltyShapes  # noqa: E402
from calibrant.plots.sweeps import Sweep, SweepMap  # noqa: E402

__all__ = [
    "ROC",
    "AccuracyVsECE",
    "BinCurves",
    "ConfidenceHistogram",
    "FocalShapes",
    "GammaPath",
    "MethodBars",
    "MetricPath",
    "MultiplierPath",
    "PenaltyShapes",
    "PixelReliability",
    "ReliabilityDiagram",
    "RiskCoverage",
    "SearchPlot",
    "ShiftCurves",
    "Sweep",
    "SweepMap",
]
