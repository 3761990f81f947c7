"""Tables as people save them, mostly with pandas: read as pandas reads them, or refused with what decides."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from calibrant.errors import InputError
from calibrant.predictions import open_predictions, rewrite
from calibrant.predictions.labels import LABELS

N = 200
NAMES = ["cat", "dog", "bird"]
DRAWS = np.random.default_rng(0)
LOGITS = 2 * DRAWS.normal(size=(N, 3))
TARGET = (LOGITS / 1.5 + DRAWS.gumbel(size=LOGITS.shape)).argmax(1)
PROBS = torch.from_numpy(LOGITS).softmax(1).numpy()
TEXT = ["plain; text", 'a, "quoted"', "two\nlines", "42"] * (N // 4)
#: The share of the second class where only two are left, and whether it is true.
SHARE = PROBS[:, 1] / PROBS[:, :2].sum(1)
TRUE = DRAWS.random(N) < SHARE


def frame(prefix: str = "prob_", scores: np.ndarray = PROBS) -> pd.DataFrame:
    return pd.DataFrame(scores, columns=[f"{prefix}{name}" for name in NAMES])


def named() -> pd.DataFrame:
    return frame().assign(label=[NAMES[y] for y in TARGET])


def written(path: Path, table: pd.DataFrame, **options: Any) -> Path:
    kind = path.name.partition(".")[2]
    if kind.startswith("jsonl"):
        table.to_json(path, orient="records", lines=True, double_precision=15)
    elif kind == "parquet":
        table.to_parquet(path, **options)
    else:
        table.to_csv(path, **{"sep": "\t" if kind.startswith("tsv") else ",", **options})
    return path


def check(path: Path, *, tolerance: float = 1e-6, target: np.ndarray = TARGET, **options: Any) -> str:
    """Read a file of the three classes, compare with what went in, and return what was understood."""
    file = open_predictions(path, **options)
    logits, labels = file.read_all()
    torch.testing.assert_close(logits.softmax(1).double(), torch.from_numpy(PROBS), rtol=0, atol=tolerance)
    assert labels.tolist() == target.tolist()
    assert file.count() == N
    return file.understood()


FORMATS = ("csv", "tsv", "csv.gz", "tsv.gz", "csv.bz2", "jsonl", "jsonl.gz", "parquet")


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_with_other_columns(tmp_path: Path, kind: str) -> None:
    table = named().assign(id=[f"img{i}" for i in range(N)], text=TEXT, prediction=PROBS.argmax(1), entropy=PROBS[:, 0])
    table = table[["id", "text", "prob_cat", "prob_dog", "prediction", "prob_bird", "entropy", "label"]]
    said = check(written(tmp_path / f"p.{kind}", table))
    index = "(unnamed), " if kind[:3] in ("csv", "tsv") else ""
    assert said == (
        f"p.{kind}: probabilities of 3 classes (columns prob_cat, prob_dog, prob_bird); labels in label (class names); "
        f"ignored: {index}id, text, prediction, entropy"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sep": ";"}, "separated by semicolons"),
        ({"sep": ";", "decimal": ","}, "separated by semicolons, decimal commas"),
        ({"sep": "|"}, "separated by bars"),
        ({"sep": "\t"}, "separated by tabs"),
        ({"encoding": "utf-8-sig"}, "(columns prob_cat, prob_dog, prob_bird);"),
        ({"lineterminator": "\r\n"}, "(columns prob_cat, prob_dog, prob_bird);"),
        ({"quoting": 1}, "(columns prob_cat, prob_dog, prob_bird);"),
        ({"index_label": "image"}, "ignored: image"),
    ],
)
def test_dialects_of_csv(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    assert said in check(written(tmp_path / "p.csv", named().assign(note=TEXT), **options))


@pytest.mark.parametrize("prefix", ["", "prob_", "probs.", "p_", "P:", "proba_", "probability ", "class_prob_", "softmax-"])
def test_names_of_columns(tmp_path: Path, prefix: str) -> None:
    """Where names do not tell, rows that add up to 1 do."""
    path = written(tmp_path / "p.csv", frame(prefix).assign(label=TARGET))
    assert "probabilities of 3 classes" in check(path)
    names = NAMES if prefix != "class_prob_" else [prefix + name for name in NAMES]
    assert open_predictions(path).classes == names
    if prefix:
        suffixed = frame().rename(columns=lambda name: name.removeprefix("prob_") + "_prob").assign(label=TARGET)
        assert open_predictions(written(tmp_path / "q.csv", suffixed)).classes == NAMES


@pytest.mark.parametrize("name", ["label", "Label", "y_true", "True Label", "ground_truth", "target", "class", "gt", "y"])
def test_usual_names_of_labels(tmp_path: Path, name: str) -> None:
    assert f"labels in {name}" in check(written(tmp_path / "p.csv", frame().assign(**{name: TARGET})))


def test_labels_are_looked_for_by_one_list() -> None:
    assert all(name == "".join(c for c in name.lower() if c.isalnum()) for name in LABELS)


def test_lists_in_a_column(tmp_path: Path) -> None:
    rows = [{"id": i, "probs": PROBS[i].tolist(), "label": int(TARGET[i]), "meta": {"a": [1]}} for i in range(N)]
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert check(path) == "p.jsonl: probabilities of 3 classes (column probs); labels in label; ignored: id, meta"
    check(written(tmp_path / "p.parquet", pd.DataFrame(rows)))
    rows[17]["probs"] = [0.5, 0.5]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    with pytest.raises(InputError, match="row 17: column 'probs' holds 2 scores, but the first row 3"):
        open_predictions(path).read_all()


def test_index_of_a_parquet(tmp_path: Path) -> None:
    table = named()
    table.index = pd.Index([f"row {i}" for i in range(N)])
    assert check(written(tmp_path / "p.parquet", table)).endswith("ignored: __index_level_0__")
    table.index = pd.Index(DRAWS.random(N), name="time")  # which looks like any score
    table.columns = [*NAMES, "label"]
    assert check(written(tmp_path / "p.parquet", table)).endswith("ignored: time")


# Rounded probabilities


@pytest.mark.parametrize(("decimals", "tolerance"), [(2, 0.02), (3, 2e-3), (4, 2e-4)])
def test_rounded_probabilities(tmp_path: Path, decimals: int, tolerance: float) -> None:
    table = frame("").round(decimals).assign(label=TARGET)
    said = check(written(tmp_path / "p.csv", table), tolerance=tolerance)
    assert (f"rounded to {decimals} decimals; rows renormalised" in said) == (decimals < 4)
    single = table.astype(dict.fromkeys(NAMES, np.float32))
    assert (f"rounded to {decimals}" in check(written(tmp_path / "p.parquet", single), tolerance=tolerance)) == (
        decimals < 4
    )


def test_zeros_of_rounded_probabilities_can_be_lifted(tmp_path: Path) -> None:
    """Half a unit of the last decimal, before rows are divided by their sums; calibrators need logarithms."""
    rounded = frame("").round(2)
    assert (rounded == 0).to_numpy().any()
    file = open_predictions(written(tmp_path / "p.csv", rounded.assign(label=TARGET)))
    assert file.read_all()[0].isinf().any()
    assert file.lift_zeros() == "p.csv: probabilities are rounded to 2 decimals; zeros are read as 0.005"
    expected = rounded.clip(lower=0.005)
    expected = expected.div(expected.sum(axis=1), axis=0)
    np.testing.assert_allclose(file.read_all()[0].softmax(1).numpy(), expected.to_numpy(), atol=1e-7)
    single = pd.DataFrame({"score": [0.0, 1.0, 0.25] * 20, "label": [0, 1, 1] * 20})
    file = open_predictions(written(tmp_path / "q.csv", single), kind="probs")
    file.lift_zeros()
    assert file.read_all()[0].softmax(1)[:3, 1].tolist() == pytest.approx([0.005, 0.995, 0.25])
    exact = open_predictions(written(tmp_path / "r.csv", named()))
    assert exact.lift_zeros() == ""


def test_pipelines_of_hugging_face(tmp_path: Path) -> None:
    """A list of labels and scores, sorted by score, in every line."""
    lines = []
    for i, (row, y) in enumerate(zip(PROBS, TARGET, strict=True)):
        pairs = [{"label": name, "score": score} for name, score in zip(NAMES, row.tolist(), strict=True)]
        pairs.sort(key=lambda pair: -pair["score"])
        lines.append(json.dumps({"id": i, "text": "a", "scores": pairs, "label": NAMES[y]}))
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(lines) + "\n")
    file = open_predictions(path)
    assert file.classes == sorted(NAMES)
    logits, target = file.read_all()
    order = [NAMES.index(name) for name in sorted(NAMES)]
    torch.testing.assert_close(logits.softmax(1).double(), torch.from_numpy(PROBS[:, order]), rtol=0, atol=1e-6)
    assert [sorted(NAMES)[k] for k in target.tolist()] == [NAMES[y] for y in TARGET]
    assert "label and score in scores" in file.understood()
    rewrite(file, tmp_path / "q.jsonl", lambda logits: logits)
    again = [json.loads(line) for line in (tmp_path / "q.jsonl").read_text().splitlines()]
    assert again[0].keys() == {"id", "text", "label", "prob_bird", "prob_cat", "prob_dog"}
    assert open_predictions(tmp_path / "q.jsonl").classes == sorted(NAMES)


def test_labels_that_count_from_1(tmp_path: Path) -> None:
    numbered = pd.DataFrame(PROBS, columns=["p0", "p1", "p2"]).assign(label=TARGET + 1)
    hint = "labels seem to count from 1: subtract 1, or name the classes after them"
    with pytest.raises(InputError, match=hint):
        open_predictions(written(tmp_path / "p.csv", numbered)).read_all()
    np.savez(tmp_path / "p.npz", probs=PROBS, target=TARGET + 1)
    with pytest.raises(InputError, match=hint):
        open_predictions(tmp_path / "p.npz").read_all()
    check(written(tmp_path / "q.csv", numbered.rename(columns={"p0": "prob_1", "p1": "prob_2", "p2": "prob_3"})))


def test_what_rounding_does_not_explain_needs_to_be_told(tmp_path: Path) -> None:
    for factor, sums in ((0.99, "0.99"), (0.9, "0.9")):
        path = written(tmp_path / "p.csv", frame(scores=factor * PROBS).assign(label=TARGET))
        with pytest.raises(InputError, match=rf"row 0: adds up to {sums}, not to 1; .*pass `normalise=True`") as caught:
            open_predictions(path).read_all()
        assert "logits" not in str(caught.value)
        assert "normalised" in check(path, normalise=True)
    path = written(tmp_path / "p.csv", frame("", 0.9 * PROBS).assign(label=TARGET))
    with pytest.raises(InputError, match=r"they lie between 0 and 1 and rows add up to 0.9 to 0.9: pass `kind=.probs.`"):
        open_predictions(path)
    path = written(tmp_path / "p.csv", frame("", 100 * PROBS).assign(label=TARGET))
    with pytest.raises(InputError, match=r"rows add up to 100: for percentages pass `kind=.probs.` and `normalise=True`"):
        open_predictions(path)
    assert "normalised" in check(path, kind="probs", normalise=True)
    with pytest.raises(InputError, match="`normalise` applies to probabilities"):
        open_predictions(written(tmp_path / "q.csv", frame("logit_", LOGITS).assign(label=TARGET)), normalise=True)


def test_logits_are_never_suggested_for_values_between_0_and_1(tmp_path: Path) -> None:
    """A plain ``df.to_csv()`` once was: with the index taken for a class, rows do not add up to 1."""
    for prefix in ("prob_", ""):
        check(written(tmp_path / "p.csv", frame(prefix).assign(label=TARGET)))
    for table in (frame().assign(prob_rest=0.2), frame("").assign(rest=0.2), 0.7 * frame(), (0.7 * frame("")).round(2)):
        path = written(tmp_path / "p.csv", table.assign(label=TARGET), index=False)
        with pytest.raises(InputError) as caught:
            open_predictions(path).read_all()
        assert "logits`" not in str(caught.value).replace('"', "")
        assert 'kind="logits"' not in str(caught.value)
    path = written(tmp_path / "p.csv", frame("prob_", LOGITS).assign(label=TARGET))
    with pytest.raises(InputError, match=r"negative probability; if these are logits, pass `kind=.logits.`"):
        open_predictions(path).read_all()


def test_probabilities_are_not_taken_for_logits(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", logits=PROBS, target=TARGET)
    path = written(tmp_path / "p.csv", frame("logit_").assign(label=TARGET))
    for file, options in ((tmp_path / "p.npz", {}), (path, {}), (path, {"kind": "logits"})):
        with pytest.raises(InputError, match=r"must be probabilities, not logits: .* pass `kind=.probs.`"):
            open_predictions(file, **options)
    check(path, kind="probs")


# What labels are


def in_string_order(labels: Any, many: int = 12) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    draws = np.random.default_rng(1)
    logits = draws.normal(size=(N, many))
    target = (4 * logits + draws.gumbel(size=logits.shape)).argmax(1)
    table = pd.DataFrame(logits, columns=[f"logit_{k}" for k in range(many)])
    return table[sorted(table.columns)].assign(label=labels(target)), logits, target


SPELLED: dict[str, Callable[[np.ndarray], Any]] = {
    "whole": lambda y: y,
    "float": lambda y: y.astype(float),
    "text": lambda y: y.astype(str),
    "text of floats": lambda y: y.astype(float).astype(str),
    "category": lambda y: pd.Categorical(y.astype(str)),
    "some ignored": lambda y: np.where(np.arange(N) == 5, -100, y),
    "some ignored, float": lambda y: np.where(np.arange(N) == 5, -100.0, y),
}


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("spelled", SPELLED)
def test_a_label_is_the_name_of_a_column_wherever_and_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, spelled: str
) -> None:
    """Columns logit_0, logit_1, logit_10, logit_11, logit_2, ...: an accuracy of 0.7 once became 0.15."""
    monkeypatch.setattr("calibrant.predictions.base.CHUNK", 12 * 7)  # whatever the chunks
    table, logits, target = in_string_order(SPELLED[spelled])
    file = open_predictions(written(tmp_path / f"p.{kind}", table))
    found, labels = file.read_all()
    kept = labels != -100
    assert (~kept).sum() == ("ignored" in spelled)
    expected = float((logits.argmax(1) == target)[kept.numpy()].mean())
    assert float((found.argmax(1) == labels)[kept].double().mean()) == expected > 0.6
    assert [file.classes[y] for y in labels[kept]] == [str(y) for y in target[kept.numpy()]]
    assert "labels in label (class names)" in file.understood()


@pytest.mark.parametrize("prefix", ["", "class_", "X", "prob", "probs."])
def test_numbers_after_anything_that_columns_share_are_names(tmp_path: Path, prefix: str) -> None:
    table, logits, target = in_string_order(lambda y: y)
    table.columns = [name.replace("logit_", prefix) for name in table.columns]
    file = open_predictions(written(tmp_path / "p.csv", table, index=prefix == ""), kind="logits")
    found, labels = file.read_all()
    assert float((found.argmax(1) == labels).double().mean()) == (logits.argmax(1) == target).mean()


def test_labels_that_may_be_names_or_numbers_are_refused(tmp_path: Path) -> None:
    table = frame().rename(columns={"prob_cat": "prob_1", "prob_dog": "prob_2", "prob_bird": "prob_3"})
    said = "a label such as [12] may be the name of a class or its number, counted from 0; pass `labels_are=.names.` or"
    for kind in ("csv", "parquet", "jsonl"):
        path = written(tmp_path / f"p.{kind}", table.assign(label=TARGET.clip(0, 1) + 1))
        with pytest.raises(InputError, match=said):
            open_predictions(path).read_all()
        assert "(class names)" in check(path, labels_are="names", target=TARGET.clip(0, 1))
        check(path, labels_are="numbers", target=TARGET.clip(0, 1) + 1)
        # Of these only one reading is possible
        assert "(class names)" in check(written(tmp_path / f"q.{kind}", table.assign(label=TARGET + 1)))
        assert "(class numbers, counted from 0)" in check(written(tmp_path / f"r.{kind}", table.assign(label=TARGET)))
    with pytest.raises(InputError, match=r"`labels_are` must be names or numbers, got 'both'"):
        open_predictions(path, labels_are="both")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("zebra", "row 6: label 'zebra' is not one of the classes cat, dog, bird"),
        ("Cat", "row 6: label 'Cat' is not one of the classes cat, dog, bird; did you mean 'cat'"),
        ("", "row 6: column 'label' is empty or NaN"),
        (None, "row 6: column 'label' is empty or NaN"),
        ("1", "row 6: label '1' is not one of the classes"),
    ],
)
def test_the_first_row_with_a_wrong_label_is_named(tmp_path: Path, kind: str, label: str | None, message: str) -> None:
    table = named()
    table.loc[[6, 9], "label"] = label
    with pytest.raises(InputError, match=message):
        open_predictions(written(tmp_path / f"p.{kind}", table)).read_all()


def test_labels_by_the_thousand_are_something_else(tmp_path: Path) -> None:
    table = pd.concat([frame()] * 10).assign(label=[f"image {i}" for i in range(10 * N)])
    with pytest.raises(InputError, match="more than 1006 different labels for 3 classes; .*pass `label`"):
        open_predictions(written(tmp_path / "p.csv", table)).read_all()


# One score for two classes


def two(name: str, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame({name: SHARE, **columns})


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("name", "labels", "classes", "options"),
    [
        ("prob", TRUE, ["False", "True"], {}),
        ("prob", TRUE.astype(int), ["0", "1"], {}),
        ("proba", np.where(TRUE, 1, -1), ["-1", "1"], {}),
        ("y_prob", TRUE.astype(float), ["0", "1"], {}),
        ("prob_spam", np.where(TRUE, "spam", "ham"), ["ham", "spam"], {}),
        ("P(spam)", np.where(TRUE, "spam", "ham"), ["ham", "spam"], {}),
        ("prob", np.where(TRUE, "spam", "ham"), ["ham", "spam"], {"positive": "spam"}),
        ("prob", np.where(TRUE, 2, 1), ["1", "2"], {"positive": 2}),
        ("score", TRUE, ["False", "True"], {"kind": "probs"}),
        ("spam", TRUE, ["False", "True"], {"kind": "probs"}),
    ],
)
def test_one_score_for_two_classes(
    tmp_path: Path, kind: str, name: str, labels: np.ndarray, classes: list[str], options: dict[str, Any]
) -> None:
    table = two(name, id=[f"a{i}" for i in range(N)], pred=SHARE > 0.5, label=labels)
    file = open_predictions(written(tmp_path / f"p.{kind}", table), **options)
    logits, target = file.read_all()
    np.testing.assert_allclose(logits.softmax(1)[:, 1].numpy(), SHARE, rtol=1e-6)
    assert target.tolist() == TRUE.astype(int).tolist()
    assert (file.num_classes, file.classes, file.single) == (2, classes, True)
    assert f"({classes[1]} is positive, {classes[0]} negative)" in file.understood()


def test_one_score_that_may_be_about_either_class(tmp_path: Path) -> None:
    path = written(tmp_path / "p.csv", two("prob", label=np.where(TRUE, "spam", "ham")))
    with pytest.raises(InputError, match="unclear which of the labels .* the score is for; pass `positive=ham`"):
        open_predictions(path).read_all()
    with pytest.raises(InputError, match="`positive` is 'eggs', but the labels are"):
        open_predictions(path, positive="eggs").read_all()
    path = written(tmp_path / "p.csv", two("prob", label=TARGET))
    with pytest.raises(InputError, match="a single score is for two classes, but the labels are"):
        open_predictions(path).read_all()
    path = written(tmp_path / "p.csv", two("score", label=TRUE))
    with pytest.raises(InputError, match=r"column score may hold .*they lie between 0 and 1: pass `kind=.probs.`$"):
        open_predictions(path)
    path = written(tmp_path / "p.csv", two("prob", age=40, income=DRAWS.random(N), label=TRUE))
    with pytest.raises(InputError, match="the scores may be in prob or in age, income; name their columns with `columns`"):
        open_predictions(path)
    assert open_predictions(path, columns="prob").read_all()[1].tolist() == TRUE.astype(int).tolist()
    with pytest.raises(InputError, match="`positive` applies to two classes, but there are 3"):
        open_predictions(written(tmp_path / "q.csv", named()), positive="cat").read_all()


def test_two_columns_in_either_order(tmp_path: Path) -> None:
    both = pd.DataFrame({"prob_1": SHARE, "prob_0": 1 - SHARE})
    for labels in (TRUE, TRUE.astype(int), TRUE.astype(str)):
        logits, target = open_predictions(written(tmp_path / "p.csv", both.assign(label=labels))).read_all()
        assert (target == 0).tolist() == TRUE.tolist()  # its column comes first
        np.testing.assert_allclose(logits[:, 0].exp().numpy(), SHARE, rtol=1e-6)
    spam = pd.DataFrame({"prob_0": 1 - SHARE, "prob_1": SHARE, "label": np.where(TRUE, "spam", "ham")})
    path = written(tmp_path / "p.csv", spam)
    with pytest.raises(
        InputError, match="is not one of the classes 0, 1; if it is the label of the second class, pass `positive="
    ):
        open_predictions(path).read_all()
    assert open_predictions(path, positive="spam").read_all()[1].tolist() == TRUE.astype(int).tolist()


def test_headers_of_numpy(tmp_path: Path) -> None:
    """``numpy.savetxt`` puts # before the first name."""
    path = tmp_path / "p.csv"
    np.savetxt(path, np.c_[PROBS, TARGET], delimiter=",", header="prob_0,prob_1,prob_2,label")
    assert "probabilities of 3 classes" in check(path)
    assert open_predictions(path).classes == ["0", "1", "2"]


