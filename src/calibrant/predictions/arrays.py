"""Predictions in arrays, an .npz or two .npy files, read a few rows at a time and never unpickled."""

import contextlib
import math
import re
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from calibrant.errors import InputError
from calibrant.predictions.base import HEAD, Predictions, Reading, readable
from calibrant.predictions.labels import LABELS, plain, text_of
from calibrant.predictions.layout import BETWEEN, Kind, find_label, listed_names, take_apart

#: Arrays of an npz that describe the classes.
ABOUT_CLASSES = ("classes", "train_counts")


@dataclass(frozen=True)
class StoredArray:
    """An array in a file, of which only the header has been read.

    Attributes:
        path: The file.
        name: Name in an .npz, None in an .npy.
        shape: Shape.
        dtype: Data type.
        fortran: Whether it is stored in column-major order.
        offset: Size of the header in bytes.
    """

    path: Path
    name: str | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int

    @classmethod
    def find(cls, path: Path, name: str | None = None) -> "StoredArray":
        """Read the header of an array, and check that the file is as long as the header says."""
        with _opened(path, name) as (stream, size):
            version = np.lib.format.read_magic(stream)
            readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            called = path if name is None else f"{path}: array {name}"
            if version not in readers:
                raise InputError(f"{called} has the unknown format {version}")
            shape, fortran, dtype = readers[version](stream)
            if dtype.hasobject:
                raise InputError(f"{called} holds Python objects, which are never loaded; save it as an array of numbers")
            found = cls(path, name, tuple(int(size) for size in shape), dtype, bool(fortran), stream.tell())
            if min(found.shape, default=0) < 0 or size < found.offset + math.prod(found.shape) * dtype.itemsize:
                raise InputError(f"{called} is truncated; copy or save the file again")
        return found

    def rows(self, rows: int) -> Iterator[np.ndarray]:
        """A few rows at a time."""
        if self.fortran and len(self.shape) > 1:
            yield from self._rows_of_columns(rows)
            return
        with _opened(self.path, self.name) as (stream, _):
            stream.read(self.offset)
            row = self.dtype.itemsize * math.prod(self.shape[1:])
            for start in range(0, self.shape[0], rows):
                size = min(rows, self.shape[0] - start)
                data = stream.read(size * row)
                if len(data) != size * row:
                    raise InputError(f"{self.path} is truncated; copy or save the file again")
                yield np.frombuffer(data, dtype=self.dtype).reshape(size, *self.shape[1:])

    def _rows_of_columns(self, rows: int) -> Iterator[np.ndarray]:
        """Rows of an array in column-major order: each part is mapped and released, and nothing is loaded whole."""
        if math.prod(self.shape) == 0:
            return
        with self._mappable() as (file, offset):
            for start in range(0, self.shape[0], rows):
                mapped = np.memmap(file, self.dtype, "r", offset, self.shape, order="F")
                yield np.array(mapped[start : start + rows], order="C")
                del mapped

    @contextlib.contextmanager
    def _mappable(self) -> Iterator[tuple[IO[bytes], int]]:
        """An open file with the array uncompressed, and its offset: the file itself unless it is compressed."""
        with contextlib.ExitStack() as stack:
            if self.name is None:
                yield stack.enter_context(self.path.open("rb")), self.offset
                return
            archive = stack.enter_context(zipfile.ZipFile(self.path))
            member = archive.getinfo(f"{self.name}.npy")
            stream = stack.enter_context(archive.open(member))
            if member.compress_type != zipfile.ZIP_STORED:
                copy = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(stream, copy)
                copy.flush()
                yield copy, self.offset
                return
            while stream.read(2**20):  # to the end, where the checksum is verified
                pass
            file = stack.enter_context(self.path.open("rb"))
            file.seek(member.header_offset + 26)
            yield file, member.header_offset + 30 + sum(struct.unpack("<HH", file.read(4))) + self.offset

    def whole(self) -> np.ndarray:
        """All of a small array."""
        return np.concatenate([*self.rows(2**20)]) if self.shape[0] else np.empty(0, self.dtype)


@contextlib.contextmanager
def _opened(path: Path, name: str | None) -> Iterator[tuple[IO[bytes], int]]:
    """An .npy, or one inside an .npz, as a stream, and its length."""
    if name is None:
        with path.open("rb") as stream:
            yield stream, path.stat().st_size
        return
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as stream:
        yield stream, archive.getinfo(f"{name}.npy").file_size


