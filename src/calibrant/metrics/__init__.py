"""Measures of calibration and accuracy: fractions, never percent."""

from calibrant.metrics.calibration import (
    adaptive_ece,
    aurc,
    debiased_ece,
    ece,
    mce,
    overconfidence,
    smooth_ece,
    sweep_ece,
    underconfidence,
)
from calibrant.metrics.classes import (
    ECE,
    MCE,
    NLL,
    AdaptiveECE,
    BrierScore,
    ClasswiseECE,
    DebiasedECE,
    MeanIoU,
    PerImage,
    SmoothECE,
    SweepECE,
)
from calibrant.metrics.classwise import classwise_ece
from calibrant.metrics.images import per_image
from calibrant.metrics.ood import ood_aupr, ood_auroc, ood_fpr95
from calibrant.metrics.panel import CalibrationPanel, Group, PanelResult, class_groups
from calibrant.metrics.scores import BrierSplit, accuracy, brier_score, brier_split, nll, top_k_accuracy
from calibrant.metrics.segmentation import mean_iou

__all__ = [
    "ECE",
    "MCE",
    "NLL",
    "AdaptiveECE",
    "BrierScore",
    "BrierSplit",
    "CalibrationPanel",
    "ClasswiseECE",
    "DebiasedECE",
    "Group",
    "MeanIoU",
    "PanelResult",
    "PerImage",
    "SmoothECE",
    "SweepECE",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "brier_score",
    "brier_split",
    "class_groups",
    "classwise_ece",
    "debiased_ece",
    "ece",
    "mce",
    "mean_iou",
    "nll",
    "ood_aupr",
    "ood_auroc",
    "ood_fpr95",
    "overconfidence",
    "per_image",
    "smooth_ece",
    "sweep_ece",
    "top_k_accuracy",
    "underconfidence",
]
