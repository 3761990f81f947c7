"""A part of a data set: samples of one kind, and how they are fed to a network."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from calibrant.data.table import Augmentation, Mixing

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass
class Feed:
    """How samples are fed to a network.

    Attributes:
        train: Whether to augment.
        augmentation: Which augmentation.
        size: Side of images read from files.
        longest: Longest side that segmented images are scaled to before a crop of ``size``.
        workers: Processes that read files.
        change: Applied to images before they are normalised, such as a corruption.
        padding: Words of padding that the network needs in front of the longest text.
        multiple: The sides of segmented images are padded to a multiple of this.
        mean: Mean of each channel, for values in [0, 1].
        std: Standard deviation of each channel.
        random: Random generator.
    """

    train: bool = False
    augmentation: Augmentation = "none"
    size: int = 224
    longest: int | None = None
    workers: int = 0
    change: Callable[[Tensor], Tensor] | None = None
    padding: int = 0
    multiple: int = 1
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    random: torch.Generator = field(default_factory=torch.Generator)

    def changed(self, x: Tensor) -> Tensor:
        """Images ``(N, C, H, W)`` after the change, if there is one."""
        return x if self.change is None else self.change(x)

    def normalised(self, x: Tensor) -> Tensor:
        """Images ``(N, C, H, W)``, uint8 or in [0, 1], normalised with the channel statistics."""
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        mean, std = (
            torch.tensor(list(v)[: x.shape[1]], dtype=torch.float32).view(1, -1, 1, 1) for v in (self.mean, self.std)
        )
        return (x - mean) / std


class Part(ABC):
    """Samples with their labels: training, validation or test.

    Attributes:
        name: What the samples are, in messages.
        medium: Whether they are images or texts.
        dense: Whether every pixel has its own label.
        augmentations: Augmentations that apply to them.
        mixable: Whether samples of a batch can be mixed, as with mixup.
        impossible: What cannot be done with them, and why.
    """

    name: ClassVar[str]
    medium: ClassVar[Literal["images", "texts"]] = "images"
    dense: ClassVar[bool] = False
    augmentations: ClassVar[tuple[Augmentation, ...]] = ("none",)
    mixable: ClassVar[bool] = False
    impossible: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def subset(self, indices: Tensor) -> "Self":
        """The samples with the given indices."""

    @abstractmethod
    def checksum(self) -> str:
        """A short fingerprint of samples and labels."""

    @abstractmethod
    def counts(self, classes: int) -> list[int]:
        """Samples, or pixels, of each class.

        Raises:
            ValueError: If a label is not one of the classes.
        """

    @abstractmethod
    def read(self, batches: Sequence[Tensor], feed: Feed) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and labels of each batch of sample indices."""

    @property
    def labels(self) -> Tensor:
        """Labels ``(N,)`` of samples with one label each."""
        raise TypeError(f"{self.name} do not have one label each")

    @property
    def ignore_index(self) -> int:
        """Label of ignored pixels."""
        return -100

    @property
    def facts(self) -> dict[str, Any]:
        """What a network needs to know about its inputs."""
        return {}

    def in_order(self, indices: Tensor) -> Tensor:
        """Sample indices in evaluation order."""
        return indices

    def arranged(self, order: Tensor, batch_size: int, random: torch.Generator) -> list[Tensor]:
        """Batches of sample indices given in random order; the smallest batch comes last."""
        del random
        return list(order.split(batch_size))

    def relabelled(self, y: Tensor) -> "Self":
        """The same samples with other labels."""
        del y
        raise TypeError(f"{self.name} have no labels that could be replaced")

    def corrupted(self, change: Callable[[Tensor, Tensor], Tensor]) -> "Self":
        """The same samples after ``change(images, indices)``."""
        del change
        raise TypeError(f"{self.name} cannot be corrupted in advance; only images in memory can")

    def refuse(self, what: str) -> None:
        """Raise an error if something cannot be done with samples of this kind."""
        if what in self.impossible:
            raise TypeError(self.impossible[what])

    def check_augmentation(self, augmentation: Augmentation, mixing: Mixing = "none") -> None:
        """Refuse an augmentation or a mixing that does not apply to these samples."""
        if mixing != "none" and not self.mixable:
            raise ValueError(f"mixing {mixing} does not apply to {self.name}; only labelled images can be mixed")
        if augmentation not in self.augmentations:
            raise ValueError(
                f"augmentation {augmentation} does not apply to {self.name}; choose one of {', '.join(self.augmentations)}"
            )


def label_counts(y: Tensor, classes: int) -> list[int]:
    """Samples of each class."""
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise ValueError(f"labels must be 0..{classes - 1}, found {int(y.min())}..{int(y.max())}")
    counts: list[int] = torch.bincount(y, minlength=classes).tolist()
    return counts


def digest_of(*tensors: Tensor) -> str:
    """A short fingerprint of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
