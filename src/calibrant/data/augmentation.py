"""Augmentation of training images, and resizing to the network's input size."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from calibrant.data.table import Augmentation
from calibrant.extras import require

#: Pixels of padding before a random crop.
PADDING = 4


def crop_and_flip(x: Tensor, random: torch.Generator) -> Tensor:
    """Pad by 4 pixels, then crop and flip each image of a batch at random.

    The same distribution as ``RandomCrop(size, padding=4)`` and ``RandomHorizontalFlip()`` applied to each image.
    """
    count, channels, height, width = x.shape
    padded = torch.nn.functional.pad(x, (PADDING,) * 4)
    top, left = torch.randint(2 * PADDING + 1, (2, count, 1), generator=random)
    mirror = torch.rand(count, 1, generator=random) < 0.5
    rows = top + torch.arange(height)
    columns = left + torch.where(mirror, torch.arange(width - 1, -1, -1), torch.arange(width))
    sample, channel = torch.arange(count).view(-1, 1, 1, 1), torch.arange(channels).view(1, -1, 1, 1)
    return padded[sample, channel, rows.view(count, 1, height, 1), columns.view(count, 1, 1, width)]


def transform(augmentation: Augmentation, size: int, *, train: bool, mean: Sequence[float], std: Sequence[float]) -> Any:
    """The transform from a uint8 image of any size to one of the network's size.

    Images stay uint8, to be normalised in batches. Only ``"timm"`` normalises for training: its random erasing writes pixels
    drawn from N(0, 1), which makes sense only afterwards.
    """
    v2 = require("torchvision.transforms.v2", "images from files")
    cubic = v2.InterpolationMode.BICUBIC
    if not train or augmentation == "none":
        return v2.Compose([v2.Resize(round(size / 0.875), interpolation=cubic, antialias=True), v2.CenterCrop(size)])
    if augmentation == "crop-flip":
        return v2.Compose([v2.RandomCrop(size, padding=PADDING), v2.RandomHorizontalFlip()])
    steps = [v2.RandomResizedCrop(size, interpolation=cubic, antialias=True), v2.RandomHorizontalFlip()]
    if augmentation == "timm":  # CALS's settings of timm's create_transform: colour jitter 0.4, random erasing 0.25
        steps += [v2.ColorJitter(0.4, 0.4, 0.4), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
        steps += [v2.RandomErasing(0.25, value="random")]
    return v2.Compose(steps)


class JointTransform:
    """Augments an image and its mask alike, for training: a random crop of the network's size, padded where needed.

    With the augmentation ``"segmentation"``, as in CALS, also a random flip, and jitter of brightness and contrast (0.3),
    saturation and hue.

    Args:
        augmentation: Which augmentation.
        size: Side of the crop.
        longest: Length that the longest side is scaled to first; None for no scaling.
        void: Label of padded pixels.
    """

    def __init__(self, augmentation: Augmentation, size: int, longest: int | None, void: int) -> None:
        v2 = require("torchvision.transforms.v2", "segmented images")
        tv = require("torchvision.tv_tensors", "segmented images")
        self.image, self.mask = tv.Image, tv.Mask
        fill = {tv.Image: 0, tv.Mask: void}
        steps = [] if longest is None else [v2.Resize(None, max_size=longest, antialias=True)]
        steps += [v2.RandomCrop(size, pad_if_needed=True, fill=fill)]
        if augmentation == "segmentation":
            steps += [v2.RandomHorizontalFlip(), v2.ColorJitter(0.3, 0.3, 0.3, 0.05)]
        self.change = v2.Compose(steps)

    def __call__(self, image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Augment both."""
        x, y = self.change(self.image(image), self.mask(mask))
        return x.as_subclass(Tensor), y.as_subclass(Tensor)


class JointPadding:
    """Pads images and masks to one size at the lower right.

    Args:
        height: Height after padding.
        width: Width after padding.
        void: Label of padded pixels.
    """

    def __init__(self, height: int, width: int, void: int) -> None:
        self.height, self.width, self.void = height, width, void

    def __call__(self, image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Pad both."""
        more = (0, self.width - image.shape[-1], 0, self.height - image.shape[-2])
        pad = torch.nn.functional.pad
        return pad(image, more), pad(mask, more, value=self.void)
