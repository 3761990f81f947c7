"""The commands on files of predictions, as a user calls them."""

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from calibrant import functional as cal, posthoc, stats
from calibrant.cli import COMMANDS, console, main
from calibrant.predictions import open_predictions
from processes import PEAK

N, K = 400, 4


def data(n: int = N, k: int = K, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    logits = 4 * random.normal(size=(n, k)).astype(np.float32)
    return logits, (logits / 2 + random.gumbel(size=(n, k))).argmax(1)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, resamples: int = 20) -> int:
    """Exit code of a command; few resamples where the intervals do not matter."""
    if arguments and arguments[0] in ("evaluate", "calibrate", "card") and not {"--resamples", "--help"} & set(arguments):
        arguments = (*arguments, "--resamples", str(resamples))
    try:
        return main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


def save(path: str, seed: int = 0, **more: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logits, target = data(seed=seed)
    np.savez(path, logits=logits, target=target, **more)
    return logits, target


def test_evaluate_tells_what_the_functions_tell(here: Path, capsys) -> None:
    logits, target = save("p.npz", classes=np.array(["ant", "bee", "cat", "<script>"]))
    files = ["--output", "m.json", "--figure", "f.png", "--report", "r.html"]
    assert run("evaluate", "p.npz", *files, resamples=1000) == 0
    found = json.loads((here / "m.json").read_text())["files"][0]
    z, y = torch.from_numpy(logits), torch.from_numpy(target)
    for name, key in (("accuracy", "accuracy"), ("nll", "nll"), ("brier_score", "brier"), ("ece", "ece"), ("mce", "mce")):
        assert found[key] == pytest.approx(float(getattr(cal, name)(z, y)), rel=1e-6), name
    for name in ("adaptive_ece", "classwise_ece", "debiased_ece", "sweep_ece", "smooth_ece"):
        assert found[name] == pytest.approx(float(getattr(cal, name)(z, y)), abs=2e-3), name
    for name in ("ece", "debiased_ece", "nll", "accuracy"):
        exact = stats.bootstrap(name, z, y)
        ends = found["intervals"][name]
        assert ends["low"] == pytest.approx(exact.low, abs=0.02), name
        assert ends["high"] == pytest.approx(exact.high, abs=0.02), name
    assert found["calibration_test"]["p_value"] == pytest.approx(stats.calibration_test(z, y).p_value, abs=0.01)
    text = capsys.readouterr().out
    assert f"{100 * found['ece']:.2f} [{100 * found['intervals']['ece']['low']:.2f}, " in text
    assert "the model is overconfident. Chance alone does not explain this (p < 0.001)." in text
    assert (here / "f.png").read_bytes()[:4] == b"\x89PNG"
    page = (here / "r.html").read_text()
    assert "\\u003cscript>" in page  # in the page's data, as text; tests/report opens it in a browser
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", page)


@pytest.mark.parametrize(
    "kind", ["npz of probabilities", "csv", "csv with names", "parquet", "run", "Fortran", "compressed"]
)
def test_every_format_gives_the_same(here: Path, kind: str) -> None:
    logits, target = save("p.npz")
    probs = torch.from_numpy(logits).double().softmax(1).numpy()
    names, more = [f"prob_{name}" for name in "abcd"], []
    table = pa.table({**{name: probs[:, k] for k, name in enumerate(names)}, "label": target})
    path = {"csv": "q.csv", "csv with names": "q.csv", "parquet": "q.parquet", "run": "run"}.get(kind, "q.npz")
    if kind == "npz of probabilities":
        np.savez(path, probs=probs, labels=target.astype(np.uint8))
    elif kind == "csv":
        pa.csv.write_csv(table.rename_columns([*(str(k) for k in range(K)), "truth"]), path)
        more = ["--probs", "--label", "truth"]
    elif kind == "csv with names":
        pa.csv.write_csv(table.set_column(K, "label", pa.array(["abcd"[y] for y in target])), path)
    elif kind == "parquet":
        pa.parquet.write_table(table, path)
    elif kind == "run":
        (here / "run" / "predictions").mkdir(parents=True)
        np.savez(here / "run" / "predictions" / "test.npz", logits=logits, target=target)
    elif kind == "Fortran":
        np.savez(path, logits=np.asfortranarray(logits), target=target)
    else:
        np.savez_compressed(path, logits=logits.astype(">f8"), target=target.astype(np.float64))
    assert run("evaluate", "p.npz", "--output", "p.json") == 0
    assert run("evaluate", path, *more, "--output", "q.json") == 0
    a, b = (json.loads((here / name).read_text())["files"][0] for name in ("p.json", "q.json"))
    for name in ("samples", "accuracy", "nll", "ece", "classwise_ece"):
        assert a[name] == pytest.approx(b[name], rel=1e-6), name
    if kind == "csv with names":
        assert [row["name"] for row in b["classes"]] == list("abcd")


def test_several_files_are_compared_sample_by_sample(here: Path, capsys) -> None:
    logits, target = save("a.npz")
    np.savez("b.npz", logits=logits / 2, target=target)
    assert run("evaluate", "a.npz", "b.npz", "--output", "m.json", resamples=1000) == 0
    content = json.loads((here / "m.json").read_text())
    z, y = torch.from_numpy(logits), torch.from_numpy(target)
    found, exact = content["comparisons"][0]["measures"], stats.compare("ece", z, z / 2, y)
    assert found["ece"]["difference"] == pytest.approx(exact.difference, rel=1e-6)
    assert found["ece"]["low"] == pytest.approx(exact.low, abs=0.01)
    assert found["ece"]["p_value"] < 0.05
    nll = stats.compare("nll", z, z / 2, y)
    assert found["nll"]["difference"] == pytest.approx(nll.difference, rel=1e-4)
    assert found["nll"]["low"] == pytest.approx(nll.low, abs=0.02)
    assert found["accuracy"]["difference"] == 0
    assert found["accuracy"]["p_value"] == 1
    assert "a - b" in capsys.readouterr().out
    np.savez("c.npz", logits=logits, target=(target + 1) % K)
    assert run("evaluate", "a.npz", "c.npz") == 2
    assert "have different labels" in capsys.readouterr().err


def test_dense_predictions_are_resampled_by_image(here: Path) -> None:
    random = np.random.default_rng(0)
    logits = 3 * random.normal(size=(12, 3, 9, 8)).astype(np.float32)
    target = (logits / 2 + random.gumbel(size=logits.shape)).argmax(1)
    target[:, :2] = 255
    np.savez("d.npz", logits=logits, target=target)
    assert run("evaluate", "d.npz", "--ignore-index", "255", "--output", "m.json", resamples=1000) == 0
    found = json.loads((here / "m.json").read_text())["files"][0]
    exact = stats.bootstrap("ece", torch.from_numpy(logits), torch.from_numpy(target), ignore_index=255)
    assert found["samples"] == 12 * 7 * 8
    assert found["ece"] == pytest.approx(exact.value, rel=1e-6)
    assert found["intervals"]["ece"]["low"] == pytest.approx(exact.low, abs=2e-3)
    assert found["intervals"]["ece"]["high"] == pytest.approx(exact.high, abs=2e-3)
    assert found["calibration_test"] is None


def test_head_medium_and_tail(here: Path, capsys) -> None:
    save("p.npz")
    Path("counts.csv").write_text("class,count\n0,500\n1,50\n2,50\n3,5\n")
    assert run("evaluate", "p.npz", "--counts", "counts.csv", "--output", "m.json") == 0
    groups = json.loads((here / "m.json").read_text())["files"][0]["groups"]
    assert list(groups) == ["head", "medium", "tail"]
    logits, target = data()
    head = target == 0
    assert groups["head"]["ece"] == pytest.approx(
        float(cal.ece(torch.from_numpy(logits[head]), torch.from_numpy(target[head])))
    )
    assert "head (" in capsys.readouterr().out
    Path("counts.csv").write_text("1\n2\n")
    assert run("evaluate", "p.npz", "--counts", "counts.csv") == 2
    assert "has 2 counts, but there are 4 classes" in capsys.readouterr().err


def test_calibrate_and_apply(here: Path, capsys) -> None:
    save("v.npz")
    logits, target = save("t.npz", seed=1)
    assert run("calibrate", "v.npz", "t.npz", "--method", "temperature", "isotonic", "--figure", "f.png") == 0
    text = capsys.readouterr().out
    assert "never changes the predicted class; temperature_ = 2." in text
    content = json.loads((here / "calibrator" / "metrics.json").read_text())
    by_name = {row["name"]: row for row in content["files"]}
    assert list(by_name) == ["before", "temperature", "isotonic"]
    fitted = posthoc.TemperatureScaling().fit(*(torch.from_numpy(x) for x in data()))
    expected = float(cal.ece(fitted.transform(torch.from_numpy(logits)), torch.from_numpy(target)))
    assert by_name["temperature"]["ece"] == pytest.approx(expected, rel=1e-6)
    assert by_name["temperature"]["ece"] < by_name["before"]["ece"] / 1.8

    assert run("apply", "calibrator/temperature", "t.npz", "-o", "new.npz") == 0
    assert run("apply", "calibrator/temperature", "t.npz", "--output", "probs.npz", "--as", "probs") == 0
    with np.load("new.npz", allow_pickle=False) as new, np.load("probs.npz", allow_pickle=False) as probs:
        np.testing.assert_allclose(new["logits"], fitted.transform(logits), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(probs["probs"], fitted.predict_proba(logits), rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(new["target"], target)
    assert run("evaluate", "new.npz", "--output", "m.json") == 0
    assert json.loads((here / "m.json").read_text())["files"][0]["ece"] == pytest.approx(expected, rel=1e-5)


def test_auto_says_why(here: Path, capsys) -> None:
    save("v.npz")
    save("t.npz", seed=1)
    assert run("calibrate", "v.npz", "t.npz", "--method", "auto", "--out", "auto") == 0
    text = capsys.readouterr().out
    chosen = re.search(r"best: (\S+), which has the lowest held-out NLL", text)
    assert chosen
    scores = json.loads((here / "auto" / "metrics.json").read_text())["cross_validated_nll"]
    assert min(scores, key=scores.get) == chosen[1]
    assert posthoc.load("auto").key == chosen[1]
    logits, target = (torch.from_numpy(x) for x in data())
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0)).tensor_split(5)
    total = 0.0
    for i, held in enumerate(order):
        rest = torch.cat([fold for j, fold in enumerate(order) if j != i])
        fitted = posthoc.TemperatureScaling().fit(logits[rest], target[rest])
        total += len(held) * float(cal.nll(fitted.transform(logits[held]), target[held])) / N
    assert scores["temperature"] == pytest.approx(total, rel=1e-6)


def test_all_are_ranked(here: Path, capsys) -> None:
    save("v.npz")
    save("t.npz", seed=1)
    assert run("calibrate", "v.npz", "t.npz", "--method", "all", "--folds", "2", "--resamples", "20", "--out", "all") == 0
    text = capsys.readouterr().out
    found = json.loads((here / "all" / "metrics.json").read_text())
    scores = found["cross_validated_nll"]
    assert set(scores) == {"none"} | {key for key, entry in posthoc.CALIBRATORS.items() if not entry.dense}
    best = min(scores, key=scores.get)
    assert f"best: {best}, which has the lowest held-out NLL" in text
    gain = 100 * (1 - scores["temperature"] / scores["none"])
    assert re.search(rf"temperature\s+{scores['temperature']:.4f}\s+{gain:.1f}\s", text)
    before, after = (next(own for own in found["files"] if own["name"] == name) for name in ("before", "temperature"))
    assert f"NLL {100 * (after['nll'] / before['nll'] - 1):+.1f}%" in text


def test_auto_leaves_a_calibrated_network_alone(here: Path, capsys) -> None:
    random = np.random.default_rng(3)
    for name in ("v.npz", "t.npz"):
        logits = 2 * random.normal(size=(150, 4))
        np.savez(name, logits=logits, target=(logits + random.gumbel(size=logits.shape)).argmax(1))
    code = run("calibrate", "v.npz", "t.npz", "--method", "auto")
    assert code == 0
    text = capsys.readouterr().out
    scores = json.loads((here / "calibrator" / "metrics.json").read_text())["cross_validated_nll"]
    assert ("best: none" in text) == (min(scores, key=scores.get) == "none")


@pytest.mark.usefixtures("here")
def test_labels_beside_npy_files(capsys) -> None:
    for name, seed in (("a", 0), ("c", 1)):
        logits, target = data(seed=seed)
        np.save(f"{name}.npy", logits)
        np.save(f"{name}_y.npy", target)
    assert run("evaluate", "a.npy", "a_y.npy", "--logits") == 2
    assert "a.npy has no labels: pass --label with the .npy that holds them" in capsys.readouterr().err
    assert run("evaluate", "a_y.npy") == 2
    assert "a_y.npy holds one integer per sample, like labels; name the scores first, and pass --label a_y.npy" in (
        capsys.readouterr().err
    )
    assert run("calibrate", "a.npy", "c.npy", "--logits", "--label", "a_y.npy") == 2
    assert (
        "a.npy and c.npy would both take their labels from a_y.npy; name those of the test predictions with --test-label"
        in (" ".join(capsys.readouterr().err.split()))
    )
    assert run("calibrate", "a.npy", "c.npy", "--logits", "--label", "a_y.npy", "--test-label", "c_y.npy") == 0
    assert "labels in c_y.npy" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_rounded_probabilities_are_calibrated(capsys) -> None:
    for name, seed in (("v.csv", 0), ("t.csv", 1)):
        logits, target = data(seed=seed)
        probs = np.exp(3 * logits - np.logaddexp.reduce(3 * logits, axis=1, keepdims=True)).round(4)
        assert (probs == 0).any()
        pd.DataFrame(probs, columns=[f"prob_{k}" for k in range(K)]).assign(label=target).to_csv(name, index=False)
    assert run("calibrate", "v.csv", "t.csv", "--method", "all", "--folds", "2", "--out", "fitted") == 0
    said = capsys.readouterr().out
    assert "v.csv: probabilities are rounded to 4 decimals; zeros are read as 0.00005" in said
    assert "inf" not in said
    assert run("apply", "fitted/temperature", "t.csv", "--out", "applied.csv") == 0
    assert pd.read_csv("applied.csv").iloc[:, :K].to_numpy().min() > 1e-6


def test_fitting_and_measuring_on_the_same_data_has_to_be_asked_for(here: Path, capsys) -> None:
    save("v.npz")
    save("copy.npz")
    for test in ("v.npz", "copy.npz"):
        assert run("calibrate", "v.npz", test) == 2
        assert "hold the same predictions" in capsys.readouterr().err
    assert not (here / "calibrator").exists()
    assert run("calibrate", "v.npz", "copy.npz", "--same-data") == 0
    assert json.loads((here / "calibrator" / "metrics.json").read_text())["same_data"] is True


def test_nothing_is_overwritten_without_force(here: Path, capsys) -> None:
    save("v.npz")
    save("t.npz", seed=1)
    for command in (
        ["calibrate", "v.npz", "t.npz"],
        ["apply", "calibrator", "t.npz", "-o", "out.npz"],
    ):
        assert run(*command) == 0
        before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
        capsys.readouterr()
        assert run(*command) == 2
        assert "already exists; choose another name, or pass --force to replace it" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before
        assert run(*command, "--force") == 0
    assert not list(here.rglob(".*")), "temporary files are left"


def test_evaluate_writes_what_is_named_and_replaces_it(here: Path, capsys) -> None:
    save("t.npz", seed=1)
    assert run("evaluate", "t.npz") == 0
    assert "wrote" not in capsys.readouterr().out
    assert [path.name for path in here.iterdir()] == ["t.npz"]
    command = ["evaluate", "t.npz", "--output", "new/m.json", "--figure", "f.svg", "--report", "r.html"]
    assert run(*command) == 0
    names = ("new/m.json", "f.svg", "r.html")
    text = capsys.readouterr().out
    assert all(f"wrote {name}\n" in text for name in names)
    before = json.loads((here / "new/m.json").read_text())
    for name in names:
        (here / name).write_text("of yesterday")
    assert run(*command) == 0
    assert json.loads((here / "new/m.json").read_text()) == before
    assert (here / "f.svg").read_text().startswith("<?xml")
    assert (here / "r.html").read_text().startswith("<!doctype html>")
    assert not list(here.rglob(".*")), "temporary files are left"


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--output", "run/metrics.json"),
        ("--output", "run/predictions/mine.json"),
        ("--report", "run/history.csv"),
        ("--figure", "run/ood-noise.png"),
    ],
)
def test_files_of_a_run_are_refused(here: Path, capsys, monkeypatch: pytest.MonkeyPatch, option: str, name: str) -> None:
    (here / "run" / "predictions").mkdir(parents=True)
    save("run/predictions/test.npz")
    (here / "run" / "recipe.yaml").write_text("epochs: 1\n")
    assert run("evaluate", "run", option, name) == 2
    assert f"{name} belongs to a run; choose another name" in sentence(capsys)
    monkeypatch.chdir((here / name).parent)  # by another name of the same file
    assert run("evaluate", str(here / "run"), option, Path(name).name) == 2
    assert "belongs to a run" in sentence(capsys)
    assert not (here / name).exists()
    assert run("evaluate", str(here / "run"), "--output", str(here / "run/mine.json")) == 0  # which no run ever writes


