"""Training losses: methods from the papers and their baselines.

Every loss is called as ``loss(logits, target)`` and listed in :data:`METHODS` under its command-line key. Listing them
imports nothing; a class is imported on first use.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from calibrant.checks import whole
from calibrant.errors import did_you_mean, lookup
from calibrant.registry import Entry, lazy, table

if TYPE_CHECKING:  # the lazy names below, for type checkers and editors
    from calibrant.losses.acls import ACLS as ACLS
    from calibrant.losses.adafocal import AdaFocal as AdaFocal, CalFocal as CalFocal
    from calibrant.losses.auxiliary import PenalisedLoss as PenalisedLoss
    from calibrant.losses.avuc import AvUC as AvUC, SoftAvUC as SoftAvUC
    from calibrant.losses.base import AdaptiveLoss as AdaptiveLoss, Loss as Loss
    from calibrant.losses.brier import Brier as Brier
    from calibrant.losses.bsce import BSCE as BSCE
    from calibrant.losses.cals import CALSALM as CALSALM, CALSHR as CALSHR, CALSAuto as CALSAuto
    from calibrant.losses.confidence_penalty import ConfidencePenalty as ConfidencePenalty
    from calibrant.losses.cpc import CPC as CPC
    from calibrant.losses.crac import CRaC as CRaC
    from calibrant.losses.cross_entropy import CrossEntropy as CrossEntropy
    from calibrant.losses.dual_focal import DualFocal as DualFocal
    from calibrant.losses.esd import ESD as ESD
    from calibrant.losses.focal import Focal as Focal, FocalSD as FocalSD
    from calibrant.losses.label_smoothing import LabelSmoothing as LabelSmoothing, LabelSmoothingAuto as LabelSmoothingAuto
    from calibrant.losses.logitnorm import LogitNorm as LogitNorm
    from calibrant.losses.margin import MbLS as MbLS, MbLSAuto as MbLSAuto
    from calibrant.losses.mdca import DCA as DCA, MDCA as MDCA
    from calibrant.losses.mmce import MMCE as MMCE
    from calibrant.losses.nacl import NACL as NACL
    from calibrant.losses.sbece import SBECE as SBECE
    from calibrant.losses.temperature import AutoStrength as AutoStrength, Strength as Strength


@dataclass(frozen=True)
class Method(Entry):
    """A row of the table of methods.

    Attributes:
        paper: Where it was published.
        adaptive: Whether it learns from validation data, with ``observe`` and ``adapt``.
        defaults: Options that :func:`create` fills in where the class has no default.
        dense: Whether it is for segmented images only.
        memory: Memory limit of a step, in multiples of the logits; plain autograd usually needs more than 4.

    Example:
        >>> from calibrant.losses import METHODS
        >>> METHODS["cals-alm"].title, METHODS["cals-alm"].paper, METHODS["cals-alm"].adaptive
        ('class-adaptive label smoothing', 'Liu et al., CVPR 2023', True)
    """

    paper: str
    adaptive: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    dense: bool = False
    memory: float = 4.0

    @property
    def loss(self) -> "type[Loss]":
        """Its class."""
        found: type[Loss] = self.load()
        return found


def _method(key: str, path: str, title: str, paper: str, **options: Any) -> Method:
    return Method(key, f"calibrant.losses.{path}", title, paper, **options)


#: The methods by key.
METHODS: Final = table(
    _method("ce", "cross_entropy:CrossEntropy", "cross-entropy", "-"),
    _method("ls", "label_smoothing:LabelSmoothing", "label smoothing", "Szegedy et al., CVPR 2016"),
    _method("ecp", "confidence_penalty:ConfidencePenalty", "explicit confidence penalty", "Pereyra et al., ICLR 2017"),
    _method("fl", "focal:Focal", "focal loss", "Lin et al., ICCV 2017"),
    _method("flsd", "focal:FocalSD", "sample-dependent focal loss", "Mukhoti et al., NeurIPS 2020"),
    _method("brier", "brier:Brier", "Brier loss", "Brier, 1950"),
    _method("mmce", "mmce:MMCE", "maximum mean calibration error", "Kumar et al., ICML 2018"),
    _method("cpc", "cpc:CPC", "pairwise constraints", "Cheng and Vasconcelos, CVPR 2022"),
    _method("mbls", "margin:MbLS", "margin-based label smoothing", "Liu et al., CVPR 2022"),
    _method(
        "cals-hr", "cals:CALSHR", "class-adaptive label smoothing, heuristic rule", "Liu et al., CVPR 2023", adaptive=True
    ),
    _method("cals-alm", "cals:CALSALM", "class-adaptive label smoothing", "Liu et al., CVPR 2023", adaptive=True),
    _method(
        "calfocal",
        "adafocal:CalFocal",
        "calibration-aware focal loss",
        "Ghosh et al., NeurIPS 2022",
        adaptive=True,
        defaults={"scale": 10.0},
    ),
    _method("adafocal", "adafocal:AdaFocal", "adaptive focal loss", "Ghosh et al., NeurIPS 2022", adaptive=True),
    _method(
        "ls-auto",
        "label_smoothing:LabelSmoothingAuto",
        "label smoothing, alpha set from the fitted temperature",
        "ours",
        adaptive=True,
    ),
    _method(
        "mbls-auto",
        "margin:MbLSAuto",
        "margin-based label smoothing, margin set from the fitted temperature",
        "ours",
        adaptive=True,
    ),
    _method(
        "cals-auto",
        "cals:CALSAuto",
        "class-adaptive label smoothing, margin set from the fitted temperature",
        "ours",
        adaptive=True,
    ),
    _method("dfl", "dual_focal:DualFocal", "dual focal loss", "Tao et al., ICML 2023"),
    _method("bsce", "bsce:BSCE", "Brier-score-weighted cross-entropy", "Lin et al., CVPR 2025"),
    _method("acls", "acls:ACLS", "adaptive and conditional label smoothing", "Park et al., ICCV 2023"),
    _method(
        "mdca", "mdca:MDCA", "multi-class difference of confidence and accuracy", "Hebbalaguppe et al., CVPR 2022", memory=5
    ),
    _method("dca", "mdca:DCA", "difference of confidence and accuracy", "Hebbalaguppe et al., CVPR 2022", memory=5),
    _method("esd", "esd:ESD", "expected squared difference", "Yoon et al., ICLR 2023", memory=5),
    _method("sbece", "sbece:SBECE", "soft-binned calibration error", "Karandikar et al., NeurIPS 2021", memory=9),
    _method(
        "avuc", "avuc:AvUC", "accuracy versus uncertainty", "Krishnan and Tickoo, NeurIPS 2020", adaptive=True, memory=6
    ),
    _method(
        "soft-avuc",
        "avuc:SoftAvUC",
        "soft accuracy versus uncertainty",
        "Karandikar et al., NeurIPS 2021",
        adaptive=True,
        memory=6,
    ),
    _method("logitnorm", "logitnorm:LogitNorm", "logit normalisation", "Wei et al., ICML 2022"),
    _method(
        "nacl",
        "nacl:NACL",
        "neighbour-aware calibration, for segmentation",
        "Murugesan et al., MICCAI 2023",
        dense=True,
        memory=6,
    ),
    _method(
        "crac",
        "crac:CRaC",
        "class- and region-adaptive constraints, for segmentation",
        "Murugesan et al., MICCAI 2024",
        adaptive=True,
        dense=True,
        memory=6,
    ),
)

#: Options that mean the same in every loss that has them; ``gamma`` or ``weight`` do not.
SHARED: Final = frozenset(
    {
        "margin",
        "multiplier_init",
        "num_bins",
        "binning",
        "base",
        "kernel_size",
        "border",
        "class_reduction",
        "reduction",
        "ignore_index",
        "class_weights",
        "task",
    }
)

#: What losses of one's own derive from.
_BASES: Final = {
    "Loss": "calibrant.losses.base",
    "AdaptiveLoss": "calibrant.losses.base",
    "PenalisedLoss": "calibrant.losses.auxiliary",
    "AutoStrength": "calibrant.losses.temperature",
    "Strength": "calibrant.losses.temperature",
}
__getattr__ = lazy(__name__, METHODS.values(), _BASES)
__all__ = [
    "METHODS",
    "SHARED",
    "AdaptiveLoss",
    "AutoStrength",
    "Loss",
    "Method",
    "PenalisedLoss",
    "Strength",
    "create",
    *sorted(method.name for method in METHODS.values()),
]


def create(key: str, num_classes: int | None = None, **options: Any) -> "Loss":
    """Build a loss by its key in :data:`METHODS`.

    Args:
        key: Such as ``"cals-alm"``.
        num_classes: Number of classes; required by the class-adaptive losses only.
        **options: Arguments of the loss's class.

    Example:
        >>> from calibrant.losses import create
        >>> create("mbls", margin=6.0)
        MbLS(margin=6.0, weight=0.1, class_reduction='mean')
        >>> create("cals-alm", num_classes=10).multipliers.shape
        torch.Size([10])
    """
    method = lookup(key, METHODS, "key")
    if num_classes is not None:
        whole("num_classes", num_classes, 1)
    return build(method.loss, num_classes, {**method.defaults, **options}, repr(key))


def build(kind: "type[Loss]", num_classes: int | None, options: Mapping[str, Any], name: str) -> "Loss":
    """Construct a loss, with ``num_classes`` if it takes that; messages call it ``name``."""
    accepted = inspect.signature(kind).parameters
    for option in options:
        if option not in accepted and not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            hint = did_you_mean(option, accepted)
            raise TypeError(f"{name} takes no option {option!r}; its options are {', '.join(accepted)}{hint}")
    if "num_classes" not in accepted:
        return kind(**options)
    if num_classes is None:
        raise TypeError(f"{name} learns something for each class: pass num_classes, the network's number of outputs")
    return kind(**{"num_classes": num_classes, **options})
