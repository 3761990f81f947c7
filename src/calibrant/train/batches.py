"""Batches: sliced and augmented as a whole where images are in memory, read by worker processes where they are files.

Order and augmentation follow from the seed and the epoch alone, so that a run that is resumed sees what it would have seen.
Each process of a distributed job takes its share of every training batch, and every so-manieth validation sample: nothing is
padded and nothing counted twice.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from calibrant.data import DataSet, Files, Images, Part
from calibrant.data.folders import read_image
from calibrant.extras import require
from calibrant.train.recipe import Augmentation

Batch = tuple[Tensor, Tensor, int]
#: Pixels that an image is padded by before it is cropped at random.
PADDING = 4


class Batches:
    """An iterable over one part of a data set; an item is inputs, labels, and the size of the whole batch.

    Args:
        data: The data set, for the statistics of its channels.
        part: The part.
        batch_size: Samples of one batch, over all processes.
        seed: Of order and augmentation.
        train: Whether to shuffle and augment.
        augmentation: How.
        drop_last: Leave out the last batch if it is smaller.
        size: Side of images from files.
        workers: Processes that read files.
        rank: Number of this process.
        world: Number of processes.
    """

    def __init__(
        self,
        data: DataSet,
        part: Part,
        batch_size: int,
        *,
        seed: int = 0,
        train: bool = False,
        augmentation: Augmentation = "none",
        drop_last: bool = False,
        size: int = 224,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.part, self.batch_size, self.seed, self.train = part, batch_size, seed, train
        self.augmentation, self.drop_last, self.size, self.workers = augmentation, drop_last, size, workers
        self.rank, self.world, self.epoch = rank, world, 0
        channels = part.x.shape[1] if isinstance(part, Images) else 3
        self.mean, self.std = (
            torch.tensor(list(values)[:channels], dtype=torch.float32).view(1, -1, 1, 1) for values in (data.mean, data.std)
        )

    def __len__(self) -> int:
        own = len(self.part) if self.train else len(range(self.rank, len(self.part), self.world))
        size = self.batch_size if self.train else max(1, self.batch_size // self.world)
        return own // size if self.drop_last and own >= size else -(-own // size)

    def indices(self) -> list[tuple[Tensor, int]]:
        """Numbers of this process's samples of each batch, and the size of the whole batch."""
        if not self.train:
            own = torch.arange(self.rank, len(self.part), self.world)
            return [(batch, len(batch)) for batch in own.split(max(1, self.batch_size // self.world))]
        order = torch.randperm(len(self.part), generator=self._random(0))
        batches = list(order.split(self.batch_size))
        if self.drop_last and len(batches) > 1 and len(batches[-1]) < self.batch_size:
            batches.pop()
        return [(batch[self.rank :: self.world], len(batch)) for batch in batches]

    def __iter__(self) -> Iterator[Batch]:
        return self._from_memory(self.part) if isinstance(self.part, Images) else self._from_files(self.part)

    def _from_memory(self, images: Images) -> Iterator[Batch]:
        random = self._random(1 + self.rank)
        for indices, whole in self.indices():
            x = images.x[indices]
            if self.train and self.augmentation == "crop-flip":
                x = crop_and_flip(x, random)
            yield self._normalised(x), images.y[indices], whole

    def _from_files(self, files: Files) -> Iterator[Batch]:
        batches = self.indices()
        loader = DataLoader(
            _Reader(files, transform(self.augmentation if self.train else "none", self.size, train=self.train)),
            batch_sampler=[indices.tolist() for indices, _ in batches],
            num_workers=self.workers,
            generator=self._random(1 + self.rank),  # from which workers get their seeds
        )
        for (x, y), (_, whole) in zip(loader, batches, strict=True):
            yield self._normalised(x), y, whole

    def _normalised(self, x: Tensor) -> Tensor:
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        return (x - self.mean) / self.std

    def _random(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) * 1009 + stream)


class _Reader(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, files: Files, change: Any) -> None:
        self.files, self.change = files, change

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.change(read_image(self.files.paths[index])), self.files.y[index]


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
    if not train:
        return v2.Compose([v2.Resize(round(size / 0.875), interpolation=cubic, antialias=True), v2.CenterCrop(size)])
    if augmentation == "crop-flip":
        return v2.Compose([v2.RandomCrop(size, padding=PADDING), v2.RandomHorizontalFlip()])
    if augmentation == "none":
        return v2.Compose([v2.Resize(round(size / 0.875), interpolation=cubic, antialias=True), v2.CenterCrop(size)])
    steps = [v2.RandomResizedCrop(size, interpolation=cubic, antialias=True), v2.RandomHorizontalFlip()]
    if augmentation == "timm":  # as CALS used timm's create_transform: jitter 0.4, erase a quarter of the images with noise
        steps += [v2.ColorJitter(0.4, 0.4, 0.4), v2.RandomErasing(0.25, value="random")]
    return v2.Compose(steps)
