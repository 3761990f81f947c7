"""Batches: sliced and augmented as a whole where images are in memory, read by worker processes where they are files.

Texts of a batch are of similar length, so that little of it is padding.

Order and augmentation follow from the seed and the epoch alone, so that a run that is resumed sees what it would have seen.
Each process of a distributed job takes its share of every training batch, and every so-manieth validation sample: nothing is
padded and nothing counted twice.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from calibrant.data import DataSet, Files, Images, Masks, Part, Texts
from calibrant.extras import require
from calibrant.train.recipe import Augmentation

Batch = tuple[Tensor, Tensor, int]
#: Batches of texts that are drawn together, then sorted by length.
POOL = 40
#: Segmented images that are measured are padded to a multiple of this, as networks need it.
MULTIPLE = 32
#: Pixels that an image is padded by before it is cropped at random.
PADDING = 4


#: Kinds of samples, and the augmentations that there are for them.
AUGMENTATIONS: dict[type, tuple[str, tuple[Augmentation, ...]]] = {
    Images: ("images in memory", ("none", "crop-flip")),
    Files: ("images from files", ("none", "crop-flip", "imagenet", "timm")),
    Masks: ("segmented images", ("none", "segmentation")),
    Texts: ("texts", ("none",)),
}


def check_augmentation(augmentation: Augmentation, part: Part) -> None:
    """Refuse an augmentation that would do nothing, or not what it says."""
    what, ways = next(found for kind, found in AUGMENTATIONS.items() if isinstance(part, kind))
    if augmentation not in ways:
        raise ValueError(f"augmentation {augmentation} is not for {what}; choose from {', '.join(ways)}")


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
        longest: Longest side that segmented images are scaled to before a crop of ``size``.
        workers: Processes that read files.
        change: Applied to images before they are normalised, such as a corruption.
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
        longest: int | None = None,
        workers: int = 0,
        change: Callable[[Tensor], Tensor] | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.part, self.batch_size, self.seed, self.train = part, batch_size, seed, train
        self.augmentation, self.drop_last, self.change = augmentation, drop_last, change
        self.size, self.longest, self.workers = size, longest, workers
        self.rank, self.world, self.epoch = rank, world, 0
        channels = part.x.shape[1] if isinstance(part, Images) else 3
        self.mean, self.std = (
            torch.tensor(list(values)[:channels], dtype=torch.float32).view(1, -1, 1, 1) for values in (data.mean, data.std)
        )

    def __len__(self) -> int:
        own = len(self.part) if self.train else len(range(self.rank, len(self.part), self.world))
        size = self.batch_size if self.train else max(1, self.batch_size // self.world)
        whole, rest = divmod(own, size)
        least = 1 if not self.train else size if self.drop_last else self.world
        return whole + (rest > 0 and (rest >= least or not whole))

    def indices(self) -> list[tuple[Tensor, int]]:
        """Numbers of this process's samples of each batch, and the size of the whole batch."""
        if not self.train:
            own = torch.arange(self.rank, len(self.part), self.world)
            if isinstance(self.part, Texts):
                own = own[self.part.lengths[own].argsort(stable=True)]
            return [(batch, len(batch)) for batch in own.split(max(1, self.batch_size // self.world))]
        random = self._random(0)
        order = torch.randperm(len(self.part), generator=random)
        batches = list(order.split(self.batch_size))
        if isinstance(self.part, Texts):
            batches = by_length(order, self.part.lengths, self.batch_size, random)
        least = self.batch_size if self.drop_last else self.world  # of a smaller one, a process would get nothing
        if len(batches) > 1 and len(batches[-1]) < least:
            batches.pop()
        return [(batch[self.rank :: self.world], len(batch)) for batch in batches]

    def __iter__(self) -> Iterator[Batch]:
        if isinstance(self.part, Texts):
            return self._of_texts(self.part)
        return self._from_memory(self.part) if isinstance(self.part, Images) else self._from_files(self.part)

    def _of_texts(self, texts: Texts) -> Iterator[Batch]:
        for indices, whole in self.indices():
            yield texts.padded(indices), texts.y[indices], whole

    def _from_memory(self, images: Images) -> Iterator[Batch]:
        random = self._random(1 + self.rank)
        for indices, whole in self.indices():
            x = images.x[indices]
            if self.train and self.augmentation == "crop-flip":
                x = crop_and_flip(x, random)
            yield self._normalised(x), images.y[indices], whole

    def _change(self, part: Files | Masks) -> Any:
        """What is done to an image and its label or mask; torchvision's transforms let a label pass."""
        if isinstance(part, Files):
            return transform(self.augmentation if self.train else "none", self.size, train=self.train)
        if self.train:
            return JointTransform(self.augmentation, self.size, self.longest, part.ignore_index)
        height, width = (-(-side // MULTIPLE) * MULTIPLE for side in part.largest())
        return _Padding(height, width, part.ignore_index)

    def _from_files(self, files: Files | Masks) -> Iterator[Batch]:
        batches = self.indices()
        loader = DataLoader(
            _Reader(files, self._change(files)),
            batch_sampler=[indices.tolist() for indices, _ in batches],
            num_workers=self.workers,
            generator=self._random(1 + self.rank),  # from which workers get their seeds
        )
        sizes = files.sizes() if isinstance(files, Masks) and self.change is not None else None
        for (x, y), (indices, whole) in zip(loader, batches, strict=True):
            if sizes is None or self.change is None:
                yield self._normalised(x), y, whole
                continue
            for image, index in zip(x, indices.tolist(), strict=True):  # without what they are padded with
                own = image[:, : sizes[index][0], : sizes[index][1]]
                own.copy_(self.change(own.unsqueeze(0)).squeeze(0))
            yield self._scaled(x), y, whole

    def _normalised(self, x: Tensor) -> Tensor:
        return self._scaled(x if self.change is None else self.change(x))

    def _scaled(self, x: Tensor) -> Tensor:
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        return (x - self.mean) / self.std

    def _random(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) * 1009 + stream)


class _Reader(Dataset[tuple[Tensor, Tensor]]):
    """Reads images with their labels or masks, and changes both."""

    def __init__(self, part: Files | Masks, change: Any) -> None:
        self.part, self.change = part, change

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, target = self.change(*self.part.read(index))
        return image, target


class _Padding:
    """Pads images and masks to one size at the lower right."""

    def __init__(self, height: int, width: int, void: int) -> None:
        self.height, self.width, self.void = height, width, void

    def __call__(self, image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        more = (0, self.width - image.shape[-1], 0, self.height - image.shape[-2])
        pad = torch.nn.functional.pad
        return pad(image, more), pad(mask, more, value=self.void)


def by_length(order: Tensor, lengths: Tensor, batch_size: int, random: torch.Generator) -> list[Tensor]:
    """Batches of similar length, in random order: sorted within pools of :data:`POOL` batches, the smallest batch last."""
    pools = [pool[lengths[pool].argsort(stable=True)] for pool in order.split(POOL * batch_size)]
    batches = [batch for pool in pools for batch in pool.split(batch_size)]
    full = [batch for batch in batches if len(batch) == batch_size]
    shuffled = [full[i] for i in torch.randperm(len(full), generator=random).tolist()]
    return shuffled + [batch for batch in batches if len(batch) < batch_size]


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