# Overriding what was understood


def test_columns_and_label_override(tmp_path: Path) -> None:
    table = frame("").assign(noise=DRAWS.random(N), label=0, real=TARGET)
    path = written(tmp_path / "p.csv", table)
    check(path, columns=NAMES, label="real")
    file = open_predictions(path, columns=["bird", "cat", "dog"], label="real")
    assert file.classes == ["bird", "cat", "dog"]
    np.testing.assert_allclose(file.read_all()[0][:, 0].exp().numpy(), PROBS[:, 2], rtol=1e-6)
    with pytest.raises(InputError, match="has no column 'brid' besides the label; it has .*did you mean 'bird'"):
        open_predictions(path, columns=["brid", "cat"])
    with pytest.raises(InputError, match="`columns` names 'cat' twice"):
        open_predictions(path, columns=["cat", "*a*", "dog"])
    check(written(tmp_path / "q.csv", named().assign(p_value=0.1, prob=0.5)), columns="prob_*")
    with pytest.raises(InputError, match="the labels may be in label or y_true; choose one with `label`"):
        open_predictions(written(tmp_path / "q.csv", named().assign(y_true=0)))
    both = pd.concat([frame(), frame("logit_", LOGITS)], axis=1).assign(label=TARGET)
    path = written(tmp_path / "q.csv", both)
    with pytest.raises(InputError, match="the scores may be in prob_cat, .* or in logit_cat, .*; name their columns"):
        open_predictions(path)
    assert "ignored: (unnamed), logit_cat" in check(path, kind="probs")
    assert "logits of 3 classes (columns logit_cat" in check(path, kind="logits")


