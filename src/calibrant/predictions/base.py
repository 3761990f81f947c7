"""A prediction file of any format: rows of scores and labels, checked as they are read."""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.predictions.labels import FROM_ONE, LabelReader, Labels, Meaning
from calibrant.predictions.layout import Kind, listed_names

#: Values read at once; with what is computed from them, about 100 MB.
CHUNK = 2**22
#: Rows inspected before anything is decided.
HEAD = 1000
#: How far the sum of a row of probabilities may be from 1, and how far if all values are rounded.
CLOSE, ROUNDED = 1e-3, 0.05


class Chunk(NamedTuple):
    """Some consecutive rows of a file.

    Attributes:
        start: Index of the first row, counting from 0.
        logits: ``(n, K)`` or ``(n, K, *spatial)``; logarithms of probabilities if these are in the file.
        target: True classes ``(n,)`` or ``(n, *spatial)``, or None if the file has none.
    """

    start: int
    logits: Tensor
    target: Tensor | None


class Reading(NamedTuple):
    """What the user says about a file; None for what is to be inferred.

    Attributes:
        kind: What the scores are.
        scores: Name of the array of scores in an npz.
        columns: Columns of a table that hold scores, or shell patterns of their names.
        label: Name of the array, column or file of labels.
        labels_are: Whether labels are names or numbers of classes.
        positive: The label of the positive class, if two classes share a single score.
        normalise: Divide probabilities by their sum.
        ignore_index: Label of samples or pixels to ignore.
    """

    kind: Kind | None = None
    scores: str | None = None
    columns: Sequence[str] | None = None
    label: str | None = None
    labels_are: Meaning | None = None
    positive: str | None = None
    normalise: bool = False
    ignore_index: int = -100


