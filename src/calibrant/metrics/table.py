"""The table of measures: one record each, from which panels, audits, tables, reports, figures and listings are built."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from torch import Tensor

from calibrant.errors import lookup
from calibrant.metrics import calibration, classwise, estimators, scores, segmentation, selective

#: What a measure is computed from: per-sample scores (averaged), equal-width bins, outcomes sorted by confidence (both of
#: events if those are predicted), the same two of the predicted class in any case, bins of each class's probability, pixels
#: of each class, bins of each image (averaged over images), other measures, or other data.
Basis = Literal["scores", "bins", "sorted", "predicted", "accepted", "class_bins", "areas", "images", "values", "outside"]
IntervalMethod = Literal["bootstrap", "wilson", "normal", "inversion"]


@dataclass(frozen=True)
class Measure:
    """The record of a measure.

    Attributes:
        key: Its name in files, recipes and on the command line.
        title: Its name in tables and figures.
        about: Its meaning in a few words.
        on: What it is computed from.
        estimate: Its formula, a function of that.
        function: The same as a function of logits and target, if there is one.
        options: Options of ``estimate`` that are not at their defaults.
        percent: Whether it is printed in percent.
        higher: Whether higher is better.
        rank: 1 if it belongs in every table, 2 in most, 3 in audits, 4 only in files.
        how: How it is computed; ``{num_bins}``, and other measures by key, are filled in.
        interval: How its interval is computed, if it has one.
        draws: Options of ``estimate`` for resamples, where a coarser estimate will do.
        most: Largest possible value.
        part_of: The measure that it is a part of, below which tables show it.
        dense: Whether it is for segmentation only.
        scaled: Whether temperature scaling changes it.
        in_panel: Whether a panel measures it.

    Example:
        >>> from calibrant.metrics import MEASURES
        >>> MEASURES["aurc"].title, MEASURES["aurc"].about, MEASURES["aurc"].text(0.0123)
        ('AURC', 'area under the risk-coverage curve', '1.23')
    """

    key: str
    title: str
    about: str
    on: Basis
    estimate: Callable[..., Any] | None = None
    function: Callable[..., Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    percent: bool = True
    higher: bool = False
    rank: int = 3
    how: str = ""
    interval: IntervalMethod | None = None
    draws: Mapping[str, Any] = field(default_factory=dict, hash=False)
    most: float = 1.0
    part_of: str = ""
    dense: bool = False
    scaled: bool = True
    in_panel: bool = True

    @property
    def scale(self) -> int:
        """Factor by which a value is multiplied for printing."""
        return 100 if self.percent else 1

    @property
    def label(self) -> str:
        """Title and unit."""
        return self.title + (", %" if self.percent else "")

    def text(self, value: float, *, digits: int | None = None, sign: str = "") -> str:
        """A value as tables print it, without the unit."""
        digits = (2 if self.percent else 4) if digits is None else digits
        kind = "f" if abs(value) < 1e5 else "e"  # the NLL of a network that went astray has no end
        return f"{self.scale * value:{sign}.{digits}{kind}}" if value == value else "-"  # noqa: PLR0124 - NaN

    def evaluate(self, source: Any, num_bins: int, **options: Any) -> Tensor:
        """Evaluate the formula; ``num_bins`` is passed on if it takes it."""
        assert self.estimate is not None  # noqa: S101
        bins = {"num_bins": num_bins} if "num_bins" in inspect.signature(self.estimate).parameters else {}
        value: Tensor = self.estimate(source, **{**bins, **self.options, **options})
        return value


def _error(values: Mapping[str, float]) -> float:
    return 1 - values["accuracy"]


def _refinement(values: Mapping[str, float]) -> float:
    return values["brier"] - values["brier_calibration"]


def _number_of_bins(ordered: estimators.SortedOutcomes) -> Tensor:
    return estimators.sweep(ordered)[1]


_RECORDS = (
    Measure(
        "accuracy",
        "accuracy",
        "fraction of correct predictions",
        "predicted",
        estimators.accuracy,
        scores.accuracy,
        higher=True,
        rank=1,
        interval="wilson",
        scaled=False,
    ),
    Measure(
        "mean_iou",
        "mIoU",
        "mean over classes of intersection over union",
        "areas",
        segmentation.iou_of,
        segmentation.mean_iou,
        higher=True,
        rank=1,
        how="with background, without classes that do not occur",
        interval="bootstrap",
        dense=True,
        scaled=False,
    ),
    Measure(
        "foreground_iou",
        "mIoU, foreground",
        "mIoU as CALS and MbLS report it, without the background",
        "areas",
        segmentation.iou_of,
        options={"rule": "released"},
        higher=True,
        rank=2,
        how="without class 0, the background; 0 for classes that do not occur",
        interval="bootstrap",
        dense=True,
        scaled=False,
    ),
    Measure(
        "debiased_ece",
        "debiased ECE",
        "ECE without most of its upward bias",
        "sorted",
        estimators.debiased_sorted_error,
        calibration.debiased_ece,
        rank=2,
        how="{num_bins} equal-mass bins, L1",
        interval="inversion",
    ),
    Measure(
        "ece",
        "ECE",
        "expected calibration error",
        "bins",
        estimators.calibration_error,
        calibration.ece,
        rank=1,
        how="{num_bins} equal-width bins, L1; biased upwards, as is its interval",
        interval="bootstrap",
    ),
    Measure(
        "overconfidence",
        "overconfidence",
        "part of the ECE where confidence exceeds accuracy",
        "bins",
        estimators.overconfidence,
        calibration.overconfidence,
        how="{num_bins} equal-width bins",
        interval="bootstrap",
        part_of="ece",
    ),
    Measure(
        "underconfidence",
        "underconfidence",
        "part of the ECE where accuracy exceeds confidence",
        "bins",
        estimators.underconfidence,
        calibration.underconfidence,
        how="{num_bins} equal-width bins",
        interval="bootstrap",
        part_of="ece",
    ),
    Measure(
        "image_ece",
        "ECE per image",
        "mean over images of the ECE of their pixels",
        "images",
        estimators.calibration_error,
        rank=1,
        how="{num_bins} equal-width bins, L1, mean over images",
        interval="bootstrap",
        dense=True,
    ),
    Measure(
        "adaptive_ece",
        "AdaECE",
        "ECE with equal-mass bins",
        "sorted",
        estimators.adaptive_error,
        calibration.adaptive_ece,
        rank=1,
        how="{num_bins} equal-mass bins, L1",
        interval="bootstrap",
    ),
    Measure(
        "classwise_ece",
        "classwise ECE",
        "calibration error of every class's probability",
        "class_bins",
        classwise.classwise_error,
        classwise.classwise_ece,
        rank=2,
        how="{num_bins} equal-width bins, L1, mean over all classes",
    ),
    Measure(
        "sweep_ece",
        "sweep ECE",
        "ECE with as many bins as keep accuracy monotonic",
        "sorted",
        estimators.sweep_error,
        calibration.sweep_ece,
        how="{sweep_bins:.0f} equal-mass bins (chosen automatically), L1",
        interval="bootstrap",
    ),
    Measure(
        "sweep_bins",
        "bins of sweep ECE",
        "number of bins chosen by sweep ECE",
        "sorted",
        _number_of_bins,
        percent=False,
        rank=4,
    ),
    Measure(
        "smooth_ece",
        "smooth ECE",
        "calibration error with a kernel instead of bins",
        "sorted",
        estimators.smooth_error,
        calibration.smooth_ece,
        rank=2,
        how="Gaussian kernel of data-driven width",
        interval="bootstrap",
        draws={"points": 2**9},
    ),
    Measure(
        "mce",
        "MCE",
        "maximum calibration error of a bin",
        "bins",
        estimators.maximum_error,
        calibration.mce,
        how="{num_bins} equal-width bins",
    ),
    Measure(
        "nll",
        "NLL",
        "negative log-likelihood",
        "scores",
        scores.negative_log_likelihood,
        scores.nll,
        percent=False,
        rank=1,
        interval="normal",
        most=math.inf,
    ),
    Measure(
        "brier",
        "Brier score",
        "mean squared error of the probabilities",
        "scores",
        scores.brier,
        scores.brier_score,
        percent=False,
        rank=2,
        how="summed over classes",
        interval="normal",
        most=2.0,
    ),
    Measure(
        "brier_calibration",
        "Brier score: calibration",
        "part of the Brier score that recalibration could remove",
        "class_bins",
        scores.calibration_part,
        percent=False,
        rank=4,
        how="{num_bins} equal-width bins for each class",
        part_of="brier",
    ),
    Measure(
        "brier_refinement",
        "Brier score: refinement",
        "part of the Brier score that recalibration would leave",
        "values",
        _refinement,
        percent=False,
        rank=4,
        how="Brier score minus its calibration part",
        part_of="brier",
    ),
    Measure(
        "aurc",
        "AURC",
        "area under the risk-coverage curve",
        "accepted",
        estimators.area_under_risk_coverage,
        selective.aurc,
        interval="bootstrap",
    ),
    Measure(
        "coverage_at_risk",
        "coverage at 5% risk",
        "largest fraction of samples, most confident first, with at most 5% errors",
        "accepted",
        estimators.coverage_at_risk,
        selective.coverage_at_risk,
        higher=True,
        how="error rate of accepted samples: 5%",
        interval="bootstrap",
    ),
    Measure("error", "error", "fraction of wrong predictions", "values", _error, rank=4, scaled=False),
    Measure(
        "debiased_ece_30",
        "debiased ECE, 30 bins",
        "debiased ECE as in AdaFocal's tables",
        "sorted",
        estimators.debiased_sorted_error,
        options={"num_bins": 30},
        rank=4,
        how="30 equal-mass bins, L1",
    ),
    Measure(
        "sweep_ece_width",
        "sweep ECE, equal width",
        "sweep ECE with equal-width bins",
        "sorted",
        estimators.sweep_error,
        options={"binning": "width"},
        rank=4,
        how="equal-width bins, L1",
    ),
    Measure(
        "top_k_accuracy",
        "top-5 accuracy",
        "fraction of samples whose class is among the 5 most probable",
        "scores",
        scores.in_top_k,
        scores.top_k_accuracy,
        higher=True,
        rank=4,
        in_panel=False,
    ),
    Measure(
        "shift_accuracy",
        "accuracy under shift",
        "accuracy on corrupted images",
        "outside",
        higher=True,
        rank=4,
        how="mean over corruptions and severities",
        scaled=False,
    ),
    Measure(
        "shift_ece",
        "ECE under shift",
        "ECE on corrupted images",
        "outside",
        rank=4,
        how="mean over corruptions and severities",
    ),
)

#: Every measure by its key, in the order of tables.
MEASURES: Final[Mapping[str, Measure]] = {record.key: record for record in _RECORDS}
#: Functions of logits and target by name.
FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    record.function.__name__: record.function for record in _RECORDS if record.function is not None
}
#: Measures by their function of logits and target.
BY_FUNCTION: Final[Mapping[Callable[..., Any], Measure]] = {
    record.function: record for record in _RECORDS if record.function is not None
}
_AUROC = Measure("auroc", "AUROC", "how well entropy separates OOD from test samples", "outside", higher=True, rank=4)


def measure(key: str) -> Measure:
    """The record of a measure; ``auroc:NAME`` is the AUROC against the OOD data NAME."""
    kind, colon, unknown = key.partition(":")
    if kind == "auroc" and colon:
        return replace(_AUROC, key=key, title=f"AUROC, {unknown}")
    return lookup(key, MEASURES, "measure")


def ranked(rank: int, *, dense: bool = False) -> list[Measure]:
    """Measures up to a rank; ``dense`` includes those for segmentation."""
    return [record for record in MEASURES.values() if record.rank <= rank and (dense or not record.dense)]
