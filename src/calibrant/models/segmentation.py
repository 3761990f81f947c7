"""Networks that predict a class for each pixel, from segmentation_models_pytorch."""

import inspect
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from calibrant.errors import did_you_mean, lookup
from calibrant.extras import require

#: Image sides must be a multiple of this, as encoders halve them five times.
MULTIPLE = 32


def segmentation(
    name: str,
    num_classes: int,
    channels: int = 3,
    *,
    encoder: str = "resnet34",
    pretrained: str | None = None,
    **options: Any,
) -> nn.Module:
    """Build an architecture of segmentation_models_pytorch.

    Args:
        name: Such as ``DeepLabV3``.
        num_classes: Number of outputs per pixel.
        channels: Channels of the images.
        encoder: Name of the encoder, such as ``resnet50`` or ``tu-convnext_tiny``.
        pretrained: Weights of the encoder: None for random ones, a file with a state_dict, or the name of weights that
            segmentation_models_pytorch downloads, such as ``imagenet``.
        **options: Options of the architecture.
    """
    smp = require("segmentation_models_pytorch", f"the model smp:{name}")
    kinds = {kind: getattr(smp, kind) for kind in dir(smp)}
    known = {key: kind for key, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, nn.Module)}
    kind = lookup(name, known, "the architecture of segmentation_models_pytorch")
    accepted = inspect.signature(kind.__init__).parameters
    unknown = [option for option in options if option not in accepted]
    if unknown and not encoder.startswith("tu-"):  # timm's encoders have their own options
        own = [key for key in accepted if key.startswith(("encoder_", "decoder_", "upsampling", "activation"))]
        raise ValueError(f"smp:{name} takes no option {unknown[0]!r}; its options are encoder, pretrained, {', '.join(own)}")
    file = pretrained is not None and Path(pretrained).expanduser().is_file()
    if pretrained is not None and not file and Path(pretrained).suffix:
        raise ValueError(f"the weights file {pretrained} does not exist")

    def make(weights: str | None) -> nn.Module:
        network: nn.Module = kind(
            encoder_name=encoder, encoder_weights=weights, in_channels=channels, classes=num_classes, **options
        )
        return network

    try:
        network = make(None if file else pretrained)
    except KeyError as error:
        others = [known for known in smp.encoders.get_encoder_names() if known != encoder]
        hint = did_you_mean(encoder, others)
        raise ValueError(
            f"segmentation_models_pytorch cannot make {name} with the encoder {encoder!r}: {error.args[0]}{hint}"
        ) from error
    except Exception as error:
        try:
            make(None)
        except Exception as other:
            raise ValueError(f"segmentation_models_pytorch cannot make {name} with these options ({other})") from other
        raise ValueError(
            f"the weights {pretrained!r} of {encoder} could not be downloaded ({type(error).__name__}), and there is no "
            "such file; offline, pass a file with the encoder's state_dict, or omit it for random weights"
        ) from error
    if file:
        try:
            weights = torch.load(Path(str(pretrained)).expanduser(), map_location="cpu", weights_only=True)
            network.get_submodule("encoder").load_state_dict(weights)
        except (RuntimeError, AttributeError, TypeError, KeyError, EOFError, UnpicklingError) as error:
            raise ValueError(f"{pretrained} does not hold the weights of the encoder {encoder} ({error})") from error
    network.side_multiple = MULTIPLE  # type: ignore[assignment]
    return network
