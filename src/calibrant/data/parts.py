"""Samples: images in memory, images on disk, images with a label for each pixel, texts."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.extras import require

#: Words that GPoolCNN looks at at once. With as much padding before the longest text of a batch, its maximum over time is
#: that of a text padded to any length.
RECEPTIVE_FIELD = 21


@dataclass(frozen=True)
class Images:
    """Images in memory.

    Attributes:
        x: ``(N, C, H, W)``, uint8 or float32 in [0, 1].
        y: Labels ``(N,)``.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def subset(self, indices: Tensor) -> "Images":
        """Those with the given numbers."""
        return Images(self.x[indices], self.y[indices])

    def checksum(self) -> str:
        """A short fingerprint of inputs and labels."""
        digest = hashlib.sha256(self.y.numpy().tobytes())
        digest.update(np.ascontiguousarray(self.x.numpy()).tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Files:
    """Images on disk, read when they are needed.

    Attributes:
        paths: Where they are.
        y: Labels ``(N,)``.
    """

    paths: Sequence[str]
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def subset(self, indices: Tensor) -> "Files":
        """Those with the given numbers."""
        return Files([self.paths[i] for i in indices.tolist()], self.y[indices])

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """An image, uint8 ``(3, H, W)``, and its label."""
        return read_image(self.paths[index]), self.y[index]

    def checksum(self) -> str:
        """A short fingerprint of file names, sizes and labels."""
        digest = hashlib.sha256(self.y.numpy().tobytes())
        for path in self.paths:
            digest.update(f"{Path(path).name} {Path(path).stat().st_size}\n".encode())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Texts:
    """Texts in memory, as numbers of words one after the other.

    Attributes:
        tokens: Words of all texts, ``(total,)``.
        starts: Where each text begins, and where the last one ends, ``(N + 1,)``.
        y: Labels ``(N,)``.
        length: Texts are padded to at most this many words.
    """

    tokens: Tensor
    starts: Tensor
    y: Tensor
    length: int = 1000

    def __len__(self) -> int:
        return len(self.y)

    @property
    def lengths(self) -> Tensor:
        """Words of each text."""
        return self.starts.diff()

    def subset(self, indices: Tensor) -> "Texts":
        """Those with the given numbers."""
        lengths = self.lengths[indices]
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        place = torch.arange(int(starts[-1])) + (self.starts[indices] - starts[:-1]).repeat_interleave(lengths)
        return Texts(self.tokens[place], starts, self.y[indices], self.length)

    def padded(self, indices: Tensor, *, trim: bool = True) -> Tensor:
        """Word numbers ``(len(indices), time)``, with zeros in front.

        Args:
            indices: Which texts.
            trim: Pad to the longest of these and :data:`RECEPTIVE_FIELD` words, instead of to ``length``.
        """
        lengths = self.lengths[indices].view(-1, 1)
        longest = int(lengths.max()) if len(lengths) else 0
        width = min(self.length, longest + RECEPTIVE_FIELD) if trim else self.length
        place = torch.arange(width) - (width - lengths)
        if not len(self.tokens):
            return torch.zeros_like(place)
        words = self.tokens[(self.starts[indices].view(-1, 1) + place).clamp(0, len(self.tokens) - 1)]
        return words.long().masked_fill(place < 0, 0)

    def checksum(self) -> str:
        """A short fingerprint of words and labels."""
        digest = hashlib.sha256(self.y.numpy().tobytes())
        digest.update(self.tokens.numpy().tobytes())
        digest.update(self.starts.numpy().tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Masks:
    """Images on disk with a class for each pixel.

    Attributes:
        images: Where they are.
        masks: Where the images of class numbers are.
        ignore_index: Class number of pixels that are left out.
    """

    images: Sequence[str]
    masks: Sequence[str]
    ignore_index: int = 255

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, indices: Tensor) -> "Masks":
        """Those with the given numbers."""
        chosen = indices.tolist()
        return Masks([self.images[i] for i in chosen], [self.masks[i] for i in chosen], self.ignore_index)

    def checksum(self) -> str:
        """A short fingerprint of file names and sizes."""
        digest = hashlib.sha256()
        for path in (*self.images, *self.masks):
            digest.update(f"{Path(path).name} {Path(path).stat().st_size}\n".encode())
        return digest.hexdigest()[:16]

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """An image, uint8 ``(3, H, W)``, and its mask, int64 ``(H, W)``."""
        image, mask = read_image(self.images[index]), self.read_mask(index)
        self._same_size(index, tuple(image.shape[1:]), tuple(mask.shape))
        return image, mask

    def _same_size(self, index: int, image: tuple[int, ...], mask: tuple[int, ...]) -> None:
        if image != mask:
            raise ValueError(f"{self.images[index]} is {image}, but its mask {self.masks[index]} is {mask}")

    def read_mask(self, index: int) -> Tensor:
        """Class numbers of the pixels of one image."""
        with require("PIL.Image", "reading masks").open(self.masks[index]) as image:
            if image.mode not in ("P", "L", "I", "I;16"):
                raise ValueError(f"{self.masks[index]} must hold class numbers, one channel or a palette, not {image.mode}")
            return torch.from_numpy(np.array(image).astype(np.int64))

    def counts(self, classes: int) -> list[int]:
        """Pixels of each class.

        Raises:
            ValueError: If a mask has an unknown class, or another size than its image.
        """
        total = torch.zeros(classes, dtype=torch.int64)
        for index, size in enumerate(self.sizes()):
            labels = self.read_mask(index)
            self._same_size(index, size, tuple(labels.shape))
            labels = labels[labels != self.ignore_index]
            if len(labels) and int(labels.max()) >= classes:
                raise ValueError(
                    f"{self.masks[index]} has class {int(labels.max())}, but there are {classes} classes (0..{classes - 1}) "
                    f"and void pixels have to be {self.ignore_index}"
                )
            total += torch.bincount(labels, minlength=classes)
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


def read_image(path: str) -> Tensor:
    """An image as uint8 ``(3, H, W)``, grey ones in three equal channels."""
    with require("PIL.Image", "reading images").open(path) as image:
        if image.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
            grey = (np.array(image).astype(np.float64) / 257).round().clip(0, 255).astype(np.uint8)
            return torch.from_numpy(grey).expand(3, -1, -1)
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


Part = Images | Files | Masks | Texts
