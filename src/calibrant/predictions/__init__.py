"""Prediction files of any size, as people save them: arrays, tables, and run folders."""

from collections.abc import Callable, Sequence
from pathlib import Path

from calibrant.errors import InputError
from calibrant.predictions.arrays import open_npy, open_npz
from calibrant.predictions.base import Chunk, Predictions, Reading, readable
from calibrant.predictions.labels import Meaning
from calibrant.predictions.layout import Kind
from calibrant.predictions.tables import COMPRESSED, TABLES
from calibrant.predictions.writing import check_output, ending, rewrite, write_npz

__all__ = ["Chunk", "Kind", "Predictions", "check_output", "open_predictions", "rewrite", "write_npz"]

FORMATS: dict[str, Callable[[Path, Reading], Predictions]] = {".npz": open_npz, ".npy": open_npy, **TABLES}


def open_predictions(
    path: str | Path,
    *,
    kind: Kind | None = None,
    scores: str | None = None,
    columns: str | Sequence[str] | None = None,
    label: str | None = None,
    labels_are: Meaning | None = None,
    positive: object = None,
    normalise: bool = False,
    ignore_index: int = -100,
    part: str = "test",
) -> Predictions:
    """Open a file by its extension, or a run folder.

    Whatever is not given is inferred from the file, and :meth:`Predictions.understood` sums it up in one line. An ambiguous
    file is refused, with the argument that resolves it.

    Args:
        path: ``.npz``, ``.npy``, ``.csv``, ``.tsv``, ``.jsonl``, ``.parquet`` (text may be compressed, as ``.csv.gz``), or
            a folder that holds ``predictions/test.npz``.
        kind: What the scores are, if their names do not say.
        scores: Name of the array of scores in an npz.
        columns: Columns of a table that hold scores, in the order of the classes, or patterns such as ``"prob_*"``.
        label: Name of the column or array of labels; for an ``.npy``, the file that holds them.
        labels_are: ``"names"`` or ``"numbers"`` of classes, if labels could be either.
        positive: The label of the positive class, if two classes share a single score.
        normalise: Divide each row of probabilities by its sum.
        ignore_index: Label of samples or pixels to ignore.
        part: Which predictions of a run folder.

    Raises:
        InputError: If the file cannot be read, or is ambiguous.
    """
    path = Path(path)
    for name, value, known in (("kind", kind, ("logits", "probs")), ("labels_are", labels_are, ("names", "numbers"))):
        if value not in (None, *known):
            raise InputError(f"`{name}` must be {known[0]} or {known[1]}, got {value!r}")
    if not -(2**63) <= ignore_index < 2**63:
        raise InputError(f"`ignore_index` must be a label, got {ignore_index}")
    if path.is_dir():
        inside = path / "predictions" / f"{part}.npz"
        if not inside.exists():
            raise InputError(f"{path} is not a run folder: it has no predictions/{part}.npz")
        path = inside
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if not path.is_file():
        raise InputError(f"{path} cannot be read twice; save the predictions to a regular file")
    if not path.stat().st_size:
        raise InputError(f"{path} is empty")
    opener = FORMATS.get(ending(path))
    if opener is None or (path.suffix.lower() in COMPRESSED and ending(path) in (".npz", ".npy", ".parquet")):
        raise InputError(
            f"{path} has an unknown format: expected .npz, .npy, .csv, .tsv, .jsonl, .parquet or a run folder"
            + ("; pandas writes lines with to_json(orient='records', lines=True)" if ending(path) == ".json" else "")
        )
    chosen = [columns] if isinstance(columns, str) else columns
    told = None if positive is None else str(positive)
    with readable(path):
        return opener(path, Reading(kind, scores, chosen, label, labels_are, told, normalise, ignore_index))