def test_tables_of_many_classes(tmp_path: Path) -> None:
    names = [f"logit_{k}" for k in range(8000)]
    path = tmp_path / "p.csv"
    row = np.zeros(len(names), int)
    row[[5, 7000]] = 1, 2
    path.write_text(f"{','.join(names)},label\n{','.join(map(str, row))},7000\n" + f"{','.join(map(str, row))},0\n" * 2)
    logits, target = open_predictions(path, columns=names).read_all()
    assert (logits.argmax(1).tolist(), target.tolist()) == ([7000] * 3, [7000, 0, 0])


def test_what_is_wrong_with_a_table_is_said(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"

    def refused(text: str | bytes, message: str, **options: Any) -> None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(InputError, match=message) as caught:
            open_predictions(path, **options).read_all()
        assert "may be broken" not in str(caught.value)

    refused("", "p.csv is empty")
    refused("\n\n", "p.csv is empty")
    refused("0.1,0.9,1\n0.2,0.8,1\n", "has no header: its first line is 0.1, 0.9, 1; put column names there")
    refused("prob_a,prob_b,label\n0.5,0.5,0\n0.5,half,1\n", "row 1: column 'prob_b' holds 'half', which is not a number")
    refused("cat,dog,bird,label\n1,2,3,0\n1,2,n/a?,0\n1,2,4,0\n", "column 'bird' holds numbers and text; repair it, or name")
    refused(
        "id,text,label\na,b,0\n", "has no columns of scores, one for each class such as prob_cat or logit_cat; it has id"
    )
    refused("prob_a,prob_b,species\n0.5,0.5,a\n", r"has no labels \(besides the scores it has species\)")
    refused("prob_a,prob_b,prob 1,prob_1,label\n0.1,0.2,0.3,0.4,a\n", "has two columns of class '1'")
    refused("prob_a,prob_b,label\n0.5,0.5,0\n".encode("utf-16"), "is not text in UTF-8")
    refused("prob_a,prob_é,label\n0.5,0.5,0\n".encode("latin-1"), "is not text in UTF-8")
    table = named()
    table["prob_dog"] = table["prob_dog"].astype(str)
    with pytest.raises(InputError, match="column 'prob_dog' must hold numbers, but it is of type"):
        open_predictions(written(tmp_path / "p.parquet", table))
    (tmp_path / "p.json").write_text("[]")
    with pytest.raises(InputError, match=r"an unknown format: .*to_json\(orient='records', lines=True\)"):
        open_predictions(tmp_path / "p.json")


def test_files_that_are_cut_short_are_called_so(tmp_path: Path) -> None:
    for kind in ("csv.gz", "jsonl", "parquet"):
        path = written(tmp_path / f"p.{kind}", named())
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(InputError, match="cannot be read; it may be broken or truncated"):
            open_predictions(path).read_all()
    for name, array in (("z.npy", LOGITS), ("z.npz", {"logits": LOGITS, "target": TARGET})):
        np.save(tmp_path / name, array) if name == "z.npy" else np.savez(tmp_path / name, **array)
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(InputError, match="truncated"):
            open_predictions(tmp_path / name, kind="logits")
    path.chmod(0)
    missing = tmp_path / "nowhere.csv"
    with pytest.raises(InputError, match="nowhere.csv does not exist"):
        open_predictions(missing)


# Arrays


def test_pairs_of_npy(tmp_path: Path) -> None:
    for scores, labels in (
        ("test_logits", "test_labels"),
        ("logits", "y_true"),
        ("y_prob", "y_true"),
        ("probs_a", "target_a"),
    ):
        for old in tmp_path.iterdir():
            old.unlink()
        np.save(tmp_path / f"{scores}.npy", PROBS if "prob" in scores else LOGITS)
        np.save(tmp_path / f"{labels}.npy", TARGET)
        np.save(tmp_path / "other_labels.npy", TARGET)
        assert f"labels in {labels}.npy" in check(tmp_path / f"{scores}.npy")
    np.save(tmp_path / "mine.npy", LOGITS)
    check(tmp_path / "mine.npy", kind="logits", label=str(tmp_path / "other_labels.npy"))
    check(tmp_path / "mine.npy", kind="logits", label="other_labels.npy")
    with pytest.raises(InputError, match="`label` must name the .npy of the labels, but there is no nowhere.npy"):
        open_predictions(tmp_path / "mine.npy", kind="logits", label="nowhere.npy")
    with pytest.raises(InputError, match="has no labels"):
        open_predictions(tmp_path / "mine.npy", kind="logits").read_all()
    np.save(tmp_path / "target_b.npy", TARGET)
    (tmp_path / "target_b.npy").rename(tmp_path / "labels_a.npy")
    with pytest.raises(InputError, match="the labels may be in labels_a.npy or target_a.npy; choose one with `label`"):
        open_predictions(tmp_path / "probs_a.npy")


def test_arrays_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    np.savez(path, PROBS, TARGET)  # without names
    assert check(path) == "p.npz: probabilities of 3 classes (arr_0); labels in arr_1"
    np.savez(path, probs=frame().to_numpy(), y=np.array(NAMES)[TARGET], classes=np.array(NAMES), ids=np.arange(N))
    assert check(path) == "p.npz: probabilities of 3 classes (probs); labels in y (class names); ignored: ids"
    np.savez(path, prob=SHARE, label=TRUE)
    assert open_predictions(path).read_all()[1].tolist() == TRUE.astype(int).tolist()
    np.savez(path, logits=np.log(SHARE / (1 - SHARE))[:, None], label=TRUE.astype(np.uint8)[:, None])
    np.testing.assert_allclose(open_predictions(path).read_all()[0].softmax(1)[:, 1].numpy(), SHARE, rtol=1e-6)
    np.savez(path, logits=LOGITS, target=np.eye(3)[TARGET])
    with pytest.raises(InputError, match=r"target has shape .*; if it is one-hot, save its argmax\(1\)"):
        open_predictions(path)
    # Numbers in an npz are numbers of classes, whatever these are called: that is how run folders are written
    np.savez(path, logits=LOGITS, target=TARGET, classes=np.array(["2", "0", "1"]))
    check(path)


# Writing back


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_is_written_as_it_was_with_other_scores(tmp_path: Path, kind: str) -> None:
    more = {"id": [f"{i:03d}" for i in range(N)], "text": TEXT, "weight": DRAWS.random(N), "a;b": "ö"}
    table = named().assign(**more)
    if kind == "parquet":
        table.index = pd.Index([f"row {i}" for i in range(N)])
    file = open_predictions(written(tmp_path / f"p.{kind}", table))
    rewrite(file, tmp_path / f"q.{kind}", lambda logits: (logits / 2).log_softmax(1))
    expected = torch.from_numpy(np.log(PROBS) / 2).softmax(1).numpy()

    def read(name: str) -> pd.DataFrame:
        path = tmp_path / f"{name}.{kind}"
        if kind == "parquet":
            return pd.read_parquet(path)
        if kind.startswith("jsonl"):
            return pd.read_json(path, lines=True, dtype=False, precise_float=True)
        return pd.read_csv(path, sep="\t" if "tsv" in kind else ",", dtype={"id": str})

    before, after = read("p"), read("q")
    np.testing.assert_allclose(after[[f"prob_{name}" for name in NAMES]].to_numpy(), expected, rtol=1e-6, atol=1e-9)
    scores = [f"prob_{name}" for name in NAMES]
    pd.testing.assert_frame_equal(after.drop(columns=scores), before.drop(columns=scores))
    assert list(after.columns) == list(before.columns)
    if kind.endswith("gz"):
        assert gzip.decompress((tmp_path / f"q.{kind}").read_bytes())
    with pytest.raises(InputError, match=rf"q.txt must end in .{kind.partition('.')[0]}, like p.{kind}, or in .npz"):
        rewrite(file, tmp_path / "q.txt", lambda logits: logits)
    with pytest.raises(InputError, match="already exists"):
        rewrite(file, tmp_path / f"q.{kind}", lambda logits: logits)


def test_columns_that_change_their_kind_change_their_names(tmp_path: Path) -> None:
    for kind in ("csv", "parquet", "jsonl"):
        file = open_predictions(written(tmp_path / f"p.{kind}", named()))
        rewrite(file, tmp_path / f"q.{kind}", lambda logits: logits.log_softmax(1), kind="logits")
        assert "logits of 3 classes (columns logit_cat, logit_dog, logit_bird)" in check(tmp_path / f"q.{kind}")
    single = open_predictions(written(tmp_path / "s.csv", two("prob_spam", label=np.where(TRUE, "spam", "ham"))))
    rewrite(single, tmp_path / "t.csv", lambda logits: logits.log_softmax(1), kind="logits")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "t.csv")["logit_spam"], np.log(SHARE / (1 - SHARE)), rtol=1e-6)
    rewrite(single, tmp_path / "t.npz", lambda logits: logits)
    assert open_predictions(tmp_path / "t.npz").classes == ["ham", "spam"]


