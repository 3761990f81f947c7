"""Predictions in an .npz, read and written a few rows at a time, and never unpickled."""

import contextlib
import itertools
import math
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from calibrant.errors import InputError
from calibrant.files import replacing
from calibrant.predictions.base import TARGETS, Chunk, Kind, Predictions, readable

LOGITS = ("logits", "logit", "log_probs", "logp")
PROBS = ("probs", "probabilities", "prob", "proba")


class NpzPredictions(Predictions):
    """Arrays ``logits`` or ``probs`` ``(N, K, *)`` and ``target`` ``(N, *)``, perhaps ``classes`` and ``train_counts``."""

    def __init__(self, path: Path, kind: Kind | None, scores: str | None, label: str | None, ignore_index: int) -> None:
        self.path, self.ignore_index = path, ignore_index
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            self._scores = scores or self._only(names, (*LOGITS, *PROBS), "scores", "logits or probs", "`scores`")
            self._target = label or next((name for name in TARGETS if name in names), None)
            for name in (self._scores, self._target):
                if name is not None and name not in names:
                    raise InputError(f"{path} has no array {name!r}; it has {', '.join(names) or 'none'}")
            guess: Kind | None = (
                "probs"
                if "prob" in self._scores and "log" not in self._scores
                else "logits"
                if "log" in self._scores
                else None
            )
            if kind is None and guess is None:
                raise InputError(
                    f"{path}: array {self._scores!r} may hold logits or probabilities; "
                    'pass `kind="logits"` or `kind="probs"`'
                )
            self.kind = kind or guess or "logits"
            with archive.open(self._scores + ".npy") as stream:
                self._shape, self._dtype, _ = _header(stream, path, self._scores)
            if len(self._shape) < 2 or self._shape[1] < 2:
                raise InputError(
                    f"{path}: {self._scores} must have shape (N, K) or (N, K, *spatial) with K at least 2, got {self._shape}"
                )
            if math.prod(self._shape[1:]) == 0:
                raise InputError(f"{path}: {self._scores} is empty, its shape is {self._shape}")
            self.num_classes, self.shape = self._shape[1], self._shape[2:]
            self.has_target = self._target is not None
            if self._target is not None:
                with archive.open(self._target + ".npy") as stream:
                    shape, _, _ = _header(stream, path, self._target)
                if shape != (self._shape[0], *self.shape):
                    raise InputError(
                        f"{path}: {self._target} has shape {shape}, but {self._scores} of shape {self._shape} needs "
                        f"{(self._shape[0], *self.shape)}"
                    )
            for name in ("classes", "train_counts"):
                if name in names:
                    self._read_extra(archive, name)

    def _only(self, names: list[str], wanted: tuple[str, ...], what: str, examples: str, cure: str) -> str:
        found = [name for name in wanted if name in names]
        if len(found) > 1:
            raise InputError(f"{self.path} has several arrays of {what} ({', '.join(found)}); choose one with {cure}")
        if not found:
            raise InputError(
                f"{self.path} has no array {examples} (it has {', '.join(names) or 'none'}); name it with {cure}"
            )
        return found[0]

    def _read_extra(self, archive: zipfile.ZipFile, name: str) -> None:
        with archive.open(name + ".npy") as stream:
            shape, dtype, _ = _header(stream, self.path, name)
            if shape != (self.num_classes,):
                raise InputError(f"{self.path}: {name} has shape {shape}, but there are {self.num_classes} classes")
            values = np.frombuffer(stream.read(), dtype=dtype)
        if name == "classes":
            self.classes = [str(value) for value in values]
        else:
            self.train_counts = [int(value) for value in values]

    def count(self) -> int:
        """Number of rows."""
        return self._shape[0]

    def _read(self, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        with readable(self.path), zipfile.ZipFile(self.path) as archive, contextlib.ExitStack() as stack:
            names = [self._scores] if self._target is None else [self._scores, self._target]
            streams = [_rows(stack.enter_context(archive.open(name + ".npy")), self.path, name, rows) for name in names]
            for parts in zip(*streams, strict=True):
                yield parts[0], parts[1] if len(parts) > 1 else None


def _header(stream: IO[bytes], path: Path, name: str) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    """Shape, type and whether columns come first; arrays of Python objects are refused."""
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise InputError(f"{path}: array {name} is of format {version}, which is not known")
    shape, fortran, dtype = readers[version](stream)
    if dtype.hasobject:
        raise InputError(
            f"{path}: array {name} holds Python objects, which are never loaded; save it as an array of numbers"
        )
    return tuple(int(size) for size in shape), dtype, bool(fortran)


def _rows(stream: IO[bytes], path: Path, name: str, rows: int) -> Iterator[np.ndarray]:
    """Read an array from its file, some rows at a time."""
    shape, dtype, fortran = _header(stream, path, name)
    if fortran and len(shape) > 1:  # columns first: there is no reading it by rows
        whole = np.frombuffer(_exactly(stream, math.prod(shape) * dtype.itemsize, path, name), dtype=dtype)
        array = whole.reshape(shape[::-1]).T
        for start in range(0, shape[0], rows):
            yield array[start : start + rows]
        return
    row = dtype.itemsize * math.prod(shape[1:])
    for start in range(0, shape[0], rows):
        size = min(rows, shape[0] - start)
        yield np.frombuffer(_exactly(stream, size * row, path, name), dtype=dtype).reshape(size, *shape[1:])


def _exactly(stream: IO[bytes], size: int, path: Path, name: str) -> bytearray:
    data = bytearray(stream.read(size))  # an array over it is writable, as PyTorch likes them
    if len(data) != size:
        raise InputError(f"{path}: array {name} is cut short; copy or save the file again")
    return data


def write_npz(
    path: str | Path,
    chunks: Iterable[Chunk],
    rows: int,
    *,
    kind: Kind = "logits",
    classes: Sequence[str] | None = None,
    train_counts: Sequence[int] | None = None,
    force: bool = False,
) -> None:
    """Write predictions to an npz, some rows at a time.

    Args:
        path: Where to.
        chunks: Rows in order; ``logits`` are written as they are or, as probabilities, their exponentials.
        rows: How many there will be.
        kind: What to write.
        classes: Names of the classes.
        train_counts: Training samples of each class.
        force: Replace what is there.
    """
    with (
        replacing(path, force=force) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        labels: list[np.ndarray] = []
        iterator = iter(chunks)
        first = next(iterator)
        with archive.open(f"{kind}.npy", "w", force_zip64=True) as stream:
            _write_header(stream, (rows, *first.logits.shape[1:]), np.dtype("<f4"))
            for chunk in itertools.chain([first], iterator):
                values = chunk.logits.exp() if kind == "probs" else chunk.logits
                stream.write(np.ascontiguousarray(values.numpy(), dtype="<f4").tobytes())
                if chunk.target is not None:
                    labels.append(chunk.target.numpy().astype("<i8"))
        others: dict[str, np.ndarray] = {}
        if labels:
            others["target"] = np.concatenate(labels)
        if classes is not None:
            others["classes"] = np.array(list(classes), dtype=np.str_)
        if train_counts is not None:
            others["train_counts"] = np.array(list(train_counts), dtype="<i8")
        for name, array in others.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def _write_header(stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
