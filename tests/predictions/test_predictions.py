"""Files of predictions from Python: every format opened, read in parts, and written."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from calibrant.errors import InputError
from calibrant.predictions import Chunk, Predictions, base, open_predictions, write_npz

N, K = 50, 3
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(N, K)).astype(np.float32)
TARGET = RANDOM.integers(0, K, N)
PROBS = torch.from_numpy(LOGITS).double().softmax(1).numpy()
NAMES = ["ant", "bee", "cat"]


def table(prefix: str = "logit_", scores: np.ndarray = LOGITS, label: str = "label") -> pa.Table:
    return pa.table({**{f"{prefix}{name}": scores[:, k] for k, name in enumerate(NAMES)}, label: TARGET})


def in_format(kind: str, folder: Path) -> Path:
    path = folder / f"p.{kind.split(maxsplit=1)[0]}"
    if kind == "npz":
        np.savez(path, logits=LOGITS, target=TARGET, classes=np.array(NAMES), train_counts=np.array([9, 5, 1]))
    elif kind == "npz of probabilities":
        np.savez_compressed(path, probs=PROBS, y=TARGET.astype(np.uint8), classes=np.array(NAMES))
    elif kind == "csv":
        pa.csv.write_csv(table(), path)
    elif kind == "csv of names":
        pa.csv.write_csv(table().set_column(K, "label", pa.array([NAMES[y] for y in TARGET])), path)
    else:
        pa.parquet.write_table(table("prob_", PROBS) if "probabilities" in kind else table(), path)
    return path


FORMATS = ("npz", "npz of probabilities", "csv", "csv of names", "parquet", "parquet of probabilities")


@pytest.mark.parametrize("rows", [1, 7, N])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, rows: int) -> None:
    monkeypatch.setattr(base, "CHUNK", rows * K)
    file = open_predictions(in_format(kind, tmp_path))
    assert isinstance(file, Predictions)
    assert (file.num_classes, file.classes, file.count(), file.shape, file.has_target) == (K, NAMES, N, (), True)
    assert file.kind == ("probs" if "probabilities" in kind else "logits")
    assert file.train_counts == ([9, 5, 1] if kind == "npz" else None)
    chunks = list(file.chunks())
    assert [chunk.start for chunk in chunks] == list(range(0, N, rows))
    assert all(len(chunk.logits) == len(chunk.target) <= rows for chunk in chunks)
    logits, target = file.read_all()
    assert torch.equal(logits, torch.cat([chunk.logits for chunk in chunks]))
    torch.testing.assert_close(logits.softmax(1).double(), torch.from_numpy(PROBS), rtol=1e-5, atol=1e-6)
    assert target.tolist() == TARGET.tolist()
    assert [file.name_of(k) for k in range(K)] == NAMES


def test_a_run_folder_is_opened_by_its_part(tmp_path: Path) -> None:
    (tmp_path / "predictions").mkdir()
    for part, size in (("test", 10), ("validation", 20)):
        np.savez(tmp_path / "predictions" / f"{part}.npz", logits=LOGITS[:size], target=TARGET[:size])
    assert open_predictions(tmp_path).count() == 10
    assert open_predictions(tmp_path, part="validation").count() == 20
    assert open_predictions(tmp_path).name_of(2) == "2"
    with pytest.raises(InputError, match="is not a run folder: it has no predictions/train.npz"):
        open_predictions(tmp_path, part="train")


def test_names_of_arrays_and_columns_may_be_given(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", mine=LOGITS, other=PROBS, truth=TARGET)
    with pytest.raises(InputError, match=r"has several arrays of scores \(mine, other\); choose one with `scores`"):
        open_predictions(tmp_path / "p.npz")
    with pytest.raises(InputError, match=r"mine may hold logits or probabilities; they do not .*: pass `kind=.logits.`$"):
        open_predictions(tmp_path / "p.npz", scores="mine", label="truth")
    np.savez(tmp_path / "q.npz", truth=TARGET)
    with pytest.raises(InputError, match=r"has no array logits or probs \(it has truth\); name it with `scores`"):
        open_predictions(tmp_path / "q.npz")
    found = open_predictions(tmp_path / "p.npz", scores="other", kind="probs", label="truth").read_all()
    torch.testing.assert_close(found[0].exp(), torch.from_numpy(PROBS))
    pa.csv.write_csv(table("", label="truth"), tmp_path / "p.csv")
    with pytest.raises(
        InputError, match=r'columns ant, bee, cat may hold logits or probabilities; .*: pass `kind="logits"`'
    ):
        open_predictions(tmp_path / "p.csv", label="truth")
    file = open_predictions(tmp_path / "p.csv", label="truth", kind="logits")
    assert file.read_all()[1].tolist() == TARGET.tolist()
    with pytest.raises(InputError, match="`scores` names an array of an .npz"):
        open_predictions(tmp_path / "p.csv", scores="ant")
    with pytest.raises(InputError, match="p.csv has no column 'label'; it has ant, bee, cat, truth"):
        open_predictions(tmp_path / "p.csv", label="label", kind="logits")


def test_predictions_without_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", logits=LOGITS)
    file = open_predictions(tmp_path / "p.npz")
    assert not file.has_target
    assert all(chunk.target is None for chunk in file.chunks())
    with pytest.raises(InputError, match="has no labels: name them label or target, or pass `label` with their name"):
        file.read_all()


def test_labels_to_leave_out(tmp_path: Path) -> None:
    target = np.where(np.arange(N) == 4, 255, TARGET)
    np.savez(tmp_path / "p.npz", logits=LOGITS, target=target)
    with pytest.raises(InputError, match=r"row 4: has label 255, but there are 3 classes .*pass `ignore_index=255`"):
        open_predictions(tmp_path / "p.npz").read_all()
    assert open_predictions(tmp_path / "p.npz", ignore_index=255).read_all()[1].tolist() == target.tolist()


def test_dense_predictions(tmp_path: Path) -> None:
    logits, target = RANDOM.normal(size=(4, K, 5, 6)), RANDOM.integers(0, K, (4, 5, 6))
    np.savez(tmp_path / "p.npz", logits=logits, target=target)
    file = open_predictions(tmp_path / "p.npz")
    assert (file.shape, file.num_classes) == ((5, 6), K)
    found = file.read_all()
    assert found[0].dtype == torch.float64
    assert np.array_equal(found[0].numpy(), logits)
    assert np.array_equal(found[1].numpy(), target)
    target[2, 3, 1] = 9
    np.savez(tmp_path / "p.npz", logits=logits, target=target)
    with pytest.raises(InputError, match=r"row 2, pixel \(3, 1\): has label 9"):
        open_predictions(tmp_path / "p.npz").read_all()


# Writing


@pytest.mark.parametrize("kind", ["logits", "probs"])
@pytest.mark.parametrize("labelled", [True, False])
def test_what_is_written_is_read(tmp_path: Path, kind: str, labelled: bool) -> None:
    logits, target = torch.from_numpy(LOGITS).log_softmax(1), torch.from_numpy(TARGET)
    parts = zip(range(0, N, 20), logits.split(20), target.split(20), strict=True)
    chunks = [Chunk(start, z, y if labelled else None) for start, z, y in parts]
    write_npz(tmp_path / "a" / "p.npz", iter(chunks), N, kind=kind, classes=NAMES, train_counts=[1, 2, 3])
    file = open_predictions(tmp_path / "a" / "p.npz")
    assert (file.kind, file.classes, file.train_counts, file.has_target) == (kind, NAMES, [1, 2, 3], labelled)
    found = torch.cat([chunk.logits for chunk in file.chunks()])
    torch.testing.assert_close(found, logits, rtol=1e-5, atol=1e-6)
    with np.load(tmp_path / "a" / "p.npz", allow_pickle=False) as archive:  # which anybody can read
        assert archive[kind].shape == (N, K)
        assert set(archive.files) == {kind, "classes", "train_counts", *(["target"] if labelled else [])}
    with pytest.raises(InputError, match="p.npz already exists; .*pass `force=True`"):
        write_npz(tmp_path / "a" / "p.npz", iter(chunks), N)
    write_npz(tmp_path / "a" / "p.npz", iter(chunks), N, force=True)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["p.npz"]


def test_nothing_is_left_of_what_could_not_be_written(tmp_path: Path) -> None:
    def interrupted():
        yield Chunk(0, torch.from_numpy(LOGITS), None)
        raise RuntimeError("the power is out")

    with pytest.raises(RuntimeError, match="the power is out"):
        write_npz(tmp_path / "p.npz", interrupted(), 2 * N)
    assert list(tmp_path.iterdir()) == []


# What is wrong with a file is said with the name of the file and the number of the row


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"logits": np.where(np.arange(N)[:, None] == 17, np.nan, LOGITS)},
            "row 17: has a score that is not a finite number",
        ),
        ({"logits": np.where(np.arange(N)[:, None] == 3, -np.inf, LOGITS)}, "row 3: has only scores of -infinity"),
        ({"logits": LOGITS.astype(complex)}, "must hold numbers as scores, but logits is of type complex128"),
        ({"logits": LOGITS.astype(str)}, "must hold numbers as scores"),
        ({"logits": LOGITS.astype(object)}, "logits holds Python objects, which are never loaded"),
        ({"logits": LOGITS, "logp": LOGITS}, r"several arrays of scores \(logits, logp\); choose one with `scores`"),
        ({"probs": LOGITS}, 'has a negative probability; if these are logits, pass `kind="logits"`'),
        ({"probs": np.full((N, K), 0.5)}, "row 0: adds up to 1.5, not to 1"),
        (
            {"logits": LOGITS, "target": np.array(list("abc") * 16 + ["a", "z"])},
            "row 0: label 'a' is not one of the classes",
        ),
        ({"logits": LOGITS, "target": TARGET > 0}, "must hold integers or class names as labels"),
        ({"logits": LOGITS, "classes": np.array(["a"])}, r"classes has shape \(1,\), but there are 3 classes"),
        ({"logits": LOGITS, "train_counts": np.arange(4)}, r"train_counts has shape \(4,\), but there are 3 classes"),
        ({"logits": LOGITS[:, :, None][:, :, :0]}, "logits is empty"),
    ],
)
def test_wrong_arrays_are_named(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "p.npz", **{"target": TARGET, **arrays})
    with pytest.raises(InputError, match=message) as caught:
        open_predictions(tmp_path / "p.npz").read_all()
    assert str(tmp_path / "p.npz") in str(caught.value)


def test_one_score_of_minus_infinity_is_a_probability_of_zero(tmp_path: Path) -> None:
    logits = LOGITS.copy()
    logits[5, 1] = -np.inf
    np.savez(tmp_path / "p.npz", logits=logits, target=TARGET)
    assert float(open_predictions(tmp_path / "p.npz").read_all()[0].softmax(1)[5, 1]) == 0


@pytest.mark.parametrize("name", ["p.txt", "p", "nowhere.npz"])
def test_other_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "p.txt").write_text("...")
    (tmp_path / "p").write_text("...")
    message = (
        "does not exist"
        if name == "nowhere.npz"
        else "has an unknown format: expected .npz, .npy, .csv, .tsv, .jsonl, .parquet"
    )
    with pytest.raises(InputError, match=message):
        open_predictions(tmp_path / name)
