"""A data set: three parts and their metadata."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from calibrant.data.part import Part
from calibrant.data.splits import long_tail_indices, split_off
from calibrant.data.table import LongTailKind
from calibrant.errors import InputError, input_errors

#: The parts of a data set.
PARTS = ("train", "validation", "test")
#: Added to the seed of the split when the validation set is divided: the two choices must not depend on each other.
SCORED = 7_919


@dataclass(frozen=True)
class DataSet:
    """Training, validation and test part, and what is known about them.

    Attributes:
        name: Name of the data set.
        classes: Names of the classes.
        train: For training.
        validation: For adapting losses and selecting checkpoints.
        test: For the reported results.
        mean: Mean of each channel, for values in [0, 1].
        std: Standard deviation of each channel.
        split: Which source samples went into which part, before any limit or change of the validation set; saved in the run.
        vocabulary: Words of texts; the first has index 1, as 0 is padding.
        vectors: Vectors of padding and the words; None if they are to be trained.
    """

    name: str
    classes: Sequence[str]
    train: Part = field(repr=False)
    validation: Part = field(repr=False)
    test: Part = field(repr=False)
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    split: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    vocabulary: Sequence[str] = field(default=(), repr=False)
    vectors: Tensor | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        sizes = " / ".join(f"{len(self.part(name)):,}" for name in PARTS)
        return f"DataSet({self.name}: {sizes} {self.train.name} of {self.num_classes} classes)"

    def part(self, name: str) -> Part:
        """A part by its name."""
        found: Part = getattr(self, name)
        return found

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def ignore_index(self) -> int:
        """Label of ignored pixels."""
        return self.train.ignore_index

    @property
    def facts(self) -> dict[str, Any]:
        """What a network needs to know about its inputs: channels of images, or vocabulary or vectors of texts."""
        if not self.vocabulary:
            return self.train.facts
        return {"vocabulary": len(self.vocabulary) + 1} if self.vectors is None else {"vectors": self.vectors}

    @cached_property
    def train_counts(self) -> list[int]:
        """Training samples, or pixels, of each class."""
        return self.train.counts(self.num_classes)

    def check(self) -> None:
        """Check all labels, including those of every pixel, so that a bad one cannot end a long job.

        Raises:
            InputError: If one is wrong.
        """
        for name in PARTS:
            if not len(self.part(name)):
                raise InputError(f"the {name} part holds no samples")
            with input_errors(f"the {name} part"):
                _ = self.train_counts if name == "train" else self.part(name).counts(self.num_classes)

    def long_tailed(self, ratio: float, *, kind: LongTailKind = "exp", seed: int = 0) -> "DataSet":
        """The same data set with its training part cut down to a long tail.

        Args:
            ratio: Imbalance ratio, samples of the largest class over those of the smallest.
            kind: Shape of the tail, see :func:`calibrant.data.long_tail_counts`.
            seed: Seed of the choice of samples.
        """
        self.train.refuse("long tail")
        indices = long_tail_indices(self.train.labels, ratio, kind=kind, seed=seed)
        before = self.split.get("train")
        split = {**self.split, "train": indices if before is None else before[indices]}
        return replace(self, train=self.train.subset(indices), split=split)

    def limited(self, most: int, *, seed: int = 0) -> "DataSet":
        """At most ``most`` samples of each part, drawn at random, for quick experiments."""
        random = torch.Generator().manual_seed(seed)
        parts: dict[str, Any] = {}
        for name in PARTS:
            chosen = torch.randperm(len(self.part(name)), generator=random)[:most].sort().values
            parts[name] = self.part(name).subset(chosen)
        return replace(self, **parts)

    def tested_on_validation(self, share: float, *, seed: int = 0) -> "DataSet":
        """The same data set with part of its validation set in place of the test set.

        Hyper-parameters chosen by its test metrics are chosen without a look at the test set, and by samples that
        adaptive losses have not learned from.

        Args:
            share: Fraction of the validation set that is taken, of each class if samples have one label each.
            seed: Seed of the choice of samples.
        """
        held = self.validation
        labels = torch.zeros(len(held)) if held.dense else held.labels
        rest, apart = split_off(labels, share, seed + SCORED, per_class=not held.dense)
        if not len(rest) or not len(apart):
            raise InputError(f"a validation set of {len(held)} samples is too small to be divided")
        split = dict(self.split)
        if "validation" in split:
            split |= {"validation": split["validation"][rest], "test": split["validation"][apart]}
        return replace(self, validation=held.subset(rest), test=held.subset(apart), split=split)