# Files as people have them


def frame(seed: int = 0) -> pd.DataFrame:
    logits, target = data(seed=seed)
    probs = torch.from_numpy(logits).double().softmax(1).numpy()
    table = pd.DataFrame(probs, columns=[f"prob_{name}" for name in "abcd"])
    return table.assign(text='a, "b"', label=["abcd"[y] for y in target])


def strict(path: Path) -> dict:
    """JSON by the standard, which has neither NaN nor infinity."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(path.read_text(), parse_constant=refuse)


def test_a_plain_data_frame_is_evaluated(here: Path, capsys) -> None:
    """Its index was once taken for a class, and --logits, the advice, gave an accuracy of 0."""
    table = frame()
    table.to_csv("p.csv")
    assert run("evaluate", "p.csv", "--output", "m.json") == 0
    found = strict(here / "m.json")["files"][0]
    assert found["accuracy"] == (table.iloc[:, :K].idxmax(axis=1) == "prob_" + table["label"]).mean()
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("p.csv: probabilities of 4 classes (columns prob_a, prob_b, prob_c, prob_d); labels in label")
    assert first.endswith("(unnamed), text")
    assert run("evaluate", "p.csv", "--logits") == 2
    assert "must be probabilities, not logits" in sentence(capsys)


def test_reading_options_do_what_the_arguments_do(here: Path) -> None:
    table = frame()
    table.round(2).assign(noise=0.5, label=0, truth=table["label"]).to_csv("p.csv", sep=";")
    options = ["--columns", "prob_*", "--label", "truth", "--labels-are", "names", "--normalise", "--probs"]
    assert run("evaluate", "p.csv", *options, "--output", "m.json") == 0
    found = strict(here / "m.json")["files"][0]
    best = table.round(2).iloc[:, :K].idxmax(axis=1)
    assert found["accuracy"] == pytest.approx((best == "prob_" + table["label"]).mean(), abs=0.01)  # ties
    spam = pd.DataFrame({"score": table["prob_a"], "y": np.where(table["label"] == "a", "spam", "ham")})
    spam.to_csv("s.csv", index=False)
    assert run("evaluate", "s.csv", "--probs", "--positive", "spam", "--output", "m.json") == 0
    right = (spam["score"] > 0.5) == (spam["y"] == "spam")
    assert strict(here / "m.json")["files"][0]["accuracy"] == right.mean()


def test_json_has_null_for_what_is_not_finite(here: Path, capsys) -> None:
    """A class without samples, and a true class of probability 0."""
    probs = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    np.savez("p.npz", probs=probs, target=np.array([0, 0, 1]), train_counts=np.array([5, 5, 500]))
    assert run("evaluate", "p.npz", "--output", "m.json", "--report", "r.html") == 0
    found = strict(here / "m.json")["files"][0]
    assert found["nll"] is None
    assert found["classes"][2]["accuracy"] is None
    assert "p: the NLL is infinite because a true class has probability 0." in capsys.readouterr().out
    assert run("calibrate", "p.npz", "p.npz", "--same-data") == 0
    strict(here / "calibrator" / "metrics.json")
    strict(here / "calibrator" / "calibrator.json")


@pytest.mark.usefixtures("here")
def test_apply_writes_the_format_it_reads(capsys) -> None:
    frame().to_csv("v.csv")
    table = frame(seed=1)
    table.to_csv("t.csv")
    assert run("calibrate", "v.csv", "t.csv") == 0
    capsys.readouterr()
    assert run("apply", "calibrator", "t.csv", "-o", "new.csv") == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("kept: (unnamed), text, label")
    found = pd.read_csv("new.csv", index_col=0)
    pd.testing.assert_frame_equal(found.iloc[:, K:], table.iloc[:, K:], check_dtype=False)
    expected = posthoc.load("calibrator").predict_proba(np.log(table.iloc[:, :K].to_numpy()))
    np.testing.assert_allclose(found.iloc[:, :K].to_numpy(), expected, rtol=1e-5, atol=1e-8)
    assert run("apply", "calibrator", "t.csv", "-o", "new.npz") == 0
    np.testing.assert_allclose(np.load("new.npz")["probs"], expected, rtol=1e-5, atol=1e-7)
    assert run("apply", "calibrator", "t.csv", "-o", "new.parquet") == 2
    assert "new.parquet must end in .csv, like t.csv, or in .npz" in sentence(capsys)
    table[[*table.columns[1::-1], *table.columns[2:]]].to_csv("other.csv")
    assert run("calibrate", "v.csv", "other.csv", "--force") == 2
    assert "class 0 is 'a' in v.csv, but 'b' in other.csv" in sentence(capsys)


@pytest.mark.usefixtures("here")
def test_a_missing_input_is_reported_before_an_existing_output(capsys) -> None:
    save("v.npz")
    save("t.npz", seed=1)
    assert run("calibrate", "v.npz", "t.npz") == 0
    assert run("apply", "calibrator", "t.npz", "-o", "out.npz") == 0
    capsys.readouterr()
    for command in (
        ["calibrate", "v.npz", "nowhere.npz"],
        ["calibrate", "nowhere.npz", "t.npz"],
        ["apply", "calibrator", "nowhere.npz", "-o", "out.npz"],
    ):
        assert run(*command) == 2
        assert "nowhere.npz does not exist" in sentence(capsys)


def test_counts_go_by_the_names_of_classes(here: Path, capsys) -> None:
    """As from ``value_counts()``, which puts the largest first."""
    frame().to_csv("p.csv")
    Path("counts.csv").write_text("label,count\nd,500\nb,50\na,40\nc,5\n")
    assert run("evaluate", "p.csv", "--counts", "counts.csv", "--output", "m.json") == 0
    groups = strict(here / "m.json")["files"][0]["groups"]
    assert groups["head"]["samples"] == (frame()["label"] == "d").sum()
    assert groups["tail"]["samples"] == (frame()["label"] == "c").sum()
    for text, message in (
        ("a,1\nb,2\nc,3\nz,4\n", "label 'z' is not one of the classes a, b, c, d"),
        ("a,1\na,2\nc,3\nd,4\n", "names a class twice"),
        ("1\n2\n-3\n4\n", "must hold sample counts, but has -3"),
        ("1\n,\n3\nx\n", "must hold one integer per line"),
    ):
        Path("counts.csv").write_text(text)
        capsys.readouterr()
        assert run("evaluate", "p.csv", "--counts", "counts.csv") == 2
        assert message in sentence(capsys)


# Bad input


def sentence(capsys) -> str:
    text = capsys.readouterr().err
    assert "Traceback" not in text
    lines = [line for line in text.strip().splitlines() if not line.startswith("calibrant: warning")]
    assert len(lines) == 1, text
    return lines[0]


Z, Y = data()
ROW = np.arange(N)
BAD = {
    "missing": ({}, "p.npz does not exist"),
    "no scores": (
        {"x": Z, "target": Y},
        "x may hold logits or probabilities; they do not lie between 0 and 1: pass --logits",
    ),
    "both": ({"logits": Z, "probs": Z, "target": Y}, "has several arrays of scores (logits, probs)"),
    "no labels": ({"logits": Z}, "has no labels"),
    "objects": ({"logits": Z.astype(object), "target": Y}, "logits holds Python objects, which are never"),
    "NaN": (
        {"logits": np.where(ROW[:, None] == 17, np.nan, Z), "target": Y},
        "row 17: has a score that is not a finite number",
    ),
    "label": ({"logits": Z, "target": np.where(ROW == 5, 9, Y)}, "row 5: has label 9, but there are 4 classes (0..3)"),
    "half a label": ({"logits": Z, "target": Y + 0.5}, "row 0: has a label that is not an integer"),
    "one class": ({"logits": Z[:, :1], "target": Y}, "a single score is for two classes, but the labels are"),
    "empty": ({"logits": Z[:0], "target": Y[:0]}, "holds no predictions: it has 0 rows"),
    "lengths": ({"logits": Z, "target": Y[:-1]}, "target has shape (399,), but logits of shape (400, 4) needs (400,)"),
    "negative": ({"probs": Z, "target": Y}, "row 0: has a negative probability; if these are logits"),
    "sum": ({"probs": np.full((3, 4), 0.3), "target": Y[:3]}, "row 0: adds up to 1.2, not to 1"),
    "ignored": ({"logits": Z, "target": np.full(N, -100)}, "there is nothing to measure"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_get_one_sentence(here: Path, capsys, name: str) -> None:
    arrays, message = BAD[name]
    if arrays:
        np.savez("p.npz", **arrays)
    assert run("evaluate", "p.npz", "--output", "m.json") == 2
    text = sentence(capsys)
    assert "p.npz" in text
    assert message in text
    assert not (here / "m.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a,b,label\n1,2,0\n",
            "columns a, b may hold logits or probabilities; they do not lie between 0 and 1: pass --logits",
        ),
        ("name,label\nx,0\n", "has no columns of scores, one for each class such as prob_cat or logit_cat; it has name"),
        ("logit_a,logit_b,label\n1,2,0\n3,,1\n", "row 1: column 'logit_b' is empty or NaN"),
        ("logit_a,logit_b,label\n1,2,0\n3,x,1\n", "row 1: column 'logit_b' holds 'x', which is not a number"),
        ("logit_a,logit_b,label\n1,2,a\n3,1,zebra\n", "row 1: label 'zebra' is not one of the classes a, b"),
        ("logit_a,logit_b\n1,2\n", "has no labels"),
        ("logit_a,logit_a,label\n1,2,0\n", "has column 'logit_a' twice"),
        ("", "p.csv is empty"),
        ("logit_a,logit_b,label\n", "holds no predictions"),
        ("logit_a,logit_b,label\n1,2,0,4\n", "cannot be read"),
    ],
)
def test_bad_tables_get_one_sentence(here: Path, capsys, text: str, message: str) -> None:
    Path("p.csv").write_text(text)
    assert run("evaluate", "p.csv", "--output", "m.json") == 2
    assert message in sentence(capsys)
    assert not (here / "m.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate"], "files"),
        (["evaluate", "p.npz", "--num-bins", "x"], "--num-bins must be an integer, got x"),
        (["evaluate", "p.npz", "--num-bins", "0"], "--num-bins must be at least 1"),
        (["evaluate", "p.npz", "--nonsense"], "evaluate has no option --nonsense"),
        (["evaluate", "p.npz", "--logits", "--probs"], "not both"),
        (["evaluate", "p.npz", "--scores", "zebra"], "has no array 'zebra'"),
        (["evaluate", "p.txt"], "does not exist"),
        (["evaluate", "p.npz", "--seed", "-1"], "--seed must be at least 0"),
        (["evaluate", "p.npz", "--seed", "9" * 30], "--seed must be at least 0 and at most"),
        (["evaluate", "p.npz", "--num-bins", "9" * 15], "--num-bins must be at least 1 and at most 100000"),
        (["evaluate", "p.npz", "--resamples", "1"], "--resamples must be at least 2"),
        (["evaluate", "p.npz", "--figure", "x.xyz"], "--figure must end in .png, .pdf or .svg, got x.xyz"),
        (["evaluate", "p.npz", "--output", "."], "is a folder"),
        (["evaluate", "p.npz", "--counts", "/dev/zero"], "must hold one integer per line"),
        (["evaluate", "p.npz", "--ignore-index", "9" * 30], "--ignore-index must be"),
        (["evaluate", "/dev/zero"], "/dev/zero"),
        (["evaluate", "zero.csv"], "zero.csv cannot be read twice"),
        (["evaluate", "fifo.csv"], "fifo.csv cannot be read twice"),
        (["evaluate", "empty.parquet"], "empty.parquet is empty"),
        (["evaluate", "[bold]x[/bold].csv"], "[bold]x[/bold].csv does not exist"),
        (["calibrate", "p.npz", "p.npz", "--seed", "-1"], "--seed must be at least 0"),
        (["calibrate", "p.npz", "p.npz", "--figure", "x"], "--figure must end in .png, .pdf or .svg, got x"),
        (["calibrate", "p.npz", "p.npz", "--method", "auto", "--same-data", "--folds", "0"], "--folds must be"),
        (["apply", "nowhere", "p.npz", "-o", ""], "nowhere does not exist"),
        (["evaluate", "."], "is not a run folder"),
        (["calibrate", "p.npz", "p.npz", "--method", "zebra"], "calibrator must be one of temperature"),
        (["calibrate", "p.npz", "q.npz"], "q.npz does not exist"),
        (["calibrate", "p.npz", "p.npz", "--method", "local-temperature"], "is for dense predictions"),
        (["apply", "nowhere", "p.npz", "-o", "x.npz"], "nowhere does not exist"),
        (["nonsense"], "nonsense"),
        ([], "no command given; choose from train, compare"),
    ],
)
@pytest.mark.usefixtures("here")
def test_bad_usage(capsys, arguments: list[str], message: str) -> None:
    save("p.npz")
    Path("zero.csv").symlink_to("/dev/zero")
    os.mkfifo("fifo.csv")
    Path("empty.parquet").touch()
    assert run(*arguments) == 2
    text = capsys.readouterr().err
    assert message in text
    assert "Traceback" not in text


@given(
    kind=st.sampled_from(["npz", "csv", "parquet"]),
    damage=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=6),
    cut=st.floats(0, 1),
)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_mangled_files_never_end_in_a_traceback(tmp_path_factory, capsys, kind, damage, cut) -> None:
    folder = tmp_path_factory.mktemp("mangled")
    logits, target = data(40)
    path = folder / f"p.{kind}"
    if kind == "npz":
        np.savez_compressed(path, logits=logits, target=target)
    else:
        table = pa.table({**{f"logit_{k}": logits[:, k] for k in range(K)}, "label": target})
        (pa.csv.write_csv if kind == "csv" else pa.parquet.write_table)(table, path)
    content = bytearray(path.read_bytes())
    for place, value in damage:
        content[int(place * (len(content) - 1))] = value
    path.write_bytes(content[: int(cut * len(content))] if cut < 0.5 else content)
    code = run("evaluate", str(path), "--resamples", "20", "--output", str(folder / "m.json"))
    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert code in (0, 2)
    if code == 2:
        assert text.startswith(("calibrant: ", "Traceback")), text
        assert len(text.strip().splitlines()) == 1
        assert not (folder / "m.json").exists()


def test_names_are_printed_as_they_are(here: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """No [markup], which would be an error where it does not close, and no :emoji:."""
    monkeypatch.setattr(console.err, "_force_terminal", True)  # so that there is a progress bar
    for folder, name in (("[bold]x[", "bold].csv"), ("[", "red].csv"), ("", ":cat:.csv"), ("", "p{x}\\.csv")):
        path = here / folder / name
        path.parent.mkdir(exist_ok=True)
        table = frame().rename(columns={"prob_a": "prob_[/a]", "prob_b": "prob_:dog:", "prob_c": "prob_{c}\\"})
        table.assign(label=[1, 2] * (N // 2)).to_csv(path)
        shown = str(Path(folder) / name)
        assert run("evaluate", shown, "--output", "m.json") == 0
        text = capsys.readouterr().out
        for part in (Path(shown).stem, "[/a]", ":dog:", "{c}\\"):
            assert part in text, part


def test_pickles_are_never_loaded(here: Path, capsys) -> None:
    """An array of objects whose unpickling would leave a trace."""

    class Trace:
        def __reduce__(self):
            return Path("trace").write_text, ("run",)

    np.savez("p.npz", logits=np.array([[Trace(), 1]], dtype=object), target=np.zeros(1, dtype=int))
    assert run("evaluate", "p.npz") == 2
    assert "never loaded" in sentence(capsys)
    assert not (here / "trace").exists()


# Scale, help


LARGE = """
from calibrant.cli import main
main(["evaluate", "small.npz", "--output", "small.json", "--resamples", "20"])
before = peak()
main(["evaluate", "large.npz", "--output", "large.json", "--resamples", "20"])
print("grown", peak() - before)
"""


@pytest.mark.slow
def test_large_files_are_read_in_parts(here: Path) -> None:
    logits, target = data(2000, 50)
    np.savez("small.npz", logits=logits, target=target)
    with zipfile.ZipFile("large.npz", "w") as archive:  # 300 MB, the same rows again and again
        for name, array, type_ in (("logits", logits, "<f4"), ("target", target, "<i8")):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                header = {"descr": type_, "fortran_order": False, "shape": (750 * 2000, *array.shape[1:])}
                np.lib.format.write_array_header_1_0(stream, header)
                for _ in range(750):
                    stream.write(array.astype(type_).tobytes())
    result = subprocess.run([sys.executable, "-c", PEAK + LARGE], capture_output=True, text=True, check=True)
    assert float(re.search(r"grown (\S+)", result.stdout)[1]) < 200
    small, large = (json.loads((here / name).read_text())["files"][0] for name in ("small.json", "large.json"))
    assert large["samples"] == 1_500_000
    for name in ("ece", "nll", "accuracy", "classwise_ece"):
        assert large[name] == pytest.approx(small[name], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("here")
def test_examples_of_the_help_work(command: str, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    if command in ("compare", "leaderboard", "report", "tune"):  # drawing takes a while, and is tested elsewhere
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda _, path, **__: Path(path).write_bytes(b""))
    assert run(command, "--help") == 0
    example = re.search(r"^example:\n((?:  .*\n)+)", capsys.readouterr().out, re.MULTILINE)
    assert example
    if command == "apply":
        save("v.npz")
        save("test.npz", seed=1)
        assert run("calibrate", "v.npz", "test.npz") == 0
    lines = example[1].replace("\\\n", " ")
    for one in re.split(r"\n(?=  (?:calibrant|python) )", lines.rstrip()):
        words = shlex.split(re.sub(r"--seeds \d+", "--seeds 1", one))  # more are more of the same
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True)
        else:
            small = ["--data.limit", "60", "--epochs", "1"] if words[1] in ("train", "compare", "tune") else []
            small += ["--jobs", "1"] if words[1] in ("compare", "tune") else []  # starting processes takes longer
            small += ["--trials", "2"] if words[1] == "tune" else []
            assert run(*words[1:], *small) == 0


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys; from calibrant.cli import main\n"
    code += "try: main(['evaluate', '--help'])\nfinally: assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.usefixtures("here")
def test_labels_may_be_left_out_when_applying() -> None:
    save("v.npz")
    logits, _ = save("t.npz", seed=1)
    assert run("calibrate", "v.npz", "t.npz") == 0
    np.savez("unlabelled.npz", logits=logits)
    assert run("apply", "calibrator", "unlabelled.npz", "-o", "out.npz") == 0
    file = open_predictions("out.npz")
    assert not file.has_target
    assert next(iter(file.chunks())).logits.shape == (N, K)


def test_a_reader_that_leaves_does_not_stop_the_command(tmp_path: Path) -> None:
    """As in ``calibrant evaluate predictions.npz | head -1``: what was asked for is still written."""
    logits = torch.randn(200, 3)
    np.savez(tmp_path / "some.npz", logits=logits.numpy(), labels=logits.argmax(1).numpy())
    child = os.fork()
    if not child:
        code = 1
        try:
            reading, writing = os.pipe()
            os.close(reading)
            os.dup2(writing, 1)
            sys.stdout = os.fdopen(1, "w")
            where = str(tmp_path / "numbers.json")
            code = main(["evaluate", str(tmp_path / "some.npz"), "--resamples", "20", "--out", where])
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (tmp_path / "numbers.json").exists()
