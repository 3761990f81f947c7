"""Measures of calibration and accuracy, as fractions, never percent.

Functions of logits and labels; :class:`Panel`, which measures everything in one pass; and ``torchmetrics.Metric`` classes,
imported on first use.
"""

from typing import TYPE_CHECKING

from calibrant.metrics.calibration import (
    adaptive_ece as adaptive_ece,
    debiased_ece as debiased_ece,
    ece as ece,
    mce as mce,
    overconfidence as overconfidence,
    smooth_ece as smooth_ece,
    sweep_ece as sweep_ece,
    underconfidence as underconfidence,
)
from calibrant.metrics.classwise import (
    classwise_ece as classwise_ece,
    per_label as per_label,
)
from calibrant.metrics.epochs import BinRecorder, EpochBins
from calibrant.metrics.ood import (
    ood_aupr as ood_aupr,
    ood_auroc as ood_auroc,
    ood_fpr95 as ood_fpr95,
)
from calibrant.metrics.panel import Group, Panel, PanelResult, class_groups
from calibrant.metrics.scores import (
    BrierSplit as BrierSplit,
    accuracy as accuracy,
    brier_score as brier_score,
    brier_split as brier_split,
    nll as nll,
    top_k_accuracy as top_k_accuracy,
)
from calibrant.metrics.segmentation import (
    mean_iou as mean_iou,
    per_image as per_image,
)
from calibrant.metrics.selective import (
    aurc as aurc,
    coverage_at_risk as coverage_at_risk,
)
from calibrant.metrics.table import FUNCTIONS, MEASURES, Measure
from calibrant.registry import lazy

if TYPE_CHECKING:  # the lazy names below, for type checkers and editors
    from calibrant.metrics.modules import (
        ECE as ECE,
        MCE as MCE,
        NLL as NLL,
        AdaptiveECE as AdaptiveECE,
        BrierScore as BrierScore,
        CalibrationPanel as CalibrationPanel,
        ClasswiseECE as ClasswiseECE,
        DebiasedECE as DebiasedECE,
        MeanIoU as MeanIoU,
        PerImage as PerImage,
        SmoothECE as SmoothECE,
        SweepECE as SweepECE,
    )

#: Classes that need torchmetrics.
_MODULES = (
    *("ECE", "MCE", "NLL", "AdaptiveECE", "BrierScore", "CalibrationPanel", "ClasswiseECE", "DebiasedECE", "MeanIoU"),
    *("PerImage", "SmoothECE", "SweepECE"),
)
__getattr__ = lazy(__name__, (), dict.fromkeys(_MODULES, "calibrant.metrics.modules"))
globals().update(FUNCTIONS)  # the functions of all measures in the table, including those not named above

__all__ = [
    *_MODULES,
    "FUNCTIONS",
    "MEASURES",
    "BinRecorder",
    "BrierSplit",
    "EpochBins",
    "Group",
    "Measure",
    "Panel",
    "PanelResult",
    "brier_split",
    "class_groups",
    "ood_aupr",
    "ood_auroc",
    "ood_fpr95",
    "per_image",
    "per_label",
]
__all__.extend(FUNCTIONS)  # noqa: PYI056 - mkdocstrings takes no other form for what is not known before it runs
