"""Segmented images: a class for each pixel."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant.data.augmentation import JointPadding, JointTransform
from calibrant.data.images import files_digest, read_files, read_image
from calibrant.data.part import Feed, Part
from calibrant.data.table import Augmentation
from calibrant.extras import require


@dataclass(frozen=True)
class Masks(Part):
    """Images on disk with a class for each pixel.

    Attributes:
        images: Paths of the images.
        masks: Paths of the masks, images of class indices.
        void: Label of ignored pixels.
    """

    name: ClassVar[str] = "segmented images"
    dense: ClassVar[bool] = True
    augmentations: ClassVar[tuple[Augmentation, ...]] = ("none", "segmentation")
    impossible: ClassVar[Mapping[str, str]] = {
        "ood": "out-of-distribution detection needs images with one class each, not segmented ones",
        "long tail": "a long tail needs samples with one class each, not segmented images",
        "noisy labels": "a noisy validation set needs samples with one class each, not segmented images",
    }
    images: Sequence[str]
    masks: Sequence[str]
    void: int = 255

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, indices: Tensor) -> "Masks":
        """The images with the given indices."""
        chosen = indices.tolist()
        return Masks([self.images[i] for i in chosen], [self.masks[i] for i in chosen], self.void)

    def checksum(self) -> str:
        """A short fingerprint of file names and sizes."""
        return files_digest([*self.images, *self.masks])

    @property
    def ignore_index(self) -> int:
        """Label of ignored pixels."""
        return self.void

    @property
    def facts(self) -> dict[str, Any]:
        """Number of channels."""
        return {"channels": 3}

    def read_one(self, index: int) -> tuple[Tensor, Tensor]:
        """An image, uint8 ``(3, H, W)``, and its mask, int64 ``(H, W)``."""
        image, mask = read_image(self.images[index]), self.read_mask(index)
        self._same_size(index, tuple(image.shape[1:]), tuple(mask.shape))
        return image, mask

    def read_mask(self, index: int) -> Tensor:
        """Class indices of the pixels of one image."""
        with require("PIL.Image", "reading masks").open(self.masks[index]) as image:
            if image.mode not in ("P", "L", "I", "I;16"):
                raise ValueError(f"{self.masks[index]} must hold class indices (one channel or a palette), not {image.mode}")
            return torch.from_numpy(np.array(image).astype(np.int64))

    def read(self, batches: Sequence[Tensor], feed: Feed) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and masks of each batch: crops in training, otherwise whole images padded to one size."""
        if feed.train:
            change: Any = JointTransform(feed.augmentation, feed.size, feed.longest, self.void)
        else:
            height, width = (-(-side // feed.multiple) * feed.multiple for side in self.largest())
            change = JointPadding(height, width, self.void)
        sizes = None if feed.change is None else self.sizes()
        for (x, y), indices in zip(read_files(self.read_one, change, batches, feed), batches, strict=True):
            if sizes is not None:
                for image, index in zip(x, indices.tolist(), strict=True):  # without the padding
                    own = image[:, : sizes[index][0], : sizes[index][1]]
                    own.copy_(feed.changed(own.unsqueeze(0)).squeeze(0))
            yield feed.normalised(x), y

    def counts(self, classes: int) -> list[int]:
        """Pixels of each class.

        Raises:
            ValueError: If a mask has an unknown class or a different size from its image, or if all pixels are void.
        """
        total = torch.zeros(classes, dtype=torch.int64)
        for index, size in enumerate(self.sizes()):
            labels = self.read_mask(index)
            self._same_size(index, size, tuple(labels.shape))
            labels = labels[labels != self.void]
            if len(labels) and int(labels.max()) >= classes:
                raise ValueError(
                    f"{self.masks[index]} has class {int(labels.max())}, but there are {classes} classes (0..{classes - 1}) "
                    f"and void pixels must be {self.void}"
                )
            total += torch.bincount(labels, minlength=classes)
        if not int(total.sum()):
            raise ValueError(f"all pixels are void, for example in {self.masks[0]}")
        counts: list[int] = total.tolist()
        return counts

    def sizes(self) -> list[tuple[int, int]]:
        """Height and width of each image."""
        found = []
        for path in self.images:
            with require("PIL.Image", "reading images").open(path) as image:
                found.append((image.height, image.width))
        return found

    def largest(self) -> tuple[int, int]:
        """The largest height and the largest width."""
        heights, widths = zip(*self.sizes(), strict=True)
        return max(heights), max(widths)

    def _same_size(self, index: int, image: tuple[int, ...], mask: tuple[int, ...]) -> None:
        if image != mask:
            raise ValueError(f"{self.images[index]} is {image}, but its mask {self.masks[index]} is {mask}")
