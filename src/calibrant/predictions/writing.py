"""Writing predictions: to an npz, or back to the format they came in, with everything else in the file."""

import contextlib
import itertools
import json
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import Tensor

from calibrant.errors import InputError
from calibrant.extras import require
from calibrant.files import replacing
from calibrant.predictions.arrays import ABOUT_CLASSES, ArrayPredictions
from calibrant.predictions.base import Chunk, Predictions
from calibrant.predictions.labels import LABELS, plain
from calibrant.predictions.layout import Kind, take_apart
from calibrant.predictions.tables import (
    COMPRESSED,
    LINE,
    CsvPredictions,
    JsonlPredictions,
    ParquetPredictions,
    TablePredictions,
)

Transform = Callable[[Tensor], Tensor]


def ending(path: str | Path) -> str:
    """The extension that gives the format: the one before .gz, if there is one."""
    before, last = ["", "", *Path(path).suffixes][-2:]
    return (before if last.lower() in COMPRESSED else last).lower()


def write_npz(
    path: str | Path,
    chunks: Iterable[Chunk],
    rows: int,
    *,
    kind: Kind = "logits",
    classes: Sequence[str] | None = None,
    train_counts: Sequence[int] | None = None,
    copy: tuple[Path, Sequence[str]] | None = None,
    force: bool = False,
) -> None:
    """Write predictions to an npz, a few rows at a time.

    Args:
        path: The file to write.
        chunks: Rows in order; ``logits`` are written unchanged or, as probabilities, their exponentials.
        rows: Total number of rows.
        kind: What to write.
        classes: Names of the classes.
        train_counts: Training samples of each class.
        copy: Another npz, and the names of its arrays to copy.
        force: Replace an existing file.
    """
    with (
        replacing(path, force=force) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        labels: list[np.ndarray] = []
        written = 0
        iterator = iter(chunks)
        first = next(iterator)
        with archive.open(f"{kind}.npy", "w", force_zip64=True) as stream:
            _write_header(stream, (rows, *first.logits.shape[1:]), np.dtype("<f4"))
            for chunk in itertools.chain([first], iterator):
                values = chunk.logits.exp() if kind == "probs" else chunk.logits
                stream.write(np.ascontiguousarray(values.numpy(), dtype="<f4").tobytes())
                written += len(chunk.logits)
                if chunk.target is not None:
                    labels.append(chunk.target.numpy().astype("<i8"))
        if written != rows:
            raise InputError(f"there are {written} rows of predictions to write, not {rows}")
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
        if copy is not None:
            _copy_arrays(archive, *copy)


def _copy_arrays(archive: zipfile.ZipFile, path: Path, names: Sequence[str]) -> None:
    """Copy some arrays from one npz to another, byte for byte."""
    with zipfile.ZipFile(path) as source:
        for name in names:
            with source.open(f"{name}.npy") as original, archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                shutil.copyfileobj(original, stream)


def _write_header(stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)


def check_output(file: Predictions, path: str | Path) -> None:
    """Refuse an extension that :func:`rewrite` does not support for a file."""
    own = ending(file.path)
    if ending(path) not in (".npz", own):
        npz = ", or in .npz" if own != ".npz" else ""
        raise InputError(f"{path} must end in {own}, like {file.path.name}{npz}")


def rewrite(
    file: Predictions,
    path: str | Path,
    transform: Transform,
    *,
    kind: Kind | None = None,
    force: bool = False,
    advance: Callable[[int], Any] = lambda rows: None,  # noqa: ARG005
) -> None:
    """Write predictions with new scores, in the format they came in or as an npz.

    A table keeps all its other columns, and an npz all arrays that are neither scores nor labels.

    Args:
        file: The open predictions.
        path: The file to write, with the same extension as the original, or .npz.
        transform: Maps logits to log-probabilities, such as a calibrator's ``transform``.
        kind: What to write; the kind of the original if not given. Columns that change their kind are renamed.
        force: Replace an existing file.
        advance: Called with the number of rows written, for a progress bar.
    """
    check_output(file, path)
    kind = kind or file.kind
    if ending(path) == ".npz":
        copy = None
        if isinstance(file, ArrayPredictions) and ending(file.path) == ".npz":
            beside = [name for name in file.aside if take_apart(name) is None and plain(name) not in LABELS]
            copy = (file.path, [name for name in beside if name not in (*ABOUT_CLASSES, "target")])
        assert file.labels  # with a single score, only they reveal the names of the classes  # noqa: S101
        chunks = _transformed(file, transform, advance)
        about: Any = {"classes": file.classes, "train_counts": file.train_counts}
        write_npz(path, chunks, file.count(), kind=kind, copy=copy, force=force, **about)
    elif isinstance(file, ArrayPredictions):
        _write_npy(file, path, transform, kind, force=force, advance=advance)
    elif isinstance(file, TablePredictions):
        _write_table(file, path, transform, kind, force=force, advance=advance)


def _transformed(file: Predictions, transform: Transform, advance: Callable[[int], Any]) -> Iterator[Chunk]:
    for chunk in file.chunks():
        yield chunk._replace(logits=transform(chunk.logits))
        advance(len(chunk.logits))


def _scores(file: Predictions, log_probs: Tensor, kind: Kind) -> np.ndarray:
    """Log-probabilities in the form of the file's scores: of all classes, or one of two."""
    if file.single:
        values = log_probs[:, 1:].exp() if kind == "probs" else log_probs[:, 1:] - log_probs[:, :1]
    else:
        values = log_probs.exp() if kind == "probs" else log_probs
    array: np.ndarray = values.numpy()
    return array


def _write_npy(
    file: ArrayPredictions, path: str | Path, transform: Transform, kind: Kind, *, force: bool, advance: Callable[[int], Any]
) -> None:
    with replacing(path, force=force) as temporary, temporary.open("wb") as stream:
        shape = (file.count(), 1 if file.single else file.num_classes, *file.shape)
        _write_header(stream, shape, np.dtype("<f4"))
        for chunk in _transformed(file, transform, advance):
            stream.write(np.ascontiguousarray(_scores(file, chunk.logits, kind), dtype="<f4").tobytes())


# Tables


def _write_table(
    file: TablePredictions, path: str | Path, transform: Transform, kind: Kind, *, force: bool, advance: Callable[[int], Any]
) -> None:
    writers: dict[type[TablePredictions], Any] = {
        CsvPredictions: _csv_writer,
        JsonlPredictions: _jsonl_writer,
        ParquetPredictions: _parquet_writer,
    }
    names = _new_names(file, kind)
    with replacing(path, force=force) as temporary, writers[type(file)](temporary, file, names) as write:
        for batch, logits in file.scored(2**22 // max(file.num_classes, len(file.layout.aside)) + 1):
            write(batch, _scores(file, transform(logits), kind))
            advance(batch.num_rows)


def _new_names(file: TablePredictions, kind: Kind) -> dict[str, str]:
    """New names of the columns of scores, with another prefix if they change their kind."""
    layout = file.layout
    if kind == file.kind:
        return {name: name for name in layout.scores}
    prefix = {"logits": "logit", "probs": "prob"}[kind]
    if layout.classes is None:
        return {layout.scores[0]: kind}
    return {old: f"{prefix}_{name}" if name else prefix for old, name in zip(layout.scores, layout.classes, strict=True)}


@contextlib.contextmanager
def _text(path: Path) -> Iterator[Any]:
    """A stream that compresses according to the name."""
    arrow = require("pyarrow", "writing tables")
    with arrow.output_stream(str(path), compression="detect") as stream:
        yield stream


@contextlib.contextmanager
def _csv_writer(path: Path, file: CsvPredictions, names: dict[str, str]) -> Iterator[Callable[[Any, np.ndarray], None]]:
    arrow, compute = require("pyarrow", "writing .csv"), require("pyarrow.compute", "writing .csv")
    special = f'["\r\n{file.delimiter}]'

    def quoted(cells: Any) -> Any:
        safe = compute.binary_join_element_wise('"', compute.replace_substring(cells, '"', '""'), '"', "")
        return compute.if_else(compute.match_substring_regex(cells, special), safe, cells)

    def number(values: np.ndarray) -> Any:
        cells = compute.cast(arrow.array(np.ascontiguousarray(values)), arrow.string())
        return compute.replace_substring(cells, ".", file.decimal) if file.decimal != "." else cells

    with _text(path) as stream:
        header = False

        def write(batch: Any, scores: np.ndarray) -> None:
            nonlocal header
            if not header:
                titles = quoted(arrow.array([names.get(name, name) for name in batch.schema.names], arrow.string()))
                stream.write((file.delimiter.join(titles.to_pylist()) + "\n").encode())
                header = True
            new = {name: number(scores[:, k]) for k, name in enumerate(names)}
            cells = [new[name] if name in new else quoted(batch.column(name)) for name in batch.schema.names]
            lines = compute.binary_join_element_wise(*cells, file.delimiter)
            stream.write(("\n".join(lines.to_pylist()) + "\n").encode())

        yield write


@contextlib.contextmanager
def _jsonl_writer(path: Path, file: JsonlPredictions, names: dict[str, str]) -> Iterator[Callable[[Any, np.ndarray], None]]:
    lists = file.layout.classes is None

    def renewed(line: bytes, scores: list[float]) -> bytes:
        values = dict(zip(names, [scores] if lists else scores, strict=True))
        return json.dumps(
            {names.get(key, key): values.get(key, old) for key, old in json.loads(line).items()}, ensure_ascii=False
        ).encode()

    with _text(path) as stream:

        def write(batch: Any, scores: np.ndarray) -> None:
            for line, own in zip(batch.column(LINE).to_pylist(), scores.tolist(), strict=True):
                stream.write(renewed(line, own) + b"\n")

        yield write


@contextlib.contextmanager
def _parquet_writer(
    path: Path, file: ParquetPredictions, names: dict[str, str]
) -> Iterator[Callable[[Any, np.ndarray], None]]:
    arrow, parquet = require("pyarrow", "writing .parquet"), require("pyarrow.parquet", "writing .parquet")
    types = require("pyarrow.types", "writing .parquet")
    with file.file() as source:
        schema = source.schema_arrow
    lists = file.layout.classes is None

    def field(old: Any) -> Any:
        if old.name not in names:
            return old
        inner = old.type.value_type if lists else old.type
        inner = inner if types.is_floating(inner) and inner != arrow.float16() else arrow.float64()
        return arrow.field(names[old.name], arrow.list_(inner) if lists else inner)

    # pandas describes its index by column names
    metadata = schema.metadata if all(old == new for old, new in names.items()) else None
    schema = arrow.schema([field(old) for old in schema], metadata=metadata)
    with parquet.ParquetWriter(path, schema) as writer:

        def write(batch: Any, scores: np.ndarray) -> None:
            new = {
                name: arrow.array(scores.tolist()) if lists else arrow.array(scores[:, k]) for k, name in enumerate(names)
            }
            columns = [new.get(name, batch.column(name)) for name in batch.schema.names]
            columns = [column.cast(own.type) for column, own in zip(columns, schema, strict=True)]
            writer.write_batch(arrow.record_batch(columns, schema=schema))

        yield write
