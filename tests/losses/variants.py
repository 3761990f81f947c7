"""Every method of the table, and the options that change its formula, ready to be called."""

from collections.abc import Callable
from functools import partial

import torch

from calibrant.losses import METHODS, AdaptiveLoss, Loss, create


def _learned(loss: Loss, classes: int) -> Loss:
    """Give an adaptive loss weights as it may have after some epochs, different for every class or bin."""
    random = torch.Generator().manual_seed(1)
    if hasattr(loss, "multipliers"):
        loss.multipliers.copy_(0.05 + torch.rand(classes, generator=random))
    if hasattr(loss, "rho"):
        loss.rho.copy_(0.5 + 2 * torch.rand(classes, generator=random))
    if hasattr(loss, "gammas"):
        sign = -1 if getattr(loss, "inverse", False) else 1
        loss.gammas.copy_(torch.linspace(sign * 1.9, 3.0, len(loss.gammas)))
        loss.accuracies.copy_(torch.linspace(0.1, 0.9, len(loss.gammas)))
    if hasattr(loss, "strength"):
        loss.get_buffer(loss.strength.name).mul_(0.27)
    if hasattr(loss, "threshold") and isinstance(loss, AdaptiveLoss):
        loss.threshold.fill_(0.4)
    return loss


def _build(key: str, learned: bool, num_classes: int, **options: object) -> Loss:
    loss = create(key, num_classes=num_classes, **options)
    return _learned(loss, num_classes) if learned else loss


#: Methods for samples of any shape; those for segmented images only have their own tests, in test_neighbours.py.
PLAIN = [key for key, method in METHODS.items() if not method.dense]
#: Name -> function of num_classes and further options.
VARIANTS: dict[str, Callable[..., Loss]] = {key: partial(_build, key, False) for key in PLAIN}
VARIANTS |= {f"{key} learned": partial(_build, key, True) for key in PLAIN if issubclass(METHODS[key].loss, AdaptiveLoss)}
VARIANTS |= {
    "ecp mean": partial(_build, "ecp", False, class_reduction="mean"),
    "mbls sum": partial(_build, "mbls", False, class_reduction="sum"),
    "mmce weighted": partial(_build, "mmce", False, weighted=True),
    "mmce released": partial(_build, "mmce", False, form="released"),
    "mmce weighted released": partial(_build, "mmce", False, weighted=True, form="released"),
    "cals-alm p2": partial(_build, "cals-alm", True, penalty="p2"),
    "cals-alm p3": partial(_build, "cals-alm", True, penalty="p3"),
    "adafocal inverse": partial(_build, "adafocal", True, inverse=True),
    "calfocal sample": partial(_build, "calfocal", True, per="sample"),
    "fl detached": partial(_build, "fl", False, detach=True),
    "bsce attached": partial(_build, "bsce", False, detach=False),
    "bsce attached, another norm": partial(_build, "bsce", False, detach=False, gamma=1.0, norm=3),
    "acls shift invariant": partial(_build, "acls", False, shift_invariant=True),
    "sbece binned": partial(_build, "sbece", False, form="binned"),
    "sbece squared": partial(_build, "sbece", False, form="label-binned-squared"),
    "avuc detached": partial(_build, "avuc", False, detach=True),
    "dfl detached": partial(_build, "dfl", False, detach=True),
    "calfocal steep": partial(_build, "calfocal", True, per="sample", scale=100.0),
}
#: Those whose penalty belongs to the batch as a whole.
BATCH_LEVEL = {name for name in VARIANTS if name.split()[0] in ("mmce", "mdca", "dca", "esd", "sbece", "avuc", "soft-avuc")}
#: Those with a part that depends on the logits, but by choice is a constant for the gradient: the golden vectors have it.
DETACHED = {"bsce", "calfocal sample", "calfocal steep", *(name for name in VARIANTS if name.endswith(" detached"))}
DETACHED |= {"acls", "acls shift invariant"}
#: Those that see more of the logits than their differences.
RAW_LOGITS = {"acls", "logitnorm"}
#: Those that need several logits.
MULTICLASS_ONLY = {"logitnorm"}
