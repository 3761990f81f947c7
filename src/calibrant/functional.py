"""Every pure function of the package, in one place."""

from calibrant.losses.adafocal import adafocal_loss, calfocal_loss
from calibrant.losses.brier import brier_loss
from calibrant.losses.cals import cals_alm_loss, cals_hr_loss
from calibrant.losses.confidence_penalty import confidence_penalty_loss
from calibrant.losses.cpc import cpc_loss
from calibrant.losses.cross_entropy import cross_entropy_loss
from calibrant.losses.focal import focal_loss, focal_sd_loss
from calibrant.losses.label_smoothing import label_smoothing_loss
from calibrant.losses.margin import margin_loss
from calibrant.losses.mmce import mmce_loss
from calibrant.metrics import (
    accuracy,
    adaptive_ece,
    aurc,
    brier_score,
    brier_split,
    classwise_ece,
    debiased_ece,
    ece,
    mce,
    mean_iou,
    nll,
    ood_aupr,
    ood_auroc,
    ood_fpr95,
    overconfidence,
    per_image,
    smooth_ece,
    sweep_ece,
    top_k_accuracy,
    underconfidence,
)
from calibrant.tensors import from_probs

__all__ = [
    "accuracy",
    "adafocal_loss",
    "adaptive_ece",
    "aurc",
    "brier_loss",
    "brier_score",
    "brier_split",
    "calfocal_loss",
    "cals_alm_loss",
    "cals_hr_loss",
    "classwise_ece",
    "confidence_penalty_loss",
    "cpc_loss",
    "cross_entropy_loss",
    "debiased_ece",
    "ece",
    "focal_loss",
    "focal_sd_loss",
    "from_probs",
    "label_smoothing_loss",
    "margin_loss",
    "mce",
    "mean_iou",
    "mmce_loss",
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
