"""Folders of runs and studies: what is written is what is read."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrant.audit import Audit, audit
from calibrant.errors import InputError
from calibrant.files import finite
from calibrant.recipes import Recipe
from calibrant.records import to_plain
from calibrant.runs import (
    Detection,
    Environment,
    JobRecord,
    OODResult,
    Run,
    RunFolder,
    RunResult,
    ShiftRecord,
    ShiftResult,
    StudyFolder,
    StudyResult,
    Summary,
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """Of four classes, one of which nobody belongs to, so that some of its numbers are not numbers."""
    path = tmp_path_factory.mktemp("measured") / "test.npz"
    random = np.random.default_rng(0)
    logits = 3 * random.normal(size=(60, 4))
    np.savez(path, logits=logits, target=np.arange(60) % 3, train_counts=np.array([500, 50, 5, 5]))
    found = audit(path, resamples=20)
    assert math.isnan(found.classes[3].accuracy)
    return found


@pytest.fixture
def result(measured: Audit) -> RunResult:
    after = replace(measured, name="test after temperature", values={**measured.values, "ece": math.nan})
    return RunResult("digits", "ce", 3, 10, "last checkpoint, epoch 10 of 10", 123, measured, measured, 1.5, after)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "run")
    found.write_recipe(Recipe.load("digits", seed=3))
    return found


def same(a: object, b: object) -> bool:
    """Equal where NaN equals NaN."""
    return type(a) is type(b) and finite(to_plain(a)) == finite(to_plain(b))


# Runs


def test_results_are_read_as_they_were_written(folder: RunFolder, result: RunResult) -> None:
    assert (folder.started, folder.finished) == (True, False)
    with pytest.raises(InputError, match="run is not finished: run the same calibrant train command again to resume it"):
        folder.result()
    folder.write_result(result)
    found = folder.result()
    assert folder.finished
    assert same(found, result)
    assert type(found.test) is Audit
    assert type(found.test.classes[0]) is type(result.test.classes[0])
    assert found.at("before") is found.test
    assert found.at("after")["nll"] == result.test["nll"]
    run = Run.load(folder.path)
    assert (run.folder, run.recipe) == (folder, Recipe.load("digits", seed=3))
    assert same(run.result, result)
    assert run.test is run.result.test


def test_what_is_not_a_number_is_null_in_files(folder: RunFolder, result: RunResult) -> None:
    folder.write_result(result)
    content = json.loads((folder.path / "metrics.json").read_text(), parse_constant=pytest.fail)
    assert content["test_after_temperature"]["ece"] is None
    assert content["test"]["classes"][3]["accuracy"] is None
    found = folder.result()
    assert math.isnan(found.at("after")["ece"])
    assert math.isnan(found.test.classes[3].accuracy)


def test_a_result_is_shown(result: RunResult, folder: RunFolder) -> None:
    assert repr(result).startswith(f"RunResult(digits, ce, seed 3: accuracy, % {100 * result.test['accuracy']:.2f} [")
    page = result._repr_html_()
    assert "after temperature 1.50, by NLL" in page
    assert f"{100 * result.test['ece']:.2f} [" in page
    run = Run(folder, Recipe.load("digits"), result)
    assert run._repr_html_() == page
    assert repr(run) == f"Run({str(folder)!r}, {result!r})"


def test_recipe_environment_and_split(folder: RunFolder) -> None:
    assert folder.recipe() == Recipe.load("digits", seed=3)
    assert folder.recipe_text() == Recipe.load("digits", seed=3).to_yaml()
    assert folder.environment() is None
    assert folder.environment_text() == ""
    parts = {"train": {"samples": 5, "checksum": "abc"}}
    written = Environment(parts, [3, 2], "today", ["calibrant", "train"], 3, {"torch": "2"}, {"threads": 1}, ["tomorrow"])
    folder.write_environment(written)
    assert folder.environment() == written
    assert json.loads(folder.environment_text())["train_counts"] == [3, 2]
    folder.write_split({"train": np.arange(3), "test": np.arange(3, 5)})
    with np.load(folder.path / "split.npz") as found:
        assert {name: found[name].tolist() for name in found.files} == {"train": [0, 1, 2], "test": [3, 4]}


def test_history_and_what_was_learned(folder: RunFolder) -> None:
    assert (folder.history(), folder.learned(), folder.epochs_done()) == ([], {}, 0)
    rows = [{"epoch": 1, "train_loss": 2.5}, {"epoch": 1.5}, {"epoch": 2, "train_loss": math.nan, "ece": 0.125}]
    folder.write_history(rows, {})
    first, _, second = folder.history()
    assert first == {"epoch": 1.0, "train_loss": 2.5, "ece": None}  # which was not validated
    assert (second["epoch"], second["ece"]) == (2.0, 0.125)
    assert math.isnan(second["train_loss"])
    assert folder.epochs_done() == 2
    assert not (folder.path / "learned.npz").exists()
    folder.write_history(rows[:2], {"multipliers": np.ones((1, 3))})
    assert folder.epochs_done() == 1
    assert folder.learned()["multipliers"].tolist() == [[1.0, 1.0, 1.0]]
    assert folder.learned()["epoch"].tolist() == [1]  # if not given, as in older runs


def test_results_beyond_the_test_part(folder: RunFolder) -> None:
    assert (folder.ood(), folder.shift()) == ({}, None)
    seen = {"entropy": Detection(0.75, 0.7, 0.8, 0.5, 0.25)}
    unseen = {"entropy": replace(seen["entropy"], aupr=math.nan)}
    results = {
        name: OODResult(name, 5 if name == "noise" else None, "here", 10, 1.5, seen, unseen) for name in ("noise", "a/b")
    }
    folder.write_ood(results)
    found = folder.ood()
    assert list(found) == ["noise", "a/b"]
    assert all(same(found[name], results[name]) for name in results)
    assert (found["noise"].limit, found["a/b"].limit) == (5, None)
    assert math.isnan(found["noise"].at("after")["entropy"].aupr)
    assert found["noise"].at("before") == seen
    shift = ShiftResult(3, "generated", [ShiftRecord("fog", 2, 7, {"ece": 0.5, "nll": math.nan}, {"ece": 0.25, "nll": 1.0})])
    folder.write_shift(shift)
    assert same(folder.shift(), shift)
    assert folder.shift().results[0].key == ("fog", 2)
    assert folder.shift().results[0].at("after") == {"ece": 0.25, "nll": 1.0}


def test_names_of_unknown_data_become_names_of_files(folder: RunFolder) -> None:
    names = ["noise", "fog:5", "a/b", "a_b", "../a", "a b", "ä.npz", "own.npz", ""]
    files = [folder.ood_predictions(name) for name in names]
    assert len(set(files)) == len(names)
    assert {path.parent for path in files} == {folder.path / "predictions"}
    assert [path.name for path in files[:2]] == ["ood-noise.npz", "ood-fog_5.npz"]
    assert folder.ood_figure("noise") == folder.path / "ood-noise.png"
    assert all(folder.owns(path) for path in [*files, *(folder.ood_figure(name) for name in names)])


BROKEN = {
    "metrics.json": lambda folder: folder.result(),
    "environment.json": lambda folder: folder.environment(),
    "ood.json": lambda folder: folder.ood(),
    "shift.json": lambda folder: folder.shift(),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named(folder: RunFolder, name: str) -> None:
    path = folder.path / name
    for content, message in (
        ("{ broken", f"{name} is not valid JSON .*; delete it, and it will be written again"),
        ('{"recipe": "a"', f"{name} is not valid JSON"),
        ("[1, 2]", f"{name} should hold a JSON object, but holds list"),
        ('{"seed": "three"}', name),
        ('{"noise": 3}', name),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=message) as caught:
            BROKEN[name](folder)
        assert str(path) in str(caught.value)


def test_what_is_wrong_inside_is_named_by_its_place(folder: RunFolder, result: RunResult) -> None:
    folder.write_result(result)
    content = json.loads((folder.path / "metrics.json").read_text())
    content["test"]["bins"]["counts"][1] = "many"
    (folder.path / "metrics.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"metrics.json.test.bins.counts\[1\]: expected int, got 'many'"):
        folder.result()
    del content["test"]
    (folder.path / "metrics.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="metrics.json: test is missing"):
        folder.result()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("history.csv", b"epoch,ece\n0,zero\n", "history.csv cannot be read .*; train again, or delete it"),
        ("history.csv", b"epoch\n0,1,2\n", "history.csv cannot be read"),
        ("learned.npz", b"nothing", "learned.npz cannot be read .*; delete it"),
        ("recipe.yaml", b"epochs: [", "recipe.yaml cannot be read as YAML"),
    ],
)
def test_other_broken_files_are_named(folder: RunFolder, name: str, content: bytes, message: str) -> None:
    (folder.path / name).write_bytes(content)
    read = {"history.csv": folder.history, "learned.npz": folder.learned, "recipe.yaml": folder.recipe}[name]
    with pytest.raises(InputError, match=message) as caught:
        read()
    assert str(folder.path / name) in str(caught.value)


def test_states_of_a_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert (folder.started, folder.finished, folder.foreign) == (False, False, False)
    with pytest.raises(InputError, match="run is not a run folder: it has no recipe.yaml"):
        folder.require_finished()
    folder.path.mkdir()
    assert not folder.foreign
    (folder.path / "thesis.tex").write_text("...")
    assert folder.foreign
    assert not folder.owns(folder.path / "metrics.json")
    folder.write_recipe(Recipe())
    assert (folder.started, folder.foreign) == (True, False)
    owned = ["metrics.json", "recipe.yaml", "ood-noise.png", "shift.png", "checkpoints/last.ckpt", "figures/pixels.png"]
    assert all(folder.owns(folder.path / name) for name in owned)
    assert not any(folder.owns(folder.path / name) for name in ("thesis.tex", "mine/metrics.json", "report.html"))
    for name in owned:
        (folder.path / name).parent.mkdir(exist_ok=True)
        (folder.path / name).write_text("")
    folder.clear()
    assert [path.name for path in folder.path.iterdir()] == ["thesis.tex"]
    (tmp_path / "file").write_text("")
    assert RunFolder(tmp_path / "file").foreign


def test_folders_are_values(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a")
    assert folder == RunFolder(str(tmp_path / "a")) == RunFolder(folder) != RunFolder(tmp_path / "b")
    assert folder != tmp_path / "a"
    assert {folder: 1}[RunFolder(tmp_path / "a")] == 1
    assert (str(folder), repr(folder), folder.name) == (str(tmp_path / "a"), f"RunFolder({str(tmp_path / 'a')!r})", "a")
    assert Path(folder) == tmp_path / "a"
    assert Path(StudyFolder(StudyFolder(tmp_path))) == tmp_path


# Studies


def test_a_study_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    assert not folder.there
    with pytest.raises(InputError, match="study is not a study folder: it has no study.json"):
        folder.result()
    summaries = [
        Summary("ce", [0, 1], {"ece": [0.1, 0.2]}, {"ece": [0.05, math.nan]}, [1.5, 2.0]),
        Summary(
            "ls", [0], {"ece": [0.3]}, {"ece": [0.1]}, [1.0], {"ece": 0.5}, {"ece": {"difference": 0.1, "low": 0, "high": 1}}
        ),
    ]
    jobs = [JobRecord("ce", 0, "ce-seed0", "done"), JobRecord("ls", 1, "ls-seed1", "failed", "it diverged")]
    written = StudyResult("title", "digits", ["ece"], jobs, summaries, {"ce": {"vector": [0.1, 0.2]}})
    folder.write_result(written)
    found = folder.result()
    assert same(found, written)
    assert math.isnan(found["ce"].values("ece", "after")[1])
    assert found.methods == ["ce", "ls"]
    assert found["ls"].spread("ece") != found["ls"].spread("ece")
    assert all(map(math.isnan, found["ls"].interval("ece")))
    content = json.loads((tmp_path / "study/study.json").read_text())
    content["jobs"][0]["state"] = "lost"
    (tmp_path / "study/study.json").write_text(json.dumps(content))
    with pytest.raises(
        InputError, match=r"study.json.jobs\[0\].state: expected one of 'done', 'failed', 'missing', got 'lost'"
    ):
        folder.result()
    (tmp_path / "study/study.json").write_text("{")
    with pytest.raises(InputError, match="study.json is not valid JSON"):
        folder.result()


def test_runs_of_a_study(tmp_path: Path, result: RunResult) -> None:
    study = StudyFolder(tmp_path / "study")
    assert study.runs() == []
    for name in ("b", "a", "unfinished"):
        study.run(name).write_recipe(Recipe())
        if name != "unfinished":
            study.run(name).write_result(result)
    (study.path / "note.txt").write_text("")
    assert study.runs() == [study.run("a"), study.run("b")]
    study.write_table("md", "| a |")
    assert (study.path / "table.md").read_text() == "| a |"
