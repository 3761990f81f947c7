"""Predictions in tables: csv and parquet, a column for each class and one for the label."""

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.errors import InputError
from calibrant.extras import require
from calibrant.predictions.base import TARGETS, Kind, Predictions, readable


class TablePredictions(Predictions):
    """One column for each class and one for the label."""

    def __init__(self, path: Path, kind: Kind | None, scores: str | None, label: str | None, ignore_index: int) -> None:
        self.path, self.ignore_index = path, ignore_index
        if scores is not None:
            raise InputError(f"{path}: `scores` names an array of an .npz; in a table every column but the label is a class")
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
                f'{path}: its columns may hold logits or probabilities; pass `kind="logits"` or `kind="probs"`, '
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
        with readable(self.path):
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
                f"if it is the label, pass `label={name}`"
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


class CsvPredictions(TablePredictions):
    """A .csv with a header."""

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
        """Number of rows."""
        with readable(self.path):
            return sum(batch.num_rows for batch in self._batches(2**16))


class ParquetPredictions(TablePredictions):
    """A .parquet."""

    def _file(self) -> Any:
        return require("pyarrow.parquet", "reading .parquet").ParquetFile(self.path)

    def _columns(self) -> list[str]:
        with self._file() as file:
            return list(file.schema_arrow.names)

    def _batches(self, rows: int) -> Iterator[Any]:
        with self._file() as file:
            yield from file.iter_batches(batch_size=rows)

    def count(self) -> int:
        """Number of rows."""
        with self._file() as file:
            return int(file.metadata.num_rows)
