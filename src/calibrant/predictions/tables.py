"""Predictions in tables, .csv, .tsv, .jsonl and .parquet: a column for each class, labels, and anything else."""

import codecs
import contextlib
import csv
import io
import itertools
import json
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.errors import InputError
from calibrant.extras import require
from calibrant.predictions.base import HEAD, Predictions, Reading, readable
from calibrant.predictions.labels import as_number, text_of
from calibrant.predictions.layout import Content, first_repeated, listed_names, understand

#: Bytes of text read at once.
BLOCK = 2**20
#: Column that carries the lines of a .jsonl along.
LINE = "the line itself"


def _arrow(module: str = "") -> Any:
    return require(f"pyarrow{module and '.'}{module}", "reading tables")


class TablePredictions(Predictions):
    """A table; each format implements how to read its first rows and some of its columns.

    Attributes:
        layout: How its columns were understood.
    """

    _rows: int | None = None

    def __init__(self, path: Path, reading: Reading) -> None:
        self.path, self.ignore_index = path, reading.ignore_index
        if reading.scores is not None:
            raise InputError(f"{path}: `scores` names an array of an .npz; columns of a table are named with `columns`")
        self._prepare()
        head = self._head()
        names = head.schema.names
        if not head.num_rows:
            raise InputError(f"{path} holds no predictions: it has 0 rows")
        repeated = first_repeated(names)
        if repeated is not None:
            raise InputError(f"{path} has column {repeated!r} twice")
        contents = {name: _content(head.column(name)) for name in names}
        index = self._index(head.schema)
        self.layout = understand(
            str(path), contents, kind=reading.kind, columns=reading.columns, label=reading.label, index=index
        )
        self._types = {name: head.schema.field(name).type for name in names}
        scores = self.layout.scores
        self._lists = self.layout.classes is None
        self._length = len(head.column(scores[0])[0].as_py() or ()) if self._lists else len(scores)
        if not self._length:
            raise InputError(f"{path}: column {scores[0]!r} must hold lists of scores, but the first is empty")
        first = self._score_values(next(self._guarded(HEAD, scores)), 0)
        shown = listed_names(scores, 5)
        what = f"column {shown}" if len(scores) == 1 else f"columns {shown}"
        self._hint = "" if reading.columns else f"; the scores were taken from {what}; name others with `columns`"
        self._look(first, reading, self.layout.kind, what)
        if not self.single:
            self.classes = self.layout.classes
        self.has_target = self.layout.label is not None
        self._places = (what, str(self.layout.label))
        self.aside = self.layout.aside
        if self.has_target:
            self._label_rule = self._label_reader(reading, (self.layout.classes or [""])[0])

    def _prepare(self) -> None:
        """Detect how the file is written."""

    @abstractmethod
    def _head(self) -> Any:
        """The first rows, with all columns, as an Arrow table."""

    @abstractmethod
    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Arrow record batches of some columns, or of all, in the form needed to write them again."""

    def _index(self, schema: Any) -> list[str]:
        """Columns that the file declares as an index."""
        del schema
        return []

    def _seen_labels(self) -> dict[str, int]:
        """Every label with its first row, from a pass over the column of labels."""
        label, seen, start = str(self.layout.label), dict[str, int](), 0
        assert self._label_rule is not None  # noqa: S101
        for batch in self._guarded(2**20, [label]):
            values, place = self._encoded(batch.column(label), start)
            used, first = np.unique(place, return_index=True)
            for i, row in sorted(zip(used.tolist(), first.tolist(), strict=True), key=lambda own: own[1]):
                if len(seen) < 2 * self._label_rule.most:  # enough to refuse them
                    seen.setdefault(values[i], start + row)
            start += batch.num_rows
        self._rows = start
        return seen

    def count(self) -> int:
        """Number of rows."""
        if self._rows is None:  # the labels were not read, and may be unusable
            self._rows = sum(batch.num_rows for batch in self._guarded(2**20, self.layout.scores[:1]))
        return self._rows

    def _guarded(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Non-empty batches, with errors turned into one sentence."""
        with readable(self.path):
            yield from (batch for batch in self.batches(rows, columns) if batch.num_rows)

    def _read(self, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        label, start = self.layout.label, 0
        numbers = self.labels.numbers
        for batch in self._guarded(rows, [*self.layout.scores, *([label] if label else [])]):
            scores = self._score_values(batch, start)
            target = None
            if label:
                values, place = self._encoded(batch.column(label), start)
                target = np.array([numbers[text] for text in values], dtype=np.int64)[place]
            yield scores, target
            start += batch.num_rows

    def scored(self, rows: int) -> Iterator[tuple[Any, Any]]:
        """Batches of all columns with their logits, for writing them with new scores."""
        start = 0
        for batch in self._guarded(rows):
            yield batch, self._logits(self._score_values(batch, start), start)
            start += batch.num_rows

    def _score_values(self, batch: Any, start: int) -> np.ndarray:
        columns = [self._whole(batch.column(name), name, start) for name in self.layout.scores]
        if not self._lists:
            return np.stack(
                [self._numbers(column, name) for name, column in zip(self.layout.scores, columns, strict=True)], 1
            )
        name, column = self.layout.scores[0], columns[0]
        lengths = _arrow("compute").list_value_length(column).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != self._length)
        if len(wrong):
            raise InputError(
                f"{self.path}, row {start + wrong[0]}: column {name!r} holds {lengths[wrong[0]]} scores, but the first row "
                f"{self._length}"
            )
        values = column.flatten()
        if values.null_count:
            row = start + int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]) // self._length
            raise InputError(f"{self.path}, row {row}: column {name!r} lacks a score; remove or fill the row")
        return self._numbers(values, name).reshape(-1, self._length)

    def _numbers(self, column: Any, name: str) -> np.ndarray:
        types = _arrow("types")
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if types.is_decimal(column.type):
            column = column.cast(_arrow().float64())
        values: np.ndarray = column.to_numpy(zero_copy_only=False)
        if values.dtype.kind not in "fiu":
            raise InputError(f"{self.path}: column {name!r} must hold numbers, but it is of type {column.type}")
        return values

    def _encoded(self, column: Any, start: int) -> tuple[list[str], np.ndarray]:
        """Labels of some rows: the distinct ones as text, and which of them each row has."""
        name = str(self.layout.label)
        column = self._whole(column, name, start)
        types = _arrow("types")
        if not types.is_dictionary(column.type):
            if types.is_nested(column.type) or types.is_temporal(column.type):
                raise InputError(
                    f"{self.path}: column {name!r} must hold integers or class names as labels, but it is of type "
                    f"{column.type}; if the labels are elsewhere, pass `label` with their name"
                )
            column = column.dictionary_encode()
        texts = [str(text_of(value)) for value in column.dictionary.to_pylist()]
        place = column.indices.to_numpy(zero_copy_only=False)
        for empty in ("", "nan"):
            if empty in texts and empty not in (self.classes or ()) and (place == texts.index(empty)).any():
                self._refuse_empty(name, start + int(np.flatnonzero(place == texts.index(empty))[0]))
        return texts, place

    def _whole(self, column: Any, name: str, start: int) -> Any:
        """A column without missing values, as one array."""
        column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        if column.null_count:
            self._refuse_empty(name, start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]))
        return column

    def _refuse_empty(self, name: str, row: int) -> None:
        raise InputError(f"{self.path}, row {row}: column {name!r} is empty or NaN; remove or fill the row")


