"""Images with one class each: in memory, or read from files."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from calibrant.data.augmentation import crop_and_flip, transform
from calibrant.data.part import Feed, Part, digest_of, label_counts
from calibrant.data.table import Augmentation
from calibrant.extras import require


@dataclass(frozen=True)
class Images(Part):
    """Images in memory.

    Attributes:
        x: ``(N, C, H, W)``, uint8 or float32 in [0, 1].
        y: Labels ``(N,)``.
    """

    name: ClassVar[str] = "images in memory"
    augmentations: ClassVar[tuple[Augmentation, ...]] = ("none", "crop-flip")
    mixable: ClassVar[bool] = True
    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def subset(self, indices: Tensor) -> "Images":
        """The images with the given indices."""
        return Images(self.x[indices], self.y[indices])

    def checksum(self) -> str:
        """A short fingerprint of images and labels."""
        return digest_of(self.y, self.x)

    def counts(self, classes: int) -> list[int]:
        """Images of each class."""
        return label_counts(self.y, classes)

    @property
    def labels(self) -> Tensor:
        """Labels ``(N,)``."""
        return self.y

    @property
    def facts(self) -> dict[str, Any]:
        """Number of channels."""
        return {"channels": self.x.shape[1]}

    def read(self, batches: Sequence[Tensor], feed: Feed) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of each batch."""
        for indices in batches:
            x = self.x[indices]
            if feed.train and feed.augmentation == "crop-flip":
                x = crop_and_flip(x, feed.random)
            yield feed.normalised(feed.changed(x)), self.y[indices]

    def relabelled(self, y: Tensor) -> "Images":
        """The same images with other labels."""
        return Images(self.x, y)

    def corrupted(self, change: Callable[[Tensor, Tensor], Tensor]) -> "Images":
        """The same images after ``change(images, indices)``."""
        return Images(change(self.x, torch.arange(len(self))), self.y)


@dataclass(frozen=True)
class Files(Part):
    """Images on disk, read on demand.

    Attributes:
        paths: Paths of the images.
        y: Labels ``(N,)``.
    """

    name: ClassVar[str] = "images from files"
    augmentations: ClassVar[tuple[Augmentation, ...]] = ("none", "crop-flip", "imagenet", "timm")
    mixable: ClassVar[bool] = True
    paths: Sequence[str]
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def subset(self, indices: Tensor) -> "Files":
        """The images with the given indices."""
        return Files([self.paths[i] for i in indices.tolist()], self.y[indices])

    def checksum(self) -> str:
        """A short fingerprint of file names, sizes and labels."""
        return files_digest(self.paths, self.y)

    def counts(self, classes: int) -> list[int]:
        """Images of each class."""
        return label_counts(self.y, classes)

    @property
    def labels(self) -> Tensor:
        """Labels ``(N,)``."""
        return self.y

    @property
    def facts(self) -> dict[str, Any]:
        """Number of channels."""
        return {"channels": 3}

    def read_one(self, index: int) -> tuple[Tensor, Tensor]:
        """An image, uint8 ``(3, H, W)``, and its label."""
        return read_image(self.paths[index]), self.y[index]

    def read(self, batches: Sequence[Tensor], feed: Feed) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of each batch."""
        # torchvision's transforms pass labels through
        change = transform(feed.augmentation, feed.size, train=feed.train, mean=feed.mean, std=feed.std)
        for x, y in read_files(self.read_one, change, batches, feed):
            yield x if x.is_floating_point() else feed.normalised(feed.changed(x)), y

    def relabelled(self, y: Tensor) -> "Files":
        """The same images with other labels."""
        return Files(self.paths, y)


def read_files(
    read: Callable[[int], tuple[Tensor, Tensor]],
    change: Callable[..., tuple[Tensor, Tensor]],
    batches: Sequence[Tensor],
    feed: Feed,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images with their labels or masks, read and transformed by worker processes."""
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        _Reader(read, change),
        batch_sampler=[indices.tolist() for indices in batches],
        num_workers=feed.workers,
        generator=feed.random,  # seeds the workers
    )
    yield from loader


class _Reader(Dataset[tuple[Tensor, Tensor]]):
    """What is sent to a worker process."""

    def __init__(self, read: Callable[[int], tuple[Tensor, Tensor]], change: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self.read, self.change = read, change

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.change(*self.read(index))


def read_image(path: str) -> Tensor:
    """An image as uint8 ``(3, H, W)``; greyscale gets three equal channels."""
    with require("PIL.Image", "reading images").open(path) as image:
        if image.mode.startswith("I"):  # 16 bits, which Pillow would clip at 255
            grey = (np.array(image).astype(np.float64) / 257).round().clip(0, 255).astype(np.uint8)
            return torch.from_numpy(grey).expand(3, -1, -1)
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def files_digest(paths: Sequence[str], y: Tensor | None = None) -> str:
    """A short fingerprint of file names and sizes, and of labels."""
    digest = hashlib.sha256(b"" if y is None else y.numpy().tobytes())
    for path in paths:
        digest.update(f"{Path(path).name} {Path(path).stat().st_size}\n".encode())
    return digest.hexdigest()[:16]
