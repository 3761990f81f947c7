"""Networks of the papers, by name."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import nn

from calibrant.extras import require
from calibrant.models.dense import segmentation
from calibrant.models.gpool_cnn import GPoolCNN
from calibrant.models.mlp import MLP
from calibrant.models.residual import densenet121, resnet20, resnet32, resnet50, resnet110, tiny_resnet50, wide_resnet26_10
from calibrant.models.small_cnn import SmallCNN

__all__ = ["MLP", "MODELS", "PREFIXES", "GPoolCNN", "SmallCNN", "create"]

#: How names of networks begin that other libraries make.
PREFIXES: Final = ("timm:", "smp:")

#: Networks by the name that recipes and the command line use.
MODELS: Final[Mapping[str, Callable[..., nn.Module]]] = {
    "small-cnn": SmallCNN,
    "mlp": MLP,
    "resnet20": resnet20,
    "resnet32": resnet32,
    "resnet50": resnet50,
    "resnet110": resnet110,
    "wrn26-10": wide_resnet26_10,
    "densenet121": densenet121,
    "tiny-resnet50": tiny_resnet50,
    "gpool-cnn": GPoolCNN,
}


def create(name: str, num_classes: int, channels: int = 3, **options: Any) -> nn.Module:
    """Build a network by name.

    Args:
        name: A key of :data:`MODELS`, ``timm:NAME`` for any of timm's, or ``smp:NAME`` for any architecture of
            segmentation_models_pytorch.
        num_classes: Number of outputs.
        channels: Channels of the images.
        **options: Passed on, such as ``width`` of the small CNN or ``pretrained`` of timm's.
    """
    if name.startswith("smp:"):
        return segmentation(name[4:], num_classes, channels, **options)
    if name.startswith("timm:"):
        timm = require("timm", f"the model {name}")
        try:
            network: nn.Module = timm.create_model(name[5:], num_classes=num_classes, in_chans=channels, **options)
        except RuntimeError as error:
            close = difflib.get_close_matches(name[5:], timm.list_models(), n=3)
            hint = f"; did you mean {', '.join(close)}?" if close else ""
            raise ValueError(f"timm cannot make {name[5:]!r} ({error}){hint}") from error
        return network
    if name not in MODELS:
        close = difflib.get_close_matches(name, MODELS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"model must be one of {', '.join(MODELS)} timm:NAME or smp:NAME, got {name!r}{hint}")
    accepted = inspect.signature(MODELS[name]).parameters
    unknown = [option for option in options if option not in accepted]
    if unknown:
        raise ValueError(f"model {name} takes no option {unknown[0]!r}; its options are {', '.join(accepted)}")
    if "channels" in accepted:
        options["channels"] = channels
    return MODELS[name](num_classes=num_classes, **options)
