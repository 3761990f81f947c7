"""What a file of predictions is, whatever its format: rows of scores and labels, checked as they are read."""

import contextlib
import math
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.extras import require

Kind = Literal["logits", "probs"]

#: Usual names of labels, in the order of preference.
TARGETS = ("target", "targets", "label", "labels", "y", "y_true")
#: Values that are read at once; with what is computed from them, some 100 MB.
CHUNK = 2**22


class Chunk(NamedTuple):
    """Some consecutive rows of a file.

    Attributes:
        start: Number of the first row, counting from 0.
        logits: ``(n, K)`` or ``(n, K, *spatial)``; logarithms of probabilities if these are in the file.
        target: True classes ``(n,)`` or ``(n, *spatial)``, or None if the file has none.
    """

    start: int
    logits: Tensor
    target: Tensor | None


class Predictions(ABC):
    """An open file of predictions.

    Attributes:
        path: Where it is.
        kind: Whether it holds logits or probabilities.
        num_classes: Number of classes K.
        classes: Names of the classes, if the file has them.
        train_counts: Training samples of each class, if the file has them.
        has_target: Whether there are true classes.
        shape: Shape of one sample's pixels, ``()`` for plain classification.
    """

    path: Path
    kind: Kind
    num_classes: int
    classes: list[str] | None = None
    train_counts: list[int] | None = None
    has_target: bool
    shape: tuple[int, ...] = ()
    ignore_index: int

    @abstractmethod
    def count(self) -> int:
        """Number of rows."""

    @abstractmethod
    def _read(self, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Scores and labels, at most ``rows`` at a time."""

    def name_of(self, k: int) -> str:
        """Name of a class, or its number."""
        return self.classes[k] if self.classes else str(k)

    def chunks(self) -> Iterator[Chunk]:
        """Rows in order, checked.

        Raises:
            InputError: If a row is not what it should be; it names the first one.
        """
        start = 0
        rows = max(1, CHUNK // (self.num_classes * math.prod(self.shape)))
        for scores, labels in self._read(rows):
            logits = self._logits(scores, start)
            target = None if labels is None else self._labels(labels, start)
            yield Chunk(start, logits, target)
            start += len(logits)
        if not start:
            raise InputError(f"{self.path} holds no predictions: it has 0 rows")

    def read_all(self) -> tuple[Tensor, Tensor]:
        """All logits and labels at once."""
        self.require_target()
        parts = list(self.chunks())
        return torch.cat([part.logits for part in parts]), torch.cat(
            [part.target for part in parts if part.target is not None]
        )

    def require_target(self) -> None:
        """Refuse a file without true classes."""
        if not self.has_target:
            names = ", ".join(TARGETS[:4])
            raise InputError(f"{self.path} has no labels: name them {names}, or pass `label` with their name")

    def _logits(self, scores: np.ndarray, start: int) -> Tensor:
        if scores.dtype.kind not in "fiu":
            raise InputError(f"{self.path} must hold numbers as scores, but they are of type {scores.dtype}")
        wanted = np.float64 if scores.dtype == np.float64 else np.float32
        values = torch.from_numpy(np.ascontiguousarray(scores, dtype=wanted))
        broken = (
            ~values.isfinite().all(dim=1)
            if self.kind == "probs"
            else values.isnan().any(dim=1) | (values == torch.inf).any(dim=1)
        )
        self._refuse(broken, start, "has a score that is not a finite number; remove or repair it")
        if self.kind == "logits":
            self._refuse((values == -torch.inf).all(dim=1), start, "has only scores of -infinity; remove or repair it")
            return values
        negative = (values < 0).any(dim=1)
        self._refuse(negative, start, 'has a negative probability; if these are logits, pass `kind="logits"`')
        total = values.double().sum(dim=1)
        self._refuse(
            (total - 1).abs() > 1e-3,
            start,
            'adds up to {value:.4g}, not to 1; if these are logits, pass `kind="logits"`',
            total,
        )
        return values.log()

    def _labels(self, labels: np.ndarray, start: int) -> Tensor:
        if labels.dtype.kind in "US" or labels.dtype == object:
            labels = self._by_name(labels, start)
        if labels.dtype.kind == "f":
            whole = torch.from_numpy(labels == np.floor(labels))
            self._refuse(~whole, start, "has a label that is not a whole number: {value}", torch.from_numpy(labels))
        elif labels.dtype.kind not in "iu":
            raise InputError(
                f"{self.path} must hold whole numbers or class names as labels, but they are of type {labels.dtype}"
            )
        target = torch.from_numpy(labels.astype(np.int64))
        outside = ((target < 0) | (target >= self.num_classes)) & (target != self.ignore_index)
        cure = (
            f"has label {{value}}, but there are {self.num_classes} classes (0..{self.num_classes - 1}); "
            "if it marks samples to leave out, pass `ignore_index={value}`"
        )
        self._refuse(outside, start, cure, target)
        return target

    def _by_name(self, labels: np.ndarray, start: int) -> np.ndarray:
        numbers = {name: k for k, name in enumerate(self.classes or [])}
        values, place = np.unique(labels.astype(str), return_inverse=True)
        if not set(values) <= set(numbers):
            with contextlib.suppress(ValueError):
                as_numbers: np.ndarray = values.astype(np.float64)[place]
                return as_numbers
        known = np.array([value in numbers for value in values])
        if not known.all():
            row = int(np.flatnonzero(~known[place])[0])
            names = ", ".join(list(numbers)[:5]) + (", ..." if len(numbers) > 5 else "")
            raise InputError(
                f"{self.path}, row {start + row}: label {str(labels[row])!r} is not one of the classes "
                f"{names or '0, 1, ...'}"
            )
        return np.array([numbers[value] for value in values])[place]

    def _refuse(self, wrong: Tensor, start: int, message: str, values: Tensor | None = None) -> None:
        if not wrong.any():
            return
        first = wrong.nonzero()[0].tolist()
        pixel = f", pixel {tuple(first[1:])}" if len(first) > 1 else ""
        value = "" if values is None else values[tuple(first)].item()
        raise InputError(f"{self.path}, row {start + first[0]}{pixel}: {message.format(value=value)}")


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what readers raise over broken files into one sentence."""
    broken: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, KeyError, NotImplementedError)
    if path.suffix.lower() == ".npz":
        broken += (zipfile.BadZipFile, zlib.error)
    else:
        broken += (require("pyarrow.lib", f"reading {path.suffix}").ArrowException,)
    try:
        yield
    except InputError:
        raise
    except broken as error:
        what = " ".join(str(error).split())[:200]
        raise InputError(f"{path} cannot be read, it may be broken or cut short ({type(error).__name__}: {what})") from error
