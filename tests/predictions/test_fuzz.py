"""Mangled files: whatever is read is what an independent reader finds in them, and all else is refused in a sentence."""

import csv
import gzip
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import torch

from calibrant.audit import audit
from calibrant.errors import InputError
from calibrant.predictions import open_predictions
from calibrant.predictions.arrays import ArrayPredictions
from calibrant.predictions.tables import TablePredictions

N, K = 40, 3
FORMATS = ("csv", "tsv", "csv.gz", "jsonl", "parquet", "npz", "fortran.npz", "compressed.npz", "npy")
ODD = [
    "nan",
    "inf",
    "-1",
    "1e999",
    "",
    " ",
    "0x10",
    "0,5",
    "True",
    "99999999999999999999",
    "é",
    '"',
    "a,b",
    "None",
    "-100",
    "3",
]


def write(path: Path) -> None:
    draws = np.random.default_rng(0)
    logits = draws.normal(size=(N, K))
    labels = draws.integers(0, K, N)
    probs = torch.from_numpy(logits).softmax(1).numpy()
    table = pd.DataFrame(probs, columns=["prob_0", "prob_1", "prob_2"]).assign(text="a, b", label=labels)
    kind = path.name.partition(".")[2]
    if kind == "npy":
        np.save(path, logits)
        np.save(path.with_name("y.npy"), labels)
    elif kind.endswith("npz"):
        save = np.savez_compressed if "compressed" in kind else np.savez
        save(
            path,
            logits=np.asfortranarray(logits) if "compressed" not in kind and "fortran" in kind else logits,
            target=labels,
        )
    elif kind == "parquet":
        table.to_parquet(path)
    elif kind == "jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_csv(path, sep="\t" if kind == "tsv" else ",")


# Ways to mangle


def flip(content: bytearray, dice: random.Random) -> None:
    for _ in range(dice.choice([1, 1, 3, 20])):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)


def cut(content: bytearray, dice: random.Random) -> None:
    del content[dice.randrange(len(content)) :]


def lose(content: bytearray, dice: random.Random) -> None:
    start = dice.randrange(len(content))
    del content[start : start + dice.choice([1, 2, 10, 100])]


def repeat(content: bytearray, dice: random.Random) -> None:
    start = dice.randrange(len(content))
    content[start:start] = content[start : start + dice.choice([1, 10, 100])]


def delimiters(content: bytearray, dice: random.Random) -> None:
    old, new = dice.sample([b",", b";", b"\t", b"|", b"\n", b".", b":"], 2)
    content[:] = content.replace(old, new, dice.choice([-1, 1, 3]))


def odd_value(content: bytearray, dice: random.Random) -> None:
    lines = content.split(b"\n")
    row = dice.randrange(len(lines))
    cells = lines[row].split(b",")
    cells[dice.randrange(len(cells))] = dice.choice(ODD).encode()
    lines[row] = b",".join(cells)
    content[:] = b"\n".join(lines)


WAYS: tuple[Callable[[bytearray, random.Random], None], ...] = (flip, cut, lose, repeat, delimiters, odd_value)


def mangle(path: Path, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311
    content = bytearray(path.read_bytes())
    packed = path.suffix == ".gz" and dice.random() < 0.7  # what is inside is mangled
    content = bytearray(gzip.decompress(content)) if packed else content
    for _ in range(dice.choice([1, 1, 2])):
        if content:
            dice.choice(WAYS)(content, dice)
    path.write_bytes(gzip.compress(content) if packed else content)


# What others find in them


def as_others_read(file: object) -> tuple[np.ndarray, list[str]]:
    """Scores and labels in the columns that were understood, from readers that have nothing to do with ours."""
    assert isinstance(file, ArrayPredictions | TablePredictions)
    if isinstance(file, ArrayPredictions):
        if file.path.suffix == ".npy":
            return np.load(file.path), [str(int(y)) for y in np.load(file.path.with_name("y.npy"))]
        with np.load(file.path, allow_pickle=False) as arrays:
            return arrays[file._scores.name], [str(int(y)) for y in arrays[file._stored_target.name]]
    scores, label = file.layout.scores, file.layout.label
    if file.path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(file.path).to_pydict()
        rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    elif file.path.suffix == ".jsonl":
        text, rows = file.path.read_bytes().decode("utf-8-sig").strip(), []
        while text:  # with or without a new line between objects
            row, end = json.JSONDecoder().raw_decode(text)
            rows.append(row)
            text = text[end:].strip()
    else:
        data = file.path.read_bytes()
        text = (gzip.decompress(data) if file.path.suffix == ".gz" else data).decode("utf-8-sig")
        # newlines as pyarrow and Excel have them; empty lines are no rows
        rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=file.delimiter))
    point = getattr(file, "decimal", ".")
    values = [[float(str(row[name]).replace(point, ".")) for name in scores] for row in rows]
    return np.array(values), [str(row[label]).strip() for row in rows]