def _content(column: Any) -> Content:
    """What the first rows of a column hold."""
    types = _arrow("types")
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_integer(kind):
        values = column.drop_null().to_numpy()[:HEAD]
        return "counter" if len(values) > 2 and bool((np.diff(values) == 1).all()) else "numbers"
    if types.is_floating(kind) or types.is_decimal(kind):
        return "numbers"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
        return "lists" if types.is_floating(inner) or types.is_integer(inner) or types.is_decimal(inner) else "other"
    if types.is_string(kind) or types.is_large_string(kind):
        texts = [text for text in column.slice(0, HEAD).to_pylist() if text and text.strip()]
        return "mixed" if texts and sum(as_number(text) is not None for text in texts) >= len(texts) / 2 else "other"
    return "other"


class CsvPredictions(TablePredictions):
    """Text with a header, separated by commas, semicolons, tabs or bars, and possibly compressed."""

    delimiter: str = ","
    decimal: str = "."

    def _prepare(self) -> None:
        with _arrow().input_stream(str(self.path)) as stream:
            data = stream.read(BLOCK)
        text = _decoded(self.path, data)
        if not text.strip():
            raise InputError(f"{self.path} is empty")
        self.delimiter = _delimiter(text)
        rows = _first_rows(text, self.delimiter)
        self._block = max(BLOCK, 8 * len(text.partition("\n")[0].encode()))
        cells = [cell.strip() for row in rows[1:] for cell in row]
        comma = any(re.fullmatch(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?", cell) for cell in cells)
        point = any(re.fullmatch(r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?", cell) for cell in cells)
        if comma and not point and self.delimiter != ",":
            self.decimal = ","
        if all(as_number(name) is not None for name in rows[0]) and not all(name.strip().isdigit() for name in rows[0]):
            raise InputError(
                f"{self.path} has no header: its first line is {listed_names(rows[0], 4)}; put column names there, "
                "such as prob_cat and label, or save the scores with numpy.save"
            )
        named = {"\t": "tabs", ";": "semicolons", "|": "bars"}.get(self.delimiter)
        if named is not None and not (named == "tabs" and ".tsv" in self.path.suffixes):
            self._notes += (f"separated by {named}",)
        if self.decimal == ",":
            self._notes += ("decimal commas",)

    def _open(self, types: dict[str, Any] | None = None, include: Sequence[str] = ()) -> Any:
        arrow_csv = _arrow("csv")
        converting = {"decimal_point": self.decimal, "column_types": types, "include_columns": list(include)}
        return arrow_csv.open_csv(
            str(self.path),
            read_options=arrow_csv.ReadOptions(block_size=self._block),
            parse_options=arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(**converting),
        )

    def _head(self) -> Any:
        with self._open() as reader:
            first = next(iter(reader), None)
            arrow = _arrow()
            return reader.schema.empty_table() if first is None else arrow.Table.from_batches([first])

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Arrow record batches: scores as numbers, everything else as written."""
        arrow = _arrow()
        # Types are given, not guessed from the first block: a column may start with integers.
        scores = set(self.layout.scores)
        types = {name: arrow.float64() if name in scores else arrow.string() for name in columns or self._types}
        try:
            with self._open(types, columns or ()) as reader:
                for batch in reader:
                    for start in range(0, batch.num_rows, rows):
                        yield batch.slice(start, rows)
        except arrow.ArrowInvalid as error:
            if "conversion error" in str(error):
                self._find_text()
            raise

    def _find_text(self) -> None:
        """Refuse the first score that is not a number."""
        arrow, start = _arrow(), 0
        with self._open(dict.fromkeys(self.layout.scores, arrow.binary()), self.layout.scores) as reader:
            for batch in reader:
                cells = [batch.column(name).to_pylist() for name in self.layout.scores]
                for row, own in enumerate(zip(*cells, strict=True)):
                    for name, cell in zip(self.layout.scores, own, strict=True):
                        text = (cell or b"nan").decode("utf-8", "replace")
                        if as_number(text.strip().replace(self.decimal, ".")) is None:
                            raise InputError(
                                f"{self.path}, row {start + row}: column {name!r} holds {text[:40]!r}, which is not a number"
                            )
                start += batch.num_rows


def _decoded(path: Path, data: bytes) -> str:
    text = "\0"
    with contextlib.suppress(UnicodeError):
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data)
    if "\0" in text:
        raise InputError(f"{path} is not text in UTF-8; save it with that encoding")
    return text


def _first_rows(text: str, delimiter: str, most: int = 20) -> list[list[str]]:
    """Cells of the first non-empty lines."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        return list(itertools.islice((row for row in rows if row), most))
    except csv.Error:
        return [text.partition("\n")[0].split(delimiter)]


def _delimiter(text: str) -> str:
    """The delimiter that splits the header into the most cells, and the lines below into as many."""

    def fit(delimiter: str) -> tuple[bool, int]:
        widths = [len(row) for row in _first_rows(text, delimiter)]
        return len(set(widths)) == 1 and widths[0] > 1, widths[0]

    return max(",;\t|", key=fit)


class JsonlPredictions(TablePredictions):
    """An object on every line: ``{"prob_cat": 0.9, ..., "label": "cat"}`` or ``{"probs": [0.9, ...], "label": 0}``.

    Pipelines of Hugging Face give a list of ``{"label": "cat", "score": 0.9}`` instead, read as columns ``prob_cat``.
    """

    #: Name of the field with such lists.
    _pairs: str | None = None

    def _blocks(self) -> Iterator[bytes]:
        """Complete lines, as many as are read at once."""
        for block in self._lines():
            yield (
                block if self._pairs is None else b"\n".join(_with_columns(line, self._pairs) for line in block.split(b"\n"))
            )

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        with _arrow().input_stream(str(self.path)) as stream:
            while data := stream.read(BLOCK):
                end = data.rfind(b"\n") + 1
                if end:
                    yield rest + data[:end]
                rest = data[end:] if end else rest + data
                if len(rest) > 64 * BLOCK:
                    raise InputError(f"{self.path} has a line of more than {64 * BLOCK:,} bytes")
        if rest.strip():
            yield rest

    def _parsed(self, lines: bytes, schema: Any = None) -> Any:
        arrow_json = _arrow("json")
        options = {} if schema is None else {"explicit_schema": schema, "unexpected_field_behavior": "ignore"}
        try:
            return arrow_json.read_json(
                _arrow().BufferReader(lines),
                read_options=arrow_json.ReadOptions(block_size=len(lines) + 1, use_threads=False),
                parse_options=arrow_json.ParseOptions(**options),
            ).combine_chunks()
        except _arrow().ArrowInvalid as error:
            changed = re.search(r"Column\(/(.+)\) changed from (\w+) to (\w+)", str(error))
            if changed is None:
                raise
            name, first, then = changed.groups()
            raise InputError(
                f"{self.path}: {name!r} holds a {first} in one line and a {then} in another; use one type"
            ) from error

    def _prepare(self) -> None:
        first = next(self._blocks(), b"")
        _decoded(self.path, first[:4096].rpartition(b"\n")[0])
        if not first.strip():
            raise InputError(f"{self.path} is empty")
        with contextlib.suppress(ValueError):
            found = json.loads(first.strip().split(b"\n", 1)[0])
            fields = found.items() if isinstance(found, dict) else ()
            self._pairs = next((name for name, value in fields if _is_pairs(value)), None)
        if self._pairs is not None:
            self._notes += (f"label and score in {self._pairs}",)

    def _head(self) -> Any:
        lines = next(self._blocks()).split(b"\n")
        return self._parsed(b"\n".join(lines[:HEAD]))

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Arrow record batches: scores as numbers; with all columns, also the lines themselves."""
        arrow = _arrow()
        score = arrow.list_(arrow.float64()) if self._lists else arrow.float64()
        wanted = [*self.layout.scores, *([] if columns is None else [name for name in columns if name == self.layout.label])]
        types = {name: score if name in self.layout.scores else self._label_type(name) for name in wanted}
        for block in self._blocks():
            table = self._parsed(block, arrow.schema(list(types.items())))
            if columns is None:
                lines = [line for line in block.split(b"\n") if line.strip()]
                if len(lines) != len(table):
                    raise InputError(f"{self.path} has several objects on a line; write one per line")
                table = table.append_column(LINE, arrow.array(lines, arrow.binary()))
            yield from table.to_batches(max_chunksize=rows)

    def _label_type(self, name: str) -> Any:
        """Any kind of number, or as in the first rows."""
        kind = self._types[name]
        types = _arrow("types")
        if types.is_integer(kind):
            return _arrow().float64()
        return _arrow().string() if types.is_temporal(kind) or types.is_null(kind) else kind


def _is_pairs(value: Any) -> bool:
    """Whether a value is a list of classes and their scores, as pipelines of Hugging Face give it."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(x, dict) and {"label", "score"} <= x.keys() for x in value)
    )


def _with_columns(line: bytes, pairs: str) -> bytes:
    """A line of .jsonl with a field for each class instead of a list of them, which is sorted by score."""
    found = json.loads(line) if line.strip() else None
    if not isinstance(found, dict) or not _is_pairs(found.get(pairs)):
        return line
    scores = {f"prob_{pair['label']}": pair["score"] for pair in found.pop(pairs)}
    ordered = sorted(scores, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])
    return json.dumps({**found, **{name: scores[name] for name in ordered}}).encode()


class ParquetPredictions(TablePredictions):
    """A .parquet, possibly with a pandas index."""

    def file(self) -> Any:
        """The open file; without buffers for whole row groups, which can be as large as the file."""
        return _arrow("parquet").ParquetFile(self.path, pre_buffer=False, buffer_size=2**16)

    def _head(self) -> Any:
        with self.file() as file:
            first = next(file.iter_batches(batch_size=HEAD), None)
            return file.schema_arrow.empty_table() if first is None else _arrow().Table.from_batches([first])

    def _index(self, schema: Any) -> list[str]:
        try:
            columns = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
        except (ValueError, AttributeError):
            return []
        return [name for name in columns if isinstance(name, str)]

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Arrow record batches."""
        with self.file() as file:
            yield from file.iter_batches(batch_size=rows, columns=None if columns is None else list(columns))

    def count(self) -> int:
        """Number of rows."""
        with readable(self.path), self.file() as file:
            return int(file.metadata.num_rows)


#: Formats of tables by extension; text formats may add .gz, .bz2 or .zst.
TABLES: dict[str, Callable[[Path, Reading], TablePredictions]] = {
    ".csv": CsvPredictions,
    ".tsv": CsvPredictions,
    ".jsonl": JsonlPredictions,
    ".ndjson": JsonlPredictions,
    ".parquet": ParquetPredictions,
}
COMPRESSED = (".gz", ".bz2", ".zst")
