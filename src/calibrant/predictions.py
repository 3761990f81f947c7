"""Files of predictions: npz, csv and parquet, read and written a few rows at a time, and never unpickled."""

import contextlib
import itertools
import json
import math
import os
import tempfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.extras import require

Kind = Literal["logits", "probs"]

LOGITS = ("logits", "logit", "log_probs", "logp")
PROBS = ("probs", "probabilities", "prob", "proba")
TARGETS = ("target", "targets", "label", "labels", "y", "y_true")
#: Values that are read at once; with what is computed from them, some 100 MB.
CHUNK = 2**22


class InputError(ValueError):
    """Something is wrong with what the user passed: one sentence that names the file and the cure."""


@contextlib.contextmanager
def input_errors(where: str = "") -> Iterator[None]:
    """What is raised on bad values, as an InputError; ``where`` comes before its sentence."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from error


def read_json(path: Path) -> dict[str, Any]:
    """What a file holds; nothing if there is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise InputError(f"{path} cannot be read ({error}); delete it to measure again") from error
    return found


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

    def load(self) -> tuple[Tensor, Tensor]:
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
            raise InputError(f"{self.path} has no labels: name them {names}, or say which they are with --label NAME")

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
        self._refuse(broken, start, "has a score that is not a number (NaN or infinite); remove or repair it")
        if self.kind == "logits":
            self._refuse((values == -torch.inf).all(dim=1), start, "has only scores of -infinity; remove or repair it")
            return values
        negative = (values < 0).any(dim=1)
        self._refuse(negative, start, "has a negative probability; if these are logits, say --logits")
        total = values.double().sum(dim=1)
        self._refuse(
            (total - 1).abs() > 1e-3, start, "adds up to {value:.4g}, not to 1; if these are logits, say --logits", total
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
            "if it marks what to leave out, say --ignore_index {value}"
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


def open_predictions(
    path: str | Path,
    *,
    kind: Kind | None = None,
    scores: str | None = None,
    label: str | None = None,
    ignore_index: int = -100,
    part: str = "test",
) -> Predictions:
    """Open a file by its ending, or a run folder.

    Args:
        path: ``.npz``, ``.csv``, ``.parquet``, or a folder that holds ``predictions/test.npz``.
        kind: What the scores are, if their names do not tell.
        scores: Name of an npz's array of scores.
        label: Name of the array or column of labels.
        ignore_index: Label of samples or pixels to leave out.
        part: Which predictions of a run folder.
    """
    path = Path(path)
    if path.is_dir():
        inside = path / "predictions" / f"{part}.npz"
        if not inside.exists():
            raise InputError(f"{path} is not a run folder: it has no predictions/{part}.npz")
        path = inside
    if not path.exists():
        raise InputError(f"{path} does not exist")
    opener: Callable[..., Predictions] | None = {".npz": _Npz, ".csv": _Csv, ".parquet": _Parquet}.get(path.suffix.lower())
    if opener is None:
        raise InputError(f"{path} is of no known kind: expected .npz, .csv, .parquet or a run folder")
    with _readable(path):
        return opener(path, kind, scores, label, ignore_index)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
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


class _Npz(Predictions):
    """Arrays ``logits`` or ``probs`` ``(N, K, *)`` and ``target`` ``(N, *)``, perhaps ``classes`` and ``train_counts``."""

    def __init__(self, path: Path, kind: Kind | None, scores: str | None, label: str | None, ignore_index: int) -> None:
        self.path, self.ignore_index = path, ignore_index
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            self._scores = scores or self._only(names, (*LOGITS, *PROBS), "scores", "logits or probs", "--scores NAME")
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
                raise InputError(f"{path}: array {self._scores!r} may hold logits or probabilities; say --logits or --probs")
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
        return self._shape[0]

    def _read(self, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        with _readable(self.path), zipfile.ZipFile(self.path) as archive, contextlib.ExitStack() as stack:
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


class _Table(Predictions):
    """One column for each class and one for the label."""

    def __init__(self, path: Path, kind: Kind | None, scores: str | None, label: str | None, ignore_index: int) -> None:
        self.path, self.ignore_index = path, ignore_index
        if scores is not None:
            raise InputError(f"{path}: --scores names an array of an .npz; in a table every column but the label is a class")
        columns = self._columns()
        repeated = {name for name in columns if columns.count(name) > 1}
        if repeated:
            raise InputError(f"{path} has column {min(repeated)!r} twice")
        self._target = label or next((name for name in TARGETS if name in columns), None)
        if self._target is not None and self._target not in columns:
            raise InputError(f"{path} has no column {self._target!r}; it has {', '.join(columns[:8])}")
        self.has_target = self._target is not None
        self._scores = [name for name in columns if name != self._target]
        if len(self._scores) < 2:
            raise InputError(
                f"{path} needs a column for each of at least 2 classes besides the label, "
                f"it has {', '.join(columns) or 'none'}"
            )
        self.num_classes = len(self._scores)
        prefixes: dict[str, Kind] = {
            "logit_": "logits",
            "logits_": "logits",
            "prob_": "probs",
            "probs_": "probs",
            "p_": "probs",
        }
        prefix = next((p for p in prefixes if all(name.startswith(p) for name in self._scores)), None)
        if kind is None and prefix is None:
            raise InputError(
                f"{path}: its columns may hold logits or probabilities; say --logits or --probs, "
                "or name them logit_... or prob_..."
            )
        self.kind = kind or prefixes[prefix or "p_"]
        self.classes = [name.removeprefix(prefix or "") for name in self._scores]

    @abstractmethod
    def _columns(self) -> list[str]:
        """Names of all columns."""

    @abstractmethod
    def _batches(self, rows: int) -> Iterator[Any]:
        """Arrow record batches."""

    def _read(self, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        start = 0
        with _readable(self.path):
            for batch in self._batches(rows):
                if not batch.num_rows:
                    continue
                scores = [self._numbers(batch.column(name), name, start) for name in self._scores]
                labels = None if self._target is None else self._label_column(batch.column(self._target), start)
                yield np.stack(scores, axis=1), labels
                start += batch.num_rows

    def _numbers(self, column: Any, name: str, start: int) -> np.ndarray:
        self._refuse_gaps(column, name, start)
        values: np.ndarray = column.to_numpy(zero_copy_only=False)
        if values.dtype.kind not in "fiu":
            raise InputError(
                f"{self.path}: column {name!r} must hold numbers, but it is of type {column.type}; "
                f"if it is the label, say --label {name}"
            )
        return values

    def _label_column(self, column: Any, start: int) -> np.ndarray:
        self._refuse_gaps(column, str(self._target), start)
        values: np.ndarray = column.to_numpy(zero_copy_only=False)
        return values

    def _refuse_gaps(self, column: Any, name: str, start: int) -> None:
        if column.null_count:
            row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise InputError(f"{self.path}, row {row}: column {name!r} is empty there; remove or fill the row")


class _Csv(_Table):
    BLOCK = 2**24  # bytes that are read at once

    def _columns(self) -> list[str]:
        csv = require("pyarrow.csv", "reading .csv")
        with csv.open_csv(self.path, read_options=csv.ReadOptions(block_size=self.BLOCK)) as reader:
            return list(reader.schema.names)

    def _batches(self, rows: int) -> Iterator[Any]:
        csv, arrow = require("pyarrow.csv", "reading .csv"), require("pyarrow", "reading .csv")
        # Types are said, not guessed from the first block: a column may start with whole numbers.
        types = dict.fromkeys(self._scores, arrow.float64()) | ({self._target: arrow.string()} if self._target else {})
        options = {
            "read_options": csv.ReadOptions(block_size=self.BLOCK),
            "convert_options": csv.ConvertOptions(column_types=types),
        }
        with csv.open_csv(self.path, **options) as reader:
            for batch in reader:
                for start in range(0, batch.num_rows, rows):
                    yield batch.slice(start, rows)

    def count(self) -> int:
        with _readable(self.path):
            return sum(batch.num_rows for batch in self._batches(2**16))


class _Parquet(_Table):
    def _file(self) -> Any:
        return require("pyarrow.parquet", "reading .parquet").ParquetFile(self.path)

    def _columns(self) -> list[str]:
        with self._file() as file:
            return list(file.schema_arrow.names)

    def _batches(self, rows: int) -> Iterator[Any]:
        with self._file() as file:
            yield from file.iter_batches(batch_size=rows)

    def count(self) -> int:
        with self._file() as file:
            return int(file.metadata.num_rows)


# Writing


@contextlib.contextmanager
def replacing(path: str | Path, *, force: bool = False) -> Iterator[Path]:
    """A temporary name beside ``path`` that is renamed to it at the end, and removed if that is not reached.

    Raises:
        InputError: If ``path`` exists and ``force`` is not set.
    """
    path = Path(path)
    refuse_existing(path, force=force)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # as any new file, not readable by its owner alone
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def refuse_existing(path: str | Path, *, force: bool = False) -> None:
    """Say that something is there already, before any work is done."""
    if Path(path).exists() and not force:
        raise InputError(f"{path} exists already; choose another name, or replace it with --force")


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
