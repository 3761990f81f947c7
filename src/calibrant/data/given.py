"""Samples in memory: tensors, arrays, and any PyTorch data set."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from calibrant.data.dataset import PARTS, DataSet
from calibrant.data.images import read_files
from calibrant.data.part import Feed, Part, digest_of, label_counts
from calibrant.data.splits import split_off
from calibrant.errors import InputError

#: Fraction of the samples held out for the test, if they are not split yet.
TEST: Final = 0.2
_FORMS: Final = (
    "a pair (inputs, labels) of tensors or arrays, a torch.utils.data.Dataset of such pairs, or a mapping of these: "
    '{"train": ..., "test": ...} and optionally "validation"'
)


@dataclass(frozen=True)
class Items(Part):
    """Samples of a PyTorch data set, fed to the network unchanged.

    Attributes:
        source: Returns a pair of input and label for each index.
        numbers: Indices of these samples in the source.
        y: Their labels.
    """

    name: ClassVar[str] = "your own samples"
    impossible: ClassVar[Mapping[str, str]] = {
        "shift": "corruptions need images of known scale; these samples are tensors",
        "ood": "OOD data cannot be converted to the format of your own tensors; compare prediction files instead",
    }
    source: "Dataset[Any]" = field(repr=False)
    numbers: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    @property
    def labels(self) -> Tensor:
        """Labels ``(N,)``."""
        return self.y

    def subset(self, indices: Tensor) -> "Items":
        """The samples with the given indices."""
        return Items(self.source, self.numbers[indices], self.y[indices])

    def checksum(self) -> str:
        """A short fingerprint of labels and, if they are in memory, of inputs."""
        if isinstance(self.source, TensorDataset):
            return digest_of(self.y, self.source.tensors[0][self.numbers])
        return digest_of(self.y, self.numbers)

    def counts(self, classes: int) -> list[int]:
        """Samples of each class."""
        return label_counts(self.y, classes)

    def relabelled(self, y: Tensor) -> "Items":
        """The same samples with other labels."""
        return Items(self.source, self.numbers, y)

    @property
    def facts(self) -> dict[str, Any]:
        """Number of channels of images."""
        x = torch.as_tensor(self.read_one(0)[0])
        return {"channels": x.shape[0]} if x.dim() == 3 else {}

    def read_one(self, index: int) -> tuple[Tensor, Tensor]:
        """An input and its label."""
        x: Tensor = torch.as_tensor(self.source[int(self.numbers[index])][0])
        return x.float() if x.dtype == torch.float64 else x, self.y[index]

    def read(self, batches: Sequence[Tensor], feed: Feed) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and labels of each batch."""
        if isinstance(self.source, TensorDataset):
            for indices in batches:
                yield self.source.tensors[0][self.numbers[indices]], self.y[indices]
        else:
            yield from read_files(self.read_one, _as_they_are, batches, feed)


def _as_they_are(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x, y


def dataset_from(source: Any, *, validation: float | None = None, seed: int = 0) -> DataSet:
    """A data set from samples in memory.

    Args:
        source: A pair of inputs ``(N, ...)`` and labels ``(N,)``, tensors or arrays; a map-style PyTorch data set that
            gives such pairs; or a mapping of these by part, ``"train"``, ``"test"`` and optionally ``"validation"``. A
            single set is split at random: a fifth for the test, a tenth of the rest for validation.
        validation: Training samples held out for validation, a number or a fraction; a tenth if not given.
        seed: Seed of the split.
    """
    if isinstance(source, DataSet):
        return source
    divided = source if isinstance(source, Mapping) else {"train": source}
    for name in divided:
        if name not in PARTS:
            raise InputError(f"data: parts are named train, validation or test, not {name!r}; expected {_FORMS}")
    if "train" not in divided:
        raise InputError(f"data: there is no part named train; expected {_FORMS}")
    parts = {name: _items(one) for name, one in divided.items()}
    split: dict[str, Tensor] = {}
    if "test" not in parts:
        kept, out = split_off(parts["train"].y, TEST, seed)
        split |= {"train": kept, "test": out}
        parts |= {"train": parts["train"].subset(kept), "test": parts["train"].subset(out)}
        warnings.warn(
            f"data: {len(out):,} of {len(out) + len(kept):,} samples were held out for the test; to choose them, pass "
            'data={"train": ..., "test": ...}',
            stacklevel=2,
        )
    if "validation" not in parts:
        kept, out = split_off(parts["train"].y, 0.1 if validation is None else validation, seed)
        before = split.get("train", torch.arange(len(parts["train"])))
        split |= {"train": before[kept], "validation": before[out]}
        parts |= {"train": parts["train"].subset(kept), "validation": parts["train"].subset(out)}
    classes = 1 + max(int(part.y.max()) for part in parts.values() if len(part))
    names: Any = getattr(parts["train"].source, "classes", ())
    named = isinstance(names, list | tuple) and len(names) >= classes
    shown = [str(name) for name in (names if named else range(classes))]
    return DataSet("own", shown, parts["train"], parts["validation"], parts["test"], split=split)


def _items(source: Any) -> Items:
    if isinstance(source, tuple | list) and len(source) == 2:
        x, y = (torch.as_tensor(np.asarray(part) if not isinstance(part, Tensor) else part) for part in source)
        if not len(x) or len(x) != len(y) or y.dim() != 1 or y.is_floating_point() or y.is_complex():
            raise InputError(
                f"data: expected inputs (N, ...) and class indices (N,), got {x.dtype} {tuple(x.shape)} and "
                f"{y.dtype} {tuple(y.shape)}"
            )
        labels = y.detach().cpu().long()
        inputs = x.detach().cpu()
        inputs = inputs.float() if inputs.dtype in (torch.float64, torch.float16, torch.bfloat16) else inputs
        return Items(TensorDataset(inputs, labels), torch.arange(len(labels)), labels)
    if isinstance(source, TensorDataset) and len(source.tensors) == 2:
        return _items(source.tensors)
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__") or isinstance(source, IterableDataset | str):
        raise InputError(f"data: expected {_FORMS}; got {type(source).__name__}")
    known = getattr(source, "targets", getattr(source, "labels", None))
    try:
        read = known if known is not None and len(known) == len(source) else [source[i][1] for i in range(len(source))]
        y = torch.as_tensor(np.asarray(read)).long()
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise InputError(f"data: {type(source).__name__} must return pairs of input and class index ({error})") from error
    return Items(source, torch.arange(len(y)), y)
