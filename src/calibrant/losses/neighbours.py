"""Labels in the neighbourhood of each pixel, for losses on segmented images."""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from calibrant.checks import one_of, whole
from calibrant.losses.targets import Batch, Options
from calibrant.tensors import shape_of

Border = Literal["valid", "released", "zeros"]


class Neighbours(NamedTuple):
    """Labels in a window around each pixel, itself included.

    Attributes:
        shares: Share of each class, ``(N, K, *spatial)``.
        boundary: Where the window holds more than one class, ``(N, *spatial)``.
    """

    shares: Tensor
    boundary: Tensor


def check_window(kernel_size: int, border: Border) -> None:
    """Refuse windows without a centre, and unknown borders."""
    if whole("kernel_size", kernel_size, 1) % 2 == 0:
        raise ValueError(f"kernel_size must be odd, so that the window has a centre, got {kernel_size}")
    one_of("border", border, get_args(Border))


def check_pixels(given: Batch, options: Options, name: str) -> None:
    """Refuse logits without pixels."""
    if _spatial(given, options) < 1:
        raise ValueError(
            f"{name} is for segmented images, as it looks at the neighbours of pixels: logits must have shape "
            f"(N, K, *spatial), got {shape_of(given.logits)}"
        )


def _spatial(given: Batch, options: Options) -> int:
    """Number of spatial dimensions; the labels of a multi-label task are no neighbours of each other."""
    return given.logits.dim() - (3 if options.get("task") == "multilabel" else 2)


@torch.no_grad()
def neighbours(given: Batch, kernel_size: int, border: Border, options: Options) -> Neighbours:
    """Shares of the classes in a window of ``kernel_size`` around each pixel.

    Pixels to ignore count for no class: beside them, shares add up to less than 1.

    Args:
        given: The batch, without class weights.
        kernel_size: Width of the window.
        border: What lies outside of the image: nothing, shares are of the pixels inside (``"valid"``); class 0
            (``"released"``, the authors' code); or no class, shares add up to less than 1 (``"zeros"``, MONAI).
        options: Those of the loss.
    """
    logits, kept = given.logits, given.kept.unsqueeze(1)
    spatial = _spatial(given, options)
    area = kernel_size**spatial
    if given.soft:
        labels = given.target
    else:  # counts in bytes are ten times as fast on CPUs as in floating point
        kind = torch.uint8 if area < 256 else torch.int32
        labels = torch.zeros_like(logits, dtype=kind).scatter(1, given.target.unsqueeze(1), kept.to(kind))
    counts = window_sums(labels, kernel_size, spatial).to(logits.dtype)
    present = window_sums(kept.to(labels.dtype), kernel_size, spatial).squeeze(1).to(logits.dtype)
    inside = window_sums(logits.new_ones(logits.shape[-spatial:]), kernel_size, spatial)
    if border == "released":
        counts = torch.cat([counts[:, :1] + (area - inside), counts[:, 1:]], dim=1)
        present = present + (area - inside)
    boundary = (counts.amax(dim=1) < present - 1e-3).logical_and(given.kept)
    return Neighbours(counts / (inside if border == "valid" else area), boundary)


def window_sums(values: Tensor, size: int, spatial: int) -> Tensor:
    """Sums over windows around each place in the last dimensions, as many as ``spatial``; nothing lies outside."""
    for dim in range(-spatial, 0):
        length, total = values.shape[dim], values.clone()
        for shift in range(1, min(size // 2, length - 1) + 1):
            rest = length - shift
            total.narrow(dim, shift, rest).add_(values.narrow(dim, 0, rest))
            total.narrow(dim, 0, rest).add_(values.narrow(dim, shift, rest))
        values = total
    return values
