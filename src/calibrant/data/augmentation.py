"""Random changes of training images, and how images of any size get the network's."""

from typing import Any

import torch
from torch import Tensor

from calibrant.data.table import Augmentation
from calibrant.extras import require

#: Pixels that an image is padded by before it is cropped at random.
PADDING = 4


def crop_and_flip(x: Tensor, random: torch.Generator) -> Tensor:
    """Pad by 4 pixels, crop each image at a place of its own, and mirror every other one, as a batch.

    The same distribution as ``RandomCrop(size, padding=4)`` and ``RandomHorizontalFlip()`` of each image by itself.
    """
    count, channels, height, width = x.shape
    padded = torch.nn.functional.pad(x, (PADDING,) * 4)
    top, left = torch.randint(2 * PADDING + 1, (2, count, 1), generator=random)
    mirror = torch.rand(count, 1, generator=random) < 0.5
    rows = top + torch.arange(height)
    columns = left + torch.where(mirror, torch.arange(width - 1, -1, -1), torch.arange(width))
    sample, channel = torch.arange(count).view(-1, 1, 1, 1), torch.arange(channels).view(1, -1, 1, 1)
    return padded[sample, channel, rows.view(count, 1, height, 1), columns.view(count, 1, 1, width)]


def transform(augmentation: Augmentation, size: int, *, train: bool) -> Any:
    """From a uint8 image of any size to one of the network's size."""
    v2 = require("torchvision.transforms.v2", "images from files")
    cubic = v2.InterpolationMode.BICUBIC
    if not train or augmentation == "none":
        return v2.Compose([v2.Resize(round(size / 0.875), interpolation=cubic, antialias=True), v2.CenterCrop(size)])
    if augmentation == "crop-flip":
        return v2.Compose([v2.RandomCrop(size, padding=PADDING), v2.RandomHorizontalFlip()])
    steps = [v2.RandomResizedCrop(size, interpolation=cubic, antialias=True), v2.RandomHorizontalFlip()]
    if augmentation == "timm":  # as CALS used timm's create_transform: jitter 0.4, erase a quarter of the images with noise
        steps += [v2.ColorJitter(0.4, 0.4, 0.4), v2.RandomErasing(0.25, value="random")]
    return v2.Compose(steps)


class JointTransform:
    """The same change of an image and its mask, for training: a random crop of the network's size, padded where needed.

    With the augmentation ``"segmentation"``, as in CALS, also mirrored, and changed in brightness and contrast by 0.3, in
    saturation and hue.

    Args:
        augmentation: How.
        size: Side of the crop.
        longest: What the longest side is scaled to before; None leaves images as they are.
        void: Class number of what is padded.
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
        """Change both."""
        x, y = self.change(self.image(image), self.mask(mask))
        return x.as_subclass(Tensor), y.as_subclass(Tensor)


class JointPadding:
    """Pads images and masks to one size at the lower right.

    Args:
        height: Height afterwards.
        width: Width afterwards.
        void: Class number of what is padded.
    """

    def __init__(self, height: int, width: int, void: int) -> None:
        self.height, self.width, self.void = height, width, void

    def __call__(self, image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Pad both."""
        more = (0, self.width - image.shape[-1], 0, self.height - image.shape[-2])
        pad = torch.nn.functional.pad
        return pad(image, more), pad(mask, more, value=self.void)
