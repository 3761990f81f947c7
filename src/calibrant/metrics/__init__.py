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
from calibrant.metrics.classwise import classwise_ece
from calibrant.metrics.images import per_image
from calibrant.metrics.ood import ood_auroc, ood_fpr95
from calibrant.metrics.scores import BrierSplit, accuracy, brier_score, brier_split, nll, top_k_accuracy
from calibrant.metrics.segmentation import mean_iou

__all__ = [
    "BrierSplit",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "brier_score",
    "brier_split",
    "classwise_ece",
    "debiased_ece",
    "ece",
    "mce",
    "mean_iou",
    "nll",
    "ood_auroc",
    "ood_fpr95",
    "overconfidence",
    "per_image",
    "smooth_ece",
    "sweep_ece",
    "top_k_accuracy",
    "underconfidence",
]