def test_semicolons_and_commas_are_written_as_they_were(tmp_path: Path) -> None:
    file = open_predictions(written(tmp_path / "p.csv", named(), sep=";", decimal=",", index=False))
    rewrite(file, tmp_path / "q.csv", lambda logits: logits)
    found = pd.read_csv(tmp_path / "q.csv", sep=";", decimal=",")
    np.testing.assert_allclose(found[frame().columns].to_numpy(), PROBS, rtol=1e-9)
    assert (tmp_path / "q.csv").read_text().startswith("prob_cat;prob_dog;prob_bird;label\n0,")


def test_labels_that_are_not_there_yet_do_not_matter_when_scores_are_rewritten(tmp_path: Path) -> None:
    for kind in ("csv", "jsonl", "parquet"):
        file = open_predictions(written(tmp_path / f"p.{kind}", frame().assign(label=None, text="x")))
        assert file.understood(labels=False).endswith("text, label")
        rewrite(file, tmp_path / f"q.{kind}", lambda logits: logits)


def test_other_arrays_of_an_npz_are_kept(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", logits=LOGITS, y=TARGET, classes=np.array(NAMES), ids=np.arange(N), names=np.array(TEXT))
    rewrite(open_predictions(tmp_path / "p.npz"), tmp_path / "q.npz", lambda logits: logits / 2)
    with np.load(tmp_path / "q.npz", allow_pickle=False) as found:
        assert set(found.files) == {"logits", "target", "classes", "ids", "names"}
        np.testing.assert_allclose(found["logits"], LOGITS / 2, rtol=1e-6)
        assert found["names"].tolist() == TEXT
    np.save(tmp_path / "p_logits.npy", LOGITS)
    rewrite(open_predictions(tmp_path / "p_logits.npy"), tmp_path / "q.npy", lambda logits: logits / 2)
    np.testing.assert_allclose(np.load(tmp_path / "q.npy"), LOGITS / 2, rtol=1e-6)
