"""Training losses: those of the papers, and all they are compared with.

Every loss is called ``loss(logits, target)`` and is found in :data:`METHODS` under the key that the command line uses.
"""

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from calibrant.losses.adafocal import AdaFocal, CalFocal
from calibrant.losses.base import AdaptiveLoss, Loss
from calibrant.losses.brier import Brier
from calibrant.losses.cals import CALSALM, CALSHR
from calibrant.losses.confidence_penalty import ConfidencePenalty
from calibrant.losses.cpc import CPC
from calibrant.losses.cross_entropy import CrossEntropy
from calibrant.losses.focal import Focal, FocalSD
from calibrant.losses.label_smoothing import LabelSmoothing
from calibrant.losses.margin import MbLS
from calibrant.losses.mmce import MMCE

__all__ = [
    "CALSALM",
    "CALSHR",
    "CPC",
    "METHODS",
    "MMCE",
    "AdaFocal",
    "AdaptiveLoss",
    "Brier",
    "CalFocal",
    "ConfidencePenalty",
    "CrossEntropy",
    "Focal",
    "FocalSD",
    "LabelSmoothing",
    "Loss",
    "MbLS",
    "Method",
    "create",
]


@dataclass(frozen=True)
class Method:
    """A row of the table of methods.

    Attributes:
        key: Its name in recipes and on the command line.
        loss: Its class.
        title: Its name in a sentence.
        paper: Where it was published.
        tasks: What the papers used it for; every method runs on all of them.
        defaults: Options that :func:`create` fills in where the class has no default.
    """

    key: str
    loss: type[Loss]
    title: str
    paper: str
    tasks: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def adaptive(self) -> bool:
        """Whether it learns on validation data, with ``observe`` and ``adapt``."""
        return issubclass(self.loss, AdaptiveLoss)


_ALL = ("image", "long-tail", "segmentation", "text")
_IMAGE_TEXT = ("image", "long-tail", "text")

#: The methods by key.
METHODS: Final[Mapping[str, Method]] = {
    method.key: method
    for method in (
        Method("ce", CrossEntropy, "cross-entropy", "-", _ALL),
        Method("ls", LabelSmoothing, "label smoothing", "Szegedy et al., CVPR 2016", _ALL),
        Method("ecp", ConfidencePenalty, "explicit confidence penalty", "Pereyra et al., ICLR 2017", _ALL),
        Method("fl", Focal, "focal loss", "Lin et al., ICCV 2017", _ALL),
        Method("flsd", FocalSD, "sample-dependent focal loss", "Mukhoti et al., NeurIPS 2020", _IMAGE_TEXT),
        Method("brier", Brier, "Brier loss", "Brier, 1950", _IMAGE_TEXT),
        Method("mmce", MMCE, "maximum mean calibration error", "Kumar et al., ICML 2018", _IMAGE_TEXT),
        Method("cpc", CPC, "pairwise constraints", "Cheng and Vasconcelos, CVPR 2022", _IMAGE_TEXT),
        Method("mbls", MbLS, "margin-based label smoothing", "Liu et al., CVPR 2022", _ALL),
        Method("cals-hr", CALSHR, "class-adaptive label smoothing, heuristic rule", "Liu et al., CVPR 2023", _ALL),
        Method("cals-alm", CALSALM, "class-adaptive label smoothing", "Liu et al., CVPR 2023", _ALL),
        Method("calfocal", CalFocal, "calibration-aware focal loss", "AdaFocal, 2022", ("image",), {"scale": 10.0}),
        Method("adafocal", AdaFocal, "adaptive focal loss", "AdaFocal, 2022", _IMAGE_TEXT),
    )
}


def create(key: str, num_classes: int | None = None, **options: Any) -> Loss:
    """Build a loss by its key in :data:`METHODS`.

    Args:
        key: Such as ``"cals-alm"``.
        num_classes: Number of classes; the class-adaptive losses need it, the others do without.
        **options: Arguments of the loss's class.
    """
    method = METHODS.get(key)
    if method is None:
        close = difflib.get_close_matches(str(key), METHODS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"key must be one of {', '.join(METHODS)}, got {key!r}{hint}")
    accepted = inspect.signature(method.loss).parameters
    unknown = [name for name in options if name not in accepted]
    if unknown:
        raise TypeError(f"{key!r} takes no option {unknown[0]!r}; its options are {', '.join(accepted)}")
    options = {**method.defaults, **options}
    if "num_classes" in accepted:
        if num_classes is None:
            raise TypeError(f"{key!r} has one multiplier per class: pass num_classes, the network's number of outputs")
        options["num_classes"] = num_classes
    return method.loss(**options)