class ArrayPredictions(Predictions):
    """Scores ``(N, K, *)`` and labels ``(N, *)``; ``(N,)`` or ``(N, 1, *)`` is the score of the second of two classes.

    Args:
        path: The file.
        reading: What the user says about it.
        scores: Its array of scores.
        kind: Their kind, if the name says.
        target: The array of labels.
        about: Arrays that describe the classes.
        aside: Names of other arrays.
    """

    def __init__(
        self,
        path: Path,
        reading: Reading,
        scores: StoredArray,
        kind: Kind | None,
        target: StoredArray | None,
        about: dict[str, StoredArray],
        aside: Sequence[str] = (),
    ) -> None:
        self.path, self.ignore_index, self.aside = path, reading.ignore_index, list(aside)
        self._scores, self._stored_target = scores, target
        what = scores.name or scores.path.name
        if reading.columns is not None:
            raise InputError(f"{path}: `columns` names columns of a table; an array is named with `scores`")
        if not scores.shape:
            raise InputError(f"{path}: {what} must have shape (N, K) or (N, K, *spatial), got {scores.shape}")
        if scores.dtype.kind not in "fiu":
            raise InputError(f"{path} must hold numbers as scores, but {what} is of type {scores.dtype}")
        if math.prod(scores.shape[1:]) == 0:
            raise InputError(f"{path}: {what} is empty: its shape is {scores.shape}")
        self.shape = scores.shape[2:]
        nothing = np.empty((0, *(scores.shape[1:] or (1,))))
        self._look(next(self._score_rows(1 if self.shape else HEAD), nothing), reading, kind, what)
        self.has_target = target is not None
        self.label_file = target.path if target is not None and target.name is None else None
        label = "" if target is None else target.name or target.path.name
        self._places = (what, label)
        wanted = (scores.shape[0], *self.shape)
        if target is not None and target.shape not in (wanted, (*wanted, 1)):
            one_hot = "; if it is one-hot, save its argmax(1)" if target.shape == scores.shape else ""
            raise InputError(
                f"{path}: {label} has shape {target.shape}, but {what} of shape {scores.shape} needs {wanted}{one_hot}"
            )
        self._read_about(about)
        self._set_label_rule(reading)

    def _read_about(self, about: dict[str, StoredArray]) -> None:
        for name, array in about.items():
            if array.shape != (self.num_classes,):
                raise InputError(f"{self.path}: {name} has shape {array.shape}, but there are {self.num_classes} classes")
        if "classes" in about:
            self.classes = [value.decode() if isinstance(value, bytes) else str(value) for value in about["classes"].whole()]
        if "train_counts" in about:
            self.train_counts = [int(value) for value in about["train_counts"].whole()]

    def _set_label_rule(self, reading: Reading) -> None:
        """Integers are class indices, whatever the classes are called; anything else is matched as text."""
        target = self._stored_target
        if target is None:
            return
        if target.dtype.kind not in ("iufUSb" if self.num_classes == 2 else "iufUS"):
            raise InputError(
                f"{self.path} must hold integers or class names as labels, but {self._places[1]} is of type {target.dtype}"
            )
        by_name = self.single or reading.positive is not None or reading.labels_are == "names"
        if by_name or target.dtype.kind not in "iuf":
            self._label_rule = self._label_reader(reading, self._places[0])

    def require_target(self) -> None:
        """Refuse scores without labels."""
        if not self.has_target and self._scores.name is None:
            raise InputError(f"{self.path} has no labels: pass `label` with the .npy that holds them")
        super().require_target()

    def count(self) -> int:
        """Number of rows."""
        return self._scores.shape[0]

    def _score_rows(self, rows: int) -> Iterator[np.ndarray]:
        for part in self._scores.rows(rows):
            yield part if part.ndim > 1 else part[:, None]

    def _label_rows(self, rows: int) -> Iterator[np.ndarray]:
        assert self._stored_target is not None  # noqa: S101
        for part in self._stored_target.rows(rows):
            yield part.reshape(len(part), *self.shape)

    def _seen_labels(self) -> dict[str, int]:
        seen: dict[str, int] = {}
        start, pixels = 0, math.prod(self.shape)
        with readable(self.path):
            for part in self._label_rows(2**18 // pixels + 1):
                values, first = np.unique(part, return_index=True)
                for value, place in zip(values.tolist(), first.tolist(), strict=True):
                    seen.setdefault(str(text_of(value)), start + place // pixels)
                start += len(part)
        return seen

    def _read(self, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        with readable(self.path):
            if not self.has_target:
                yield from ((part, None) for part in self._score_rows(rows))
                return
            numbers = self.labels.numbers
            for scores, labels in zip(self._score_rows(rows), self._label_rows(rows), strict=True):
                if self._label_rule is not None:
                    values, place = np.unique(labels, return_inverse=True)
                    found = np.array([numbers[str(text_of(value))] for value in values.tolist()], dtype=np.int64)
                    yield scores, found[place].reshape(labels.shape)
                else:
                    yield scores, labels


def open_npz(path: Path, reading: Reading) -> ArrayPredictions:
    """An npz with arrays ``logits`` or ``probs``, ``target``, and optionally ``classes`` and ``train_counts``."""
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    find = cache(lambda name: StoredArray.find(path, name))
    others = [name for name in names if name not in ABOUT_CLASSES]
    target = find_label(str(path), [name for name in others if name != reading.scores], reading.label, "array")
    others = [name for name in others if name != target]
    scores = reading.scores
    if scores is None:
        usual = [name for name in others if (part := take_apart(name)) and not part.name]
        dense = [name for name in others if len(find(name).shape) > 1 and find(name).dtype.kind == "f"]
        found = usual or dense
        if len(found) > 1:
            raise InputError(f"{path} has several arrays of scores ({', '.join(found)}); choose one with `scores`")
        if not found:
            raise InputError(
                f"{path} has no array logits or probs (it has {listed_names(names) or 'none'}); name it with `scores`"
            )
        scores = found[0]
    elif scores not in names:
        raise InputError(f"{path} has no array {scores!r}; it has {listed_names(names) or 'none'}")
    if target is None:  # np.savez(file, scores, labels) calls them arr_0 and arr_1
        numbered = [name for name in others if re.fullmatch(r"arr_\d+", name) and name != scores]
        target = numbered[0] if len(numbered) == 1 and re.fullmatch(r"arr_\d+", scores) else None
    part = take_apart(scores)
    return ArrayPredictions(
        path,
        reading,
        find(scores),
        part.kind if part else None,
        None if target is None else find(target),
        {name: find(name) for name in ABOUT_CLASSES if name in names},
        [name for name in others if name not in (scores, target)],
    )


def open_npy(path: Path, reading: Reading) -> ArrayPredictions:
    """An .npy of scores, its labels in another .npy: ``test_labels.npy`` beside ``test_logits.npy``, or as named."""
    if reading.scores is not None:
        raise InputError(f"{path}: `scores` names an array of an .npz; an .npy holds only one")
    words = re.split(f"({BETWEEN})", path.stem)
    place, kind = next(
        ((i, part.kind) for i, word in enumerate(words) if len(word) > 1 and (part := take_apart(word)) and not part.name),
        (None, None),
    )
    target = None
    if reading.label is not None:
        target = next((file for file in (Path(reading.label), path.parent / reading.label) if file.is_file()), None)
        if target is None or target.suffix.lower() != ".npy":
            raise InputError(f"{path}: `label` must name the .npy of the labels, but there is no {reading.label}")
    elif place is not None:
        before, after = "".join(words[:place]), "".join(words[place + 1 :])
        beside = [
            file
            for file in path.parent.glob("*.npy")
            if file.stem.startswith(before)
            and file.stem.endswith(after)
            and plain(file.stem[len(before) : len(file.stem) - len(after)]) in LABELS
        ]
        if len(beside) > 1:
            listed = " or ".join(sorted(file.name for file in beside))
            raise InputError(f"{path}: the labels may be in {listed}; choose one with `label`")
        target = beside[0] if beside else None
    scores, found = StoredArray.find(path), None if target is None else StoredArray.find(target)
    if len(scores.shape) == 1 and scores.dtype.kind in "iu" and reading.kind is None:
        raise InputError(f"{path} holds one integer per sample, like labels; name the scores first, and pass `label={path}`")
    return ArrayPredictions(path, reading, scores, kind, found, {})
