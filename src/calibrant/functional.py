"""Every pure function of the package, in one place.

Measures come from the table :data:`calibrant.metrics.MEASURES`; losses, whose names end in ``_loss``, from the modules of
:data:`calibrant.losses.METHODS`.
"""

import importlib
from typing import TYPE_CHECKING

from calibrant.inputs import from_probs
from calibrant.losses import METHODS
from calibrant.metrics import FUNCTIONS, brier_split, ood_aupr, ood_auroc, ood_fpr95, per_image, per_label

if TYPE_CHECKING:  # the functions collected below, for type checkers and editors
    from calibrant.losses.acls import acls_loss as acls_loss
    from calibrant.losses.adafocal import adafocal_loss as adafocal_loss, calfocal_loss as calfocal_loss
    from calibrant.losses.avuc import avuc_loss as avuc_loss, soft_avuc_loss as soft_avuc_loss
    from calibrant.losses.brier import brier_loss as brier_loss
    from calibrant.losses.bsce import bsce_loss as bsce_loss
    from calibrant.losses.cals import cals_alm_loss as cals_alm_loss, cals_hr_loss as cals_hr_loss
    from calibrant.losses.confidence_penalty import confidence_penalty_loss as confidence_penalty_loss
    from calibrant.losses.cpc import cpc_loss as cpc_loss
    from calibrant.losses.crac import crac_loss as crac_loss
    from calibrant.losses.cross_entropy import cross_entropy_loss as cross_entropy_loss
    from calibrant.losses.dual_focal import dual_focal_loss as dual_focal_loss
    from calibrant.losses.esd import esd_loss as esd_loss
    from calibrant.losses.focal import focal_loss as focal_loss, focal_sd_loss as focal_sd_loss
    from calibrant.losses.label_smoothing import label_smoothing_loss as label_smoothing_loss
    from calibrant.losses.logitnorm import logitnorm_loss as logitnorm_loss
    from calibrant.losses.margin import margin_loss as margin_loss
    from calibrant.losses.mdca import dca_loss as dca_loss, mdca_loss as mdca_loss
    from calibrant.losses.mmce import mmce_loss as mmce_loss
    from calibrant.losses.nacl import nacl_loss as nacl_loss
    from calibrant.losses.sbece import sbece_loss as sbece_loss
    from calibrant.metrics import (
        accuracy as accuracy,
        adaptive_ece as adaptive_ece,
        aurc as aurc,
        brier_score as brier_score,
        classwise_ece as classwise_ece,
        coverage_at_risk as coverage_at_risk,
        debiased_ece as debiased_ece,
        ece as ece,
        mce as mce,
        mean_iou as mean_iou,
        nll as nll,
        overconfidence as overconfidence,
        smooth_ece as smooth_ece,
        sweep_ece as sweep_ece,
        top_k_accuracy as top_k_accuracy,
        underconfidence as underconfidence,
    )

globals().update(FUNCTIONS)
for _module in {method.path.partition(":")[0] for method in METHODS.values()}:
    _found = importlib.import_module(_module)
    globals().update({name: item for name, item in vars(_found).items() if name.endswith("_loss") and name[0] != "_"})

__all__ = [
    "brier_split",
    "from_probs",
    "ood_aupr",
    "ood_auroc",
    "ood_fpr95",
    "per_image",
    "per_label",
    *FUNCTIONS,
    *sorted(name for name in globals() if name.endswith("_loss")),
]