class Predictions(ABC):
    """An open prediction file.

    Attributes:
        path: Its path.
        kind: Whether it holds logits or probabilities.
        num_classes: Number of classes K.
        classes: Names of the classes, if the file has them.
        train_counts: Training samples of each class, if the file has them.
        has_target: Whether there are true classes.
        shape: Shape of one sample's pixels, ``()`` for plain classification.
        ignore_index: Label of samples or pixels to ignore.
        single: Whether two classes share a single score, that of the second.
        normalise: Whether rows of probabilities are divided by their sum.
        tolerance: How far the sum of a row of probabilities may be from 1.
        aside: Names of columns or arrays that are neither scores nor labels.
        label_file: Another file that holds the labels, if there is one.
        decimals: To how many decimals probabilities are rounded, at most 5; None if they are not.
    """

    path: Path
    kind: Kind
    num_classes: int
    classes: list[str] | None = None
    train_counts: list[int] | None = None
    has_target: bool
    shape: tuple[int, ...] = ()
    ignore_index: int
    single: bool = False
    normalise: bool = False
    tolerance: float = CLOSE
    aside: Sequence[str] = ()
    label_file: Path | None = None
    decimals: int | None = None
    #: What probabilities of 0 are read as.
    _floor: float = 0.0
    #: For :meth:`understood`: where scores and labels are, and what else was noticed.
    _places: tuple[str, str] = ("", "")
    _notes: tuple[str, ...] = ()
    #: How labels become class indices; None if there are no labels, or if they already are indices.
    _label_rule: LabelReader | None = None
    #: Another possible reason why rows do not add up to 1.
    _hint: str = ""

    @abstractmethod
    def count(self) -> int:
        """Number of rows."""

    @abstractmethod
    def _read(self, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Scores ``(n, K, *)``, or ``(n, 1, *)`` if two classes share one, and class indices."""

    def _seen_labels(self) -> dict[str, int]:
        """Every distinct label as text, with the first row that has it."""
        return {}

    @cached_property
    def labels(self) -> Labels:
        """Which class each label stands for, decided from all of them."""
        if self._label_rule is None:
            return Labels({})
        found = self._label_rule.decide(self._seen_labels())
        self.classes = self.classes or found.classes
        return found

    def name_of(self, k: int) -> str:
        """Name of a class, or its index."""
        return self.classes[k] if self.classes else str(k)

    def understood(self, *, labels: bool = True) -> str:
        """How the file was understood, in one line; without ``labels``, labels are not read."""
        scores, label = self._places
        what = "probabilities" if self.kind == "probs" else "logits"
        subject = f"one column of {what}, two classes" if self.single else f"{what} of {self.num_classes} classes"
        parts = [", ".join([f"{subject} ({scores})" if scores else subject, *self._notes])]
        if labels and self.has_target:
            meaning = self.labels.meaning
            parts.append(f"labels in {label}" + (f" ({meaning})" if meaning else ""))
        elif labels:
            parts.append("no labels")
        beside = [*self.aside, *([label] if self.has_target and not labels else [])]
        if beside:
            parts.append(f"{'ignored' if labels else 'kept'}: {listed_names(beside)}")
        return f"{self.path.name}: {'; '.join(parts)}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.understood()}>"

    def chunks(self) -> Iterator[Chunk]:
        """Rows in order, checked.

        Raises:
            InputError: If a row is invalid; the message names the first one.
        """
        start = 0
        rows = max(1, CHUNK // (self.num_classes * math.prod(self.shape)))
        for scores, labels in self._read(rows):
            logits = self._logits(scores, start)
            target = None if labels is None else self._target(labels, start)
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
            beside = f" (besides the scores it has {listed_names(self.aside)})" if self.aside else ""
            raise InputError(
                f"{self.path} has no labels{beside}: name them label or target, or pass `label` with their name"
            )

    # Decisions based on the first rows

    def _look(self, scores: np.ndarray, reading: Reading, kind: Kind | None, what: str) -> None:
        """Decide what the first rows of scores ``(n, K, *)`` are; ``what`` names them."""
        values = np.moveaxis(np.asarray(scores, dtype=np.float64), 1, -1).reshape(-1, scores.shape[1])
        values = values[np.isfinite(values).all(axis=1)]
        self.single = values.shape[1] == 1
        self.num_classes = 2 if self.single else values.shape[1]
        self.normalise = reading.normalise
        self.decimals = decimals = _decimals(values)
        if decimals is not None and not self.single:
            self.tolerance = max(CLOSE, min(ROUNDED, self.num_classes * 0.5 * 10.0**-decimals))
        with np.errstate(over="ignore"):
            totals = values.sum(axis=1)
        unit = bool(len(values)) and bool((values >= 0).all()) and not self.single
        add_up = unit and bool((np.abs(totals - 1) <= self.tolerance).all())
        found = reading.kind or kind or ("probs" if add_up else None)
        if found is None:
            raise InputError(f"{self.path}: {what} may hold logits or probabilities; {_advice(values, self.num_classes)}")
        if found == "logits" and unit and bool((np.abs(totals - 1) <= CLOSE).all()):
            raise InputError(
                f"{self.path}: {what} must be probabilities, not logits: none is negative and every row adds up to 1; "
                'pass `kind="probs"`'
            )
        if found == "logits" and self.normalise:
            raise InputError(
                f'{self.path}: `normalise` applies to probabilities, but {what} are treated as logits; pass `kind="probs"`'
            )
        self.kind = found
        if self.normalise:
            self._notes += ("normalised",)
        elif found == "probs" and self.tolerance > CLOSE and decimals is not None:
            self._notes += (f"rounded to {decimals} decimal{'s' * (decimals > 1)}; rows renormalised",)

    def lift_zeros(self) -> str:
        """From now on, read probabilities that were rounded to 0 as half a unit of their last decimal, and say so.

        Calibrators work on logarithms, and an exact 0 would be infinitely far from everything else.

        Returns:
            What was done; empty if probabilities are not rounded.
        """
        if self.kind != "probs" or self.decimals is None:
            return ""
        self._floor = 0.5 * 10.0**-self.decimals
        rounded = f"probabilities are rounded to {self.decimals} decimal{'s' * (self.decimals > 1)}"
        return f"{self.path.name}: {rounded}; zeros are read as {self._floor:.{self.decimals + 1}f}"

    def _label_reader(self, reading: Reading, score: str | None) -> LabelReader:
        return LabelReader(
            str(self.path),
            self.num_classes,
            self.classes,
            self.ignore_index,
            reading.labels_are,
            reading.positive,
            score if self.single else None,
        )

    # Checking

    def _logits(self, scores: np.ndarray, start: int) -> Tensor:
        if scores.dtype.kind not in "fiu":
            raise InputError(f"{self.path} must hold numbers as scores, but they are of type {scores.dtype}")
        wanted = np.float64 if scores.dtype == np.float64 else np.float32
        values = torch.from_numpy(np.require(scores, wanted, ["C", "W"]))  # writable, as PyTorch expects
        broken = (
            ~values.isfinite().all(dim=1)
            if self.kind == "probs"
            else values.isnan().any(dim=1) | (values == torch.inf).any(dim=1)
        )
        self._refuse(broken, start, "has a score that is not a finite number; remove or repair it")
        return self._from_logits(values, start) if self.kind == "logits" else self._from_probs(values, start)

    def _from_logits(self, values: Tensor, start: int) -> Tensor:
        if self.single:
            return torch.cat([torch.zeros_like(values), values], dim=1)
        self._refuse((values == -torch.inf).all(dim=1), start, "has only scores of -infinity; remove or repair it")
        return values

    def _from_probs(self, values: Tensor, start: int) -> Tensor:
        within = bool(((values >= 0) & (values <= 1)).all())
        logits = "" if within else '; if these are logits, pass `kind="logits"`'
        self._refuse((values < 0).any(dim=1), start, f"has a negative probability{logits}{self._hint}")
        if self.single:
            self._refuse((values > 1).any(dim=1), start, f"has a probability above 1{logits}")
            values = values.clamp(self._floor, 1 - self._floor)
            return torch.cat([torch.log1p(-values), values.log()], dim=1)
        total = values.double().sum(dim=1)
        if self.normalise:
            self._refuse(~(total > 0), start, "has only probabilities of 0, which cannot be normalised; remove or repair it")
        else:
            percent = (total - 100).abs() <= 100 * self.tolerance
            cure = "; if they only need to be divided by their sum, pass `normalise=True`"
            message = "adds up to {value}, not to 1" + cure + ("" if bool(percent.all()) else logits) + self._hint
            self._refuse((total - 1).abs() > self.tolerance, start, message, total.round(decimals=4))
        if self._floor:
            values = values.clamp(min=self._floor)
            total = values.double().sum(dim=1)
        if self.normalise or self.tolerance > CLOSE or self._floor:
            values = values / total.unsqueeze(1).to(values.dtype)
        return values.log()

    def _target(self, labels: np.ndarray, start: int) -> Tensor:
        if labels.dtype.kind == "f":
            whole = torch.from_numpy(labels == np.floor(labels))
            self._refuse(~whole, start, "has a label that is not an integer: {value}", torch.from_numpy(labels))
        elif labels.dtype.kind not in "iu":
            raise InputError(f"{self.path} must hold integers or class names as labels, but they are of type {labels.dtype}")
        target = torch.from_numpy(labels.astype(np.int64))
        outside = ((target < 0) | (target >= self.num_classes)) & (target != self.ignore_index)
        kept = target[target != self.ignore_index]
        from_one = bool(outside.any()) and (int(kept.min()), int(kept.max())) == (1, self.num_classes)
        cure = FROM_ONE if from_one else "if it marks samples to ignore, pass `ignore_index={value}`"
        message = f"has label {{value}}, but there are {self.num_classes} classes (0..{self.num_classes - 1}); {cure}"
        self._refuse(outside, start, message, target)
        return target

    def _refuse(self, wrong: Tensor, start: int, message: str, values: Tensor | None = None) -> None:
        if not wrong.any():
            return
        first = wrong.nonzero()[0].tolist()
        pixel = f", pixel {tuple(first[1:])}" if len(first) > 1 else ""
        if values is not None:
            message = message.replace("{value}", f"{values[tuple(first)].item():.10g}")
        raise InputError(f"{self.path}, row {start + first[0]}{pixel}: {message}")


def _decimals(values: np.ndarray) -> int | None:
    """How many decimals values between 0 and 1 have, at most 5; None if more, or if all are integers."""
    if not bool(((values >= 0) & (values <= 1)).all()):
        return None
    for decimals in range(6):
        scaled = values * 10.0**decimals
        # float32 resolves numbers below 1 to 6e-8; a rounded value is off by no more than that
        if len(values) and bool((np.abs(scaled - np.rint(scaled)) <= 2e-7 * 10.0**decimals).all()):
            return decimals or None
    return None


def _advice(values: np.ndarray, classes: int) -> str:
    """What to pass for scores of unknown kind; never suggests logits for values between 0 and 1."""
    if not len(values):
        return 'pass `kind="logits"` or `kind="probs"`'
    if bool(((values >= 0) & (values <= 1)).all()):
        totals = values.sum(axis=1)
        sums = f" and rows add up to {totals.min():.4g} to {totals.max():.4g}" if values.shape[1] == classes else ""
        more = ", and `normalise=True` to divide them by their sum" if sums else ""
        return f'they lie between 0 and 1{sums}: pass `kind="probs"`{more}'
    if bool(((values >= 0) & (values <= 101)).all()) and bool((np.abs(values.sum(axis=1) - 100) <= 1).all()):
        return 'rows add up to 100: for percentages pass `kind="probs"` and `normalise=True`'
    return 'they do not lie between 0 and 1: pass `kind="logits"`'


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn errors about broken files into one sentence."""
    try:
        yield
    except (InputError, ModuleNotFoundError):
        raise
    except Exception as error:  # for unexpected bytes, a reader may raise anything
        what = " ".join(str(error).split())[:200]
        if isinstance(error, OSError) and error.errno is not None:  # the file itself may be fine
            raise InputError(f"{path} cannot be read: {error.strerror or what}") from error
        if isinstance(error, MemoryError):
            raise InputError(f"{path} cannot be read: there is not enough memory ({what})") from error
        raise InputError(f"{path} cannot be read; it may be broken or truncated ({type(error).__name__}: {what})") from error
