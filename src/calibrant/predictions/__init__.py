"""Files of predictions: .npz, .csv and .parquet of any size, and run folders."""

from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.errors import InputError
from calibrant.predictions.base import Chunk, Kind, Predictions, readable
from calibrant.predictions.npz import NpzPredictions, write_npz
from calibrant.predictions.tables import CsvPredictions, ParquetPredictions

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Chunk", "Kind", "Predictions", "open_predictions", "write_npz"]


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
    opener: Callable[..., Predictions] | None = {
        ".npz": NpzPredictions,
        ".csv": CsvPredictions,
        ".parquet": ParquetPredictions,
    }.get(path.suffix.lower())
    if opener is None:
        raise InputError(f"{path} is of no known kind: expected .npz, .csv, .parquet or a run folder")
    with readable(path):
        return opener(path, kind, scores, label, ignore_index)
