"""Networks of the papers, and any of timm's and segmentation_models_pytorch's, by name."""

import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from calibrant.checks import whole
from calibrant.errors import InputError, did_you_mean
from calibrant.extras import require, weights_only
from calibrant.registry import Entry, lazy, table

if TYPE_CHECKING:  # the lazy names below, for type checkers and editors
    from torch import nn

    from calibrant.models.gpool_cnn import GPoolCNN as GPoolCNN
    from calibrant.models.mlp import MLP as MLP
    from calibrant.models.residual import (
        densenet121 as densenet121,
        resnet20 as resnet20,
        resnet32 as resnet32,
        resnet50 as resnet50,
        resnet110 as resnet110,
        tiny_resnet50 as tiny_resnet50,
        wide_resnet26_10 as wide_resnet26_10,
    )
    from calibrant.models.small_cnn import SmallCNN as SmallCNN

#: Prefixes of the names of networks from other libraries.
PREFIXES: Final = ("timm:", "smp:")


def _model(key: str, path: str, title: str) -> Entry:
    return Entry(key, f"calibrant.models.{path}", title)


#: Networks by the name that recipes and the command line use.
MODELS: Final = table(
    _model("small-cnn", "small_cnn:SmallCNN", "three convolutions and two linear layers, for small images"),
    _model("mlp", "mlp:MLP", "linear layers with ReLUs, for inputs of any shape"),
    _model("resnet20", "residual:resnet20", "ResNet-20 for 32 x 32 (He et al., CVPR 2016)"),
    _model("resnet32", "residual:resnet32", "ResNet-32 for 32 x 32, the standard one for long-tailed CIFAR"),
    _model("resnet50", "residual:resnet50", "ResNet-50 with a 3 x 3 stem, for 32 x 32"),
    _model("resnet110", "residual:resnet110", 'the papers\' "ResNet-110": bottlenecks [3, 4, 26, 3], 45.9 M parameters'),
    _model("wrn26-10", "residual:wide_resnet26_10", "Wide-ResNet-26-10, for 32 x 32"),
    _model("densenet121", "residual:densenet121", "DenseNet-121 with a 3 x 3 stem, for 32 x 32"),
    _model("tiny-resnet50", "residual:tiny_resnet50", "ResNet-50 for Tiny-ImageNet's 64 x 64"),
    _model("gpool-cnn", "gpool_cnn:GPoolCNN", "the papers' text network, 247,316 parameters"),
)

__getattr__ = lazy(__name__, MODELS.values(), {})
__all__ = ["MODELS", "PREFIXES", "Needs", "create", "needs", *sorted(entry.name for entry in MODELS.values())]


class Needs(NamedTuple):
    """What a network requires of its inputs.

    Attributes:
        padding_words: Words of padding in front of the longest text.
        side_multiple: Image sides must be a multiple of this.
    """

    padding_words: int = 1
    side_multiple: int = 1


def needs(network: "nn.Module") -> Needs:
    """What a network declares in attributes named like those of :class:`Needs`."""
    return Needs(**{name: int(getattr(network, name)) for name in Needs._fields if hasattr(network, name)})


def create(name: str, num_classes: int, *, channels: int = 3, **options: Any) -> "nn.Module":
    """Build a network by name.

    Args:
        name: A key of :data:`MODELS`, ``timm:NAME`` for any of timm's, or ``smp:NAME`` for any architecture of
            segmentation_models_pytorch.
        num_classes: Number of outputs.
        channels: Channels of the images.
        **options: Passed to the network, such as ``width`` of the small CNN or ``pretrained`` of timm's.
    """
    network: nn.Module
    if name.startswith("smp:"):
        from calibrant.models.segmentation import segmentation  # noqa: PLC0415 - imports torch

        with weights_only():
            return segmentation(name[4:], num_classes, channels, **options)
    if name.startswith("timm:"):
        timm = require("timm", f"the model {name}")
        try:
            with weights_only():
                network = timm.create_model(name[5:], num_classes=num_classes, in_chans=channels, **options)
        except RuntimeError as error:
            hint = did_you_mean(name[5:], timm.list_models())
            raise InputError(f"timm cannot make {name[5:]!r} ({error}){hint}") from error
        return network
    if name not in MODELS:
        known = [*MODELS, *(f"{prefix}NAME" for prefix in PREFIXES)]
        raise InputError(f"model must be one of {', '.join(known)}, got {name!r}{did_you_mean(name, MODELS)}")
    function = MODELS[name].load()
    accepted = inspect.signature(function).parameters
    for option, value in options.items():
        if option in accepted and accepted[option].annotation is int:
            whole(f"model.{option}", value, 1)
        if option not in accepted:
            hint = did_you_mean(option, accepted)
            raise InputError(f"model {name} takes no option {option!r}; its options are {', '.join(accepted)}{hint}")
    if "channels" in accepted:
        options["channels"] = channels
    network = function(num_classes=num_classes, **options)
    return network
