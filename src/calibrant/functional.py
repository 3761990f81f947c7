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

__all__ = [
    "adafocal_loss",
    "brier_loss",
    "calfocal_loss",
    "cals_alm_loss",
    "cals_hr_loss",
    "confidence_penalty_loss",
    "cpc_loss",
    "cross_entropy_loss",
    "focal_loss",
    "focal_sd_loss",
    "label_smoothing_loss",
    "margin_loss",
    "mmce_loss",
]
