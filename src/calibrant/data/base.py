"""What a data set is: three parts, and what is known about them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.data.parts import Images, Masks, Part, Texts
from calibrant.validation import in_range, one_of

#: Where data is looked for if no root is given.
ROOT_VARIABLE = "CALIBRANT_DATA"


@dataclass(frozen=True)
class DataSet:
    """Three parts, and what is known about them.

    Attributes:
        name: What it is called.
        classes: Names of the classes.
        train: To learn from.
        validation: To adapt losses and choose checkpoints.
        test: To report.
        mean: Of each channel, of values in [0, 1].
        std: Of each channel.
        split: Which samples of the source went where, before any limit or altered validation set; kept in the run.
        vocabulary: Words of texts; the first has number 1, for 0 is padding.
        vectors: Of padding and the words; None if they are to be trained.
    """

    name: str
    classes: Sequence[str]
    train: Part
    validation: Part
    test: Part
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    split: Mapping[str, Tensor] = field(default_factory=dict)
    vocabulary: Sequence[str] = ()
    vectors: Tensor | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def ignore_index(self) -> int:
        """Label of pixels that are left out."""
        return self.train.ignore_index if isinstance(self.train, Masks) else -100

    @property
    def facts(self) -> dict[str, Any]:
        """What a network has to know of its inputs: channels of images, or the vocabulary or vectors of texts."""
        if isinstance(self.train, Texts):
            return {"vocabulary": len(self.vocabulary) + 1} if self.vectors is None else {"vectors": self.vectors}
        return {"channels": self.train.x.shape[1] if isinstance(self.train, Images) else 3}

    @cached_property
    def train_counts(self) -> list[int]:
        """Training samples, or pixels, of each class."""
        if isinstance(self.train, Masks):
            return self.train.counts(self.num_classes)
        counts: list[int] = torch.bincount(self.train.y, minlength=self.num_classes).tolist()
        return counts

    def check(self) -> None:
        """Look at all masks of segmented images, so that none of them ends a long job.

        Raises:
            ValueError: If something is wrong with one, or all pixels of a part are void.
        """
        for name in ("train", "validation", "test"):
            part = getattr(self, name)
            if isinstance(part, Masks):
                counts = self.train_counts if name == "train" else part.counts(self.num_classes)
                if not sum(counts):
                    raise ValueError(f"all pixels of the {name} part are void, such as those of {part.masks[0]}")

    def limited(self, most: int, seed: int = 0) -> "DataSet":
        """At most so many samples of each part, drawn at random; to try things out."""
        random = torch.Generator().manual_seed(seed)
        parts = {}
        for name in ("train", "validation", "test"):
            part = getattr(self, name)
            chosen = torch.randperm(len(part), generator=random)[:most].sort().values
            parts[name] = part.subset(chosen)
        return replace(self, **parts)


class MissingDataError(FileNotFoundError):
    """Data is not where it was looked for; says where, the layout expected, and how to get it."""


def data_root(root: str | Path | None) -> Path:
    """The folder of all data: what is given, or the environment variable CALIBRANT_DATA, or ``data``."""
    return Path(root or os.environ.get(ROOT_VARIABLE) or "data").expanduser()


def locate(path: str | Path, root: str | Path | None, inside: str = "") -> Path | None:
    """A file or folder under the root or by itself, or None; ``inside`` is what a folder has to hold."""
    places = (data_root(root) / path, Path(path).expanduser())
    return next((place for place in places if (place / inside if inside else place).exists()), None)


def split_off(y: Tensor, held: float, seed: int, *, per_class: bool = False) -> tuple[Tensor, Tensor]:
    """Numbers of the samples that stay and of those held out, drawn at random.

    Args:
        y: Labels.
        held: How many are held out: a number, or a fraction below 1.
        seed: Which ones.
        per_class: Hold out so many of each class.
    """
    random = torch.Generator().manual_seed(seed)
    if per_class:
        members = [torch.nonzero(y == k).flatten() for k in range(int(y.max()) + 1)]
        parts = [split_off(own, held, seed + k) for k, own in enumerate(members)]
        kept, out = (torch.cat([own[part[i]] for own, part in zip(members, parts, strict=True)]) for i in range(2))
        return kept.sort().values, out.sort().values
    number = round(held * len(y)) if held < 1 else int(held)
    if not 0 <= number < max(1, len(y)):
        raise ValueError(f"cannot hold out {held} of {len(y)} samples")
    order = torch.randperm(len(y), generator=random)
    return order[number:].sort().values, order[:number].sort().values


LongTailKind = Literal["exp", "pareto", "step"]


def long_tail_counts(most: int, classes: int, ratio: float, kind: LongTailKind = "exp") -> list[int]:
    r"""Samples of each class of a long-tailed set, class 0 the largest.

    ``"exp"``: :math:`n_k = n_0 \rho^{-k/(K-1)}` (Cui et al., CVPR 2019). ``"step"``: the second half of the classes has
    :math:`n_0 / \rho`. ``"pareto"``: the shape of ImageNet-LT (Liu et al., CVPR 2019), a power of 6:
    :math:`n_k = n_0 (1 + (\rho^{1/6} - 1) \frac{k}{K-1})^{-6}`.
    """
    in_range("ratio", ratio, 1)
    one_of("kind", kind, ("exp", "pareto", "step"))
    place = torch.arange(classes, dtype=torch.float64) / max(1, classes - 1)
    if kind == "exp":
        share = ratio**-place
    elif kind == "step":
        share = torch.where(torch.arange(classes) < classes // 2, 1.0, 1 / ratio).double()
    else:
        share = (1 + (ratio ** (1 / 6) - 1) * place) ** -6
    return [max(1, round(most * float(s))) for s in share]


def long_tail(
    part: Part, ratio: float, kind: LongTailKind = "exp", seed: int = 0, *, most: int | None = None
) -> tuple[Part, Tensor]:
    """Cut classes down to a long tail.

    Args:
        part: A balanced set.
        ratio: How many times as many samples the largest class keeps as the smallest.
        kind: Shape of the tail, see :func:`long_tail_counts`.
        seed: Which samples stay.
        most: Samples of class 0; what the smallest class has if None.

    Returns:
        What stays, and its numbers.
    """
    if isinstance(part, Masks):
        raise TypeError("a long tail is cut of samples that have one class each, not of segmented images")
    classes = int(part.y.max()) + 1
    members = [torch.nonzero(part.y == k).flatten() for k in range(classes)]
    counts = long_tail_counts(most or min(map(len, members)), classes, ratio, kind)
    random = torch.Generator().manual_seed(seed)
    chosen = [own[torch.randperm(len(own), generator=random)][:n] for own, n in zip(members, counts, strict=True)]
    indices = torch.cat(chosen).sort().values
    return part.subset(indices), indices