def check(path: Path) -> str:
    """Read a file, and compare what was read with what others read."""
    try:
        options = {"label": str(path.with_name("y.npy")), "kind": "logits"} if path.suffix == ".npy" else {}
        file = open_predictions(path, **options)
        logits, target = file.read_all()
    except InputError as error:
        return "refused" if "\n" not in str(error) else "more than a sentence"
    scores, labels = as_others_read(file)
    if file.kind == "probs" and not file.single:
        expected = torch.from_numpy(scores / scores.sum(1, keepdims=True))
    elif file.single:
        p = torch.from_numpy(scores.reshape(-1, 1))
        expected = torch.cat([1 - p, p], 1) if file.kind == "probs" else torch.cat([-p, p], 1).div(2).softmax(1)
    else:
        expected = torch.from_numpy(scores.astype(np.float64)).softmax(1)
    torch.testing.assert_close(logits.softmax(1).double(), expected, rtol=1e-4, atol=1e-6)
    for text, y in zip(labels, target.tolist(), strict=True):
        number = float({"True": "1", "False": "0"}.get(text, text)) if text not in (file.classes or ()) else None
        named = file.classes and number is not None and str(int(number)) in file.classes
        expected_class = (
            file.classes.index(text if number is None else str(int(number))) if named or number is None else number
        )
        assert y == expected_class, (text, y)
    return "read"


@pytest.mark.parametrize("kind", FORMATS)
def test_mangled_files_give_the_right_numbers_or_a_sentence(tmp_path: Path, kind: str) -> None:
    original = tmp_path / f"original.{kind}"
    write(original)
    assert check(original) == "read"
    path = tmp_path / f"p.{kind}"
    found = []
    for seed in range(60):
        path.write_bytes(original.read_bytes())
        mangle(path, seed)
        try:
            found.append(check(path))
        except Exception as error:
            raise AssertionError(f"{kind}, seed {seed}: {type(error).__name__}: {error}") from error
    assert set(found) <= {"read", "refused"}
    assert "refused" in found


def test_an_archive_with_a_password_or_of_unknown_compression_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "p.npz")
    content = bytearray((tmp_path / "p.npz").read_bytes())
    for offset, value in ((8, 1), (10, 99)):  # in the archive's table of contents
        changed = bytearray(content)
        for start in [i for i in range(len(changed)) if changed[i : i + 4] == b"PK\1\2"]:
            changed[start + offset] = value
        (tmp_path / "q.npz").write_bytes(changed)
        with pytest.raises(InputError, match="q.npz"):
            open_predictions(tmp_path / "q.npz").read_all()
    assert zipfile.is_zipfile(tmp_path / "q.npz")


def test_scores_beyond_measure_are_measured(tmp_path: Path) -> None:
    """An NLL of 1e300 has a square that no float64 holds."""
    logits = np.eye(3)[np.arange(30) % 3] * 1e300
    np.savez(tmp_path / "p.npz", logits=logits, target=(np.arange(30) + 1) % 3)
    found = audit(tmp_path / "p.npz", resamples=10)
    assert found["nll"] == pytest.approx(1e300)
    assert found.intervals["nll"].high == np.inf
