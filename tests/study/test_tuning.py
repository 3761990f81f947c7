"""Searches over hyper-parameters: what is searched, which samples score it, and what an interruption leaves."""

import itertools
import math
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant.cli import main
from calibrant.data import create, split_off
from calibrant.errors import InputError
from calibrant.functional import nll
from calibrant.plots import SearchPlot
from calibrant.recipes import Recipe
from calibrant.report import Report
from calibrant.runs import RunFolder, TrialRecord, TuningFolder, TuningResult
from calibrant.study import Tuning
from calibrant.study.proposals import Proposals
from calibrant.study.space import Dimension, losses_of, search_space, usual_value
from processes import started, waiting_after_an_epoch

QUICK: Any = {"epochs": 1, "data.limit": 60, "batch_size": 60}
MARGIN = {"loss.margin": (2, 20)}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def quick(**options: Any) -> Tuning:
    given = {"loss": "mbls", "space": MARGIN, "trials": 3, "seeds": 1, "out": "search", **QUICK, **options}
    return Tuning("digits-lt", **given)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search of one trial."""
    folder = tmp_path_factory.mktemp("tuning") / "search"
    quick(trials=1, out=folder).run()
    return folder


@pytest.fixture
def search(finished: Path, here: Path) -> Path:
    """The same search, to go on with."""
    return Path(shutil.copytree(finished, here / "search"))


# What is searched


@pytest.mark.parametrize(
    ("field", "given", "expected"),
    [
        ("loss.margin", "2..20", {"low": 2, "high": 20}),
        ("loss.margin", (2, 20), {"low": 2, "high": 20}),
        ("loss.weight", "log:1e-2..1", {"low": 0.01, "high": 1, "log": True}),
        ("loss.weight", ("log", 0.01, 1), {"low": 0.01, "high": 1, "log": True}),
        ("epochs", "2..20", {"low": 2, "high": 20, "whole": True}),
        ("model.width", "8..16", {"low": 8, "high": 16, "whole": True}),
        ("optimizer.momentum", "0..1", {"low": 0, "high": 1}),
        ("loss.margin", "5,10.5", {"choices": [5, 10.5]}),
        ("loss.margin", [5, 10], {"choices": [5, 10]}),
        ("optimizer.nesterov", "true,false", {"choices": [True, False]}),
        ("optimizer.lr", "log:1e-4..1e-1", {"low": 1e-4, "high": 0.1, "log": True}),
        ("schedule.milestones", "[3,4],[5]", {"choices": [[3, 4], [5]]}),
    ],
)
def test_ranges_and_lists(field: str, given: Any, expected: dict[str, Any]) -> None:
    losses = ["mbls"] if field.startswith("loss.") else None
    (found,) = search_space({field: given}, Recipe.load("digits-lt", loss="mbls", **{"loss.margin": 10}))
    assert found == Dimension(field, **{"choices": [], **expected}, losses=losses)


def test_options_of_the_chosen_loss() -> None:
    """``loss.margin`` concerns the losses that have one, and is of their type, not of the value they have."""
    recipe = Recipe.load("digits-lt", loss="cals-alm")
    space = {"loss": ["cals-alm", "adafocal", "mbls", "ls"], "loss.margin": (2, 20), "adafocal.num_bins": (5, 50)}
    space |= {"cals-alm.penalty": "phr, p2,p3"}
    loss, margin, bins, penalty = search_space(space, recipe)
    assert (loss.losses, margin.losses, bins.losses, penalty.losses) == (
        None,
        ["cals-alm", "mbls"],
        ["adafocal"],
        ["cals-alm"],
    )
    assert (margin.whole, bins.whole, penalty.choices) == (False, True, ["phr", "p2", "p3"])
    (_, margin) = search_space({"loss": ["mbls", "cals-alm"], "loss.margin": (2, 20)}, Recipe.load("digits-lt"))
    assert not margin.whole  # though the recipe's own loss has none


def proposed(space: dict[str, Any], count: int, sampler: str = "tpe", **fields: Any) -> list[dict[str, Any]]:
    """What a search tries, if the score is the sum of all numbers."""
    optuna = pytest.importorskip("optuna")
    recipe = Recipe.load("digits-lt", **{"loss": "mbls", **fields})
    dimensions = search_space(space, recipe)
    proposals = Proposals(dimensions, losses_of(dimensions, recipe), recipe, sampler)
    search = optuna.create_study()
    found: list[dict[str, Any]] = []
    while len(found) < count and (options := proposals.next(search)) is not None:
        search.enqueue_trial(options)
        trial = search.ask()
        found.append(proposals.choose(trial))
        search.tell(trial, sum(value for value in options.values() if isinstance(value, float)))
    return found


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_nothing_is_tried_twice(sampler: str) -> None:
    found = proposed({"loss.margin": [5.0, 10.0, 20.0]}, 9, sampler)
    assert sorted(options["loss.margin"] for options in found) == [5.0, 10.0, 20.0]
    assert sampler == "grid" or found[0] == {"loss.margin": 10.0}  # the usual one comes first
    found = proposed({"loss": ["mbls", "fl", "ce"], "fl.gamma": [1.0, 2.0], "epochs": (1, 4)}, 40, sampler)
    assert len({tuple(sorted(options.items())) for options in found}) == len(found) == 4 * (1 + 2 + 1)


def test_the_first_trials_leave_no_part_of_a_range_untried() -> None:
    found = proposed({"loss.margin": (2, 20), "loss.weight": ("log", 0.01, 1), "epochs": (1, 90)}, 10)
    for name, ends in (
        ("loss.margin", np.linspace(2, 20, 5)),
        ("loss.weight", np.geomspace(0.01, 1, 5)),
        ("epochs", [1, 23, 46, 68, 90]),
    ):
        counts, _ = np.histogram([options[name] for options in found], ends)
        assert counts.min() > 0, (name, counts)


def test_trials_follow_from_their_number_and_those_before() -> None:
    """A search that is interrupted goes on as it would have."""
    space = {"loss.margin": (2, 20), "loss.weight": ("log", 0.01, 1)}
    assert proposed(space, 14) == proposed(space, 14)
    assert proposed(space, 14) != proposed(space, 14, seed=1)
    later = proposed(space, 30)[-10:]
    assert np.mean([options["loss.margin"] for options in later]) < 7  # TPE has found where the sum is small


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "nothing to search"),
        ({"loss.margn": (2, 20)}, "loss.margn is not known; allowed are loss.margin"),
        ({"fl.gamma": (1, 5)}, "fl.gamma: fl is not one of the losses (mbls)"),
        ({"mbls.margn": (1, 5)}, "mbls.margn: mbls has no option 'margn'; did you mean 'margin'?"),
        ({"loss": ["mbls", "ls"], "loss.gamma": (1, 5)}, "none of the losses mbls, ls has an option 'gamma'"),
        ({"loss.margin": (1, 5), "mbls.margin": (1, 5)}, "loss.margin and mbls.margin are the same field"),
        ({"loss.margin": (1, 5), "loss.options.margin": (1, 5)}, "are the same field"),
        ({"seed": [1, 2]}, "seed cannot be searched"),
        ({"data.test_from_validation": [0.1, 0.5]}, "data.test_from_validation cannot be searched"),
        ({"data.limit": (50, 100)}, "data.limit cannot be searched"),
        ({"optimizer.learning_rate": (0.1, 1)}, "did you mean `optimizer.lr`"),
        ({"epochs": (0, 5)}, "epochs must be at least 1, got 0"),
        ({"loss.weight": (-1, 1)}, "weight must be at least 0"),
        ({"loss": ["mbls", "mblss"]}, "did you mean"),
        ({"loss.margin": "20..2"}, "the range 20..2 is empty"),
        ({"loss.margin": (2, math.inf)}, "the ends of a range must be finite, got 2..inf"),
        ({"loss.margin": "5..5"}, "5..5 is a single value"),
        ({"loss.margin": "2...20"}, "'2...20' is not a range"),
        ({"loss.margin": "auto,2..20"}, "a list cannot hold ranges"),
        ({"loss.margin": "2:20"}, "margin must be a number, got str '2:20'"),
        (["loss.margin=2..20"], "`space` must map fields to their values"),
        ({"loss.weight": "log:0..1"}, "must start above 0"),
        ({"loss.margin": "a..b"}, "'a..b' is not a range"),
        ({"loss.margin": ""}, "expected 2..20"),
        ({"loss.margin": "log:5"}, "expected 2..20"),
        ({"loss.margin": (1, 2, 3, 4)}, "a range is (low, high)"),
        ({"loss.margin": 5}, "expected 2..20"),
        ({"loss.margin": [5, 5]}, "listed twice"),
    ],
)
def test_what_cannot_be_searched_is_told_before_anything_trains(here: Path, space: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        Tuning("digits-lt", loss="mbls", space=space)
    assert message in str(error.value)
    assert not any(here.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "nell"}, "did you mean 'nll'"),
        ({"trials": 0}, "`trials` must be at least 1"),
        ({"repeats": 0}, "`repeats` must be at least 1"),
        ({"share": 0.99}, "`share` must be at least 0.05 and at most 0.9"),
        ({"sampler": "cma"}, "`sampler` must be one of 'tpe', 'random', 'grid'"),
        ({"sampler": "grid"}, "needs lists or whole numbers"),
        ({"pruner": "best"}, "`pruner` must be one of 'none', 'median', 'hyperband'"),
        ({"pruner": "median", "by": "sweep_ece"}, "needs a measure that is known after every epoch"),
        ({"seeds": 0}, "`seeds` must be a number of at least 1"),
        ({"loss": "mbl"}, "did you mean 'mbls'"),
        ({"by": "top_k_accuracy"}, "`by`"),
        ({"by": "auroc"}, "`by`"),
        ({"data.test_from_validation": 0.5}, "`data.test_from_validation` is set by the search itself"),
        ({"space": {"epochs": (1, 101), "batch_size": (1, 101)}, "sampler": "grid"}, "more than 10,000 combinations"),
    ],
)
def test_what_makes_no_sense_is_refused(here: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        quick(**options)
    assert message in str(error.value)
    assert not any(here.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"space": {"trainer.precisionn": [16, 32]}}, "precisionn"),
        ({"space": {"model.wdth": [8, 16]}}, "wdth"),
        ({"by": "mean_iou"}, "`by` mean_iou is for segmentation only"),
        ({"data": {"name": "cifar10", "root": "nowhere"}}, "nowhere"),
    ],
)
def test_what_needs_the_data_is_told_before_anything_is_written(here: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, OSError)) as error:
        quick(**options).run()
    assert message in str(error.value)
    assert not any(here.iterdir())


def test_usual_values() -> None:
    recipe = Recipe.load("newsgroups20", loss="cals-alm", **{"optimizer.lr": 0.5})
    assert usual_value("optimizer.lr", recipe) == 0.5
    assert usual_value("loss.margin", recipe) == 6.0  # of the recipe, for this method
    assert usual_value("cals-alm.margin", recipe) == 6.0
    assert usual_value("loss.rho_init", recipe) == 1.0  # of the loss
    assert usual_value("fl.gamma", recipe) == 3.0
    assert usual_value("loss.nothing", recipe) is None


# Which samples it is scored on


def test_the_validation_set_is_divided_by_class_and_the_test_set_is_not_touched() -> None:
    whole = Recipe.load("digits-lt").load_data()
    parts = Recipe.load("digits-lt", **{"data.test_from_validation": 0.25}).load_data()
    learned, scored = parts.validation, parts.test
    assert (len(learned), len(scored)) == (150, 50)
    assert scored.counts(10) == [5] * 10
    seen = {part.x[i].numpy().tobytes() for part in (learned, scored) for i in range(len(part))}
    assert seen == {whole.validation.x[i].numpy().tobytes() for i in range(200)}
    assert not seen & {whole.test.x[i].numpy().tobytes() for i in range(len(whole.test))}
    indices = torch.cat([parts.split["validation"], parts.split["test"]])
    assert torch.equal(indices.sort().values, whole.split["validation"].sort().values)
    assert torch.equal(parts.train.x, whole.train.x)


def test_rare_classes_are_divided_as_far_as_they_go() -> None:
    y = torch.tensor([0] * 40 + [1] * 4 + [2])
    kept, out = split_off(y, 0.9, seed=0, per_class=True)
    assert [int((y[kept] == k).sum()) for k in range(3)] == [4, 1, 1]
    assert [int((y[out] == k).sum()) for k in range(3)] == [36, 3, 0]


def test_no_run_is_tested_on_what_another_has_seen(here: Path) -> None:
    """Digits are split anew for every seed, unless a search fixes the split."""
    tuning = quick(trials=1, repeats=2, seeds=[0, 5])
    tuning.run()
    assert Recipe.load("digits-lt").data.seed is None
    assert Recipe.load(here / "search/best.yaml").data.seed == 0

    def samples(path: Path, parts: tuple[str, ...]) -> set[bytes]:
        recipe = RunFolder(path).recipe()
        data = Recipe.load(recipe, **{"data.limit": None}).load_data()
        return {image.numpy().tobytes() for part in parts for image in data.part(part).x}

    seen = [samples(path, ("train", "validation", "test")) for path in (here / "search/trials").iterdir()]
    tested = [samples(path, ("test",)) for path in (here / "search/best-trial000").glob("mbls-*")]
    assert (len(seen), len(tested)) == (2, 2)
    twice = {x.numpy().tobytes() for x in create("digits").test.x} & {x.numpy().tobytes() for x in create("digits").train.x}
    assert not set.union(*seen) & set.union(*tested) - twice


def test_too_few_to_divide() -> None:
    data = create("digits").limited(1)
    with pytest.raises(InputError, match="a validation set of 1 samples is too small to be divided"):
        data.tested_on_validation(0.5)


# A search


@pytest.mark.slow
def test_a_search_from_the_command_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The best of its trials is the one with the lowest NLL of its own predictions, and is then measured on the test set."""
    words = [
        "tune",
        "digits-lt",
        "--loss",
        "mbls",
        "--space",
        "loss.margin=2..20",
        "mbls.weight=log:0.01..1",
        "--trials",
        "4",
    ]
    words += ["--epochs", "1", "--data.limit", "120", "--batch_size", "60", "--seeds", "2", "--out", "search", "--report"]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "trial 0: loss.margin=10, mbls.weight=0.1: NLL" in told.err  # the recipe's own options come first
    folder = TuningFolder("search")
    result = folder.result()
    assert [trial.state for trial in result.trials] == ["done"] * 4
    for trial in result.trials:
        run = RunFolder(here / "search" / trial.folders[0])
        assert trial.score == pytest.approx(float(nll(*run.open("test").read_all())), abs=1e-6)
        assert run.recipe().data.test_from_validation == 0.5
        assert run.recipe().loss.options == {"margin": trial.options["loss.margin"]}
        assert run.recipe().methods["mbls"] == {"weight": trial.options["mbls.weight"]}
    best = min(result.trials, key=lambda trial: trial.score)
    assert result.best == best
    recipe = Recipe.load(folder.recipe)
    assert (recipe.data.test_from_validation, recipe.loss.options["margin"]) == (0.0, best.options["loss.margin"])
    study = folder.best(best.number).result()
    assert [(job.method, job.seed, job.state) for job in study.jobs] == [("mbls", 0, "done"), ("mbls", 1, "done")]
    assert "on the test set, with the whole validation set" in told.out
    table = (here / "search/trials.md").read_text()
    assert table.startswith("digits-lt, mbls: 4 trials, ranked by NLL on ")
    assert table.splitlines()[4].split("|")[1].strip() == str(best.number)
    assert len((here / "search/trials.csv").read_text().splitlines()) == 5
    assert (here / "search/search.png").stat().st_size > 5000
    page = (here / "search/report.html").read_text()
    assert "How the options were chosen" in page
    assert main(["train", "search/best.yaml", "--epochs", "1", "--out", "again", "--quiet"]) == 0


def test_a_search_goes_on_where_it_was_interrupted(here: Path) -> None:
    """Finished trials are kept, one that was running is finished first, and more trials continue a finished search."""
    first = quick(trials=2)
    stopped: list[str] = []

    def stop(job: Any) -> None:
        stopped.append(job.method)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.run(tell=stop)
    metrics = here / "search/trials/trial000-seed0/metrics.json"
    before = metrics.stat().st_mtime_ns
    first._search.ask()  # a trial that was chosen, but of which nothing is there
    second = quick(trials=2)
    result = second.run()
    assert [trial.number for trial in result.trials] == [0, 1]
    assert metrics.stat().st_mtime_ns == before
    more = quick(trials=4).run()
    assert [trial.score for trial in more.trials[:2]] == [trial.score for trial in result.trials]
    assert len({trial.options["loss.margin"] for trial in more.trials}) == 4  # not the same random numbers again


def test_another_search_in_the_same_folder_is_refused(search: Path) -> None:
    for options, what in (
        ({"space": {"loss.margin": (2, 30)}}, "space was loss.margin=2..20, now loss.margin=2..30"),
        ({"by": "ece"}, "by was nll, now ece"),
        ({"share": 0.3}, "share was 0.5, now 0.3"),
        ({"pruner": "median"}, "pruner was none, now median"),
    ):
        with pytest.raises(InputError, match=r"holds another search") as error:
            quick(**options).run()
        assert what in str(error.value)
    with pytest.raises(InputError, match="over another recipe .optimizer.lr was 0.002, now 0.1."):
        quick(**{"optimizer.lr": 0.1}).run()
    (search / "mine.txt").write_text("not the search's")
    assert quick(by="ece", trials=1).run(force=True).by == "ece"
    assert (search / "mine.txt").exists()


def test_options_of_every_loss_of_a_search_identify_it(here: Path) -> None:
    del here
    space = {"loss": ["ce", "mbls"], "mbls.margin": (2, 20)}
    quick(loss="ce", space=space, trials=1).run()
    with pytest.raises(InputError, match="over another recipe .methods.mbls.weight"):
        quick(loss="ce", space=space, trials=2, **{"mbls.weight": 50}).run()


def test_files_of_others_are_neither_deleted_nor_replaced(here: Path) -> None:
    for name in ("best.yaml", "report.html", "trials/important.txt", "best-trial-notes/a.txt", "trials.xlsx"):
        path = here / "search" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    before = sorted((here / "search").rglob("*"))
    for force in (False, True):
        with pytest.raises(InputError, match="search holds other files, and no search"):
            quick(trials=1).run(force=force)
    assert sorted((here / "search").rglob("*")) == before
    for name in ("best.yaml", "report.html"):
        (here / "search" / name).unlink()
    TuningFolder(here / "search").journal.write_text("")
    TuningFolder(here / "search").clear()
    assert {path.name for path in (here / "search").iterdir()} == {"trials", "best-trial-notes", "trials.xlsx"}


def test_interrupted_before_its_first_trial_it_starts_over(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"space": {"loss.margin": [5.0, 10.0, 15.0]}, "sampler": "grid", "trials": None}
    first = quick(**options)
    assert first.trials == 3
    stop = iter([None, None, KeyboardInterrupt])
    optuna = pytest.importorskip("optuna")
    note = optuna.Study.set_user_attr

    def interrupted(*given: Any, **named: Any) -> None:
        if (error := next(stop)) is not None:
            raise error
        note(*given, **named)

    monkeypatch.setattr(optuna.Study, "set_user_attr", interrupted)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert sorted(trial.options["loss.margin"] for trial in quick(**options).run().trials) == [5.0, 10.0, 15.0]


def test_a_truncated_journal(search: Path) -> None:
    """A full disk leaves half a line."""
    score = quick(trials=1).result.trials[0].score
    journal = search / "trials.log"
    with journal.open("a") as file:
        file.write('{"op_code": 5, "wor')
    again = quick(trials=2).run()
    assert (again.trials[0].score, len(again.trials)) == (score, 2)
    journal.write_text("no journal\n")
    with pytest.raises(InputError, match=r"trials.log is damaged .*; `force=True` starts over"):
        quick(trials=2).run()


@pytest.mark.usefixtures("_forked_workers")
def test_a_killed_worker_does_not_use_up_its_trial(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = quick(trials=1, loss="own_code.Deadly", space={"loss.scale": [1.0]}, allow_code=True)
    monkeypatch.setenv("DEADLY", "1")
    with pytest.raises(InputError, match=r"no trial finished .its process was killed by signal 9"):
        tuning.run(jobs=2)
    monkeypatch.delenv("DEADLY")
    assert [trial.state for trial in tuning.run().trials] == ["done"]
    del here


def test_a_seed_that_fails_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "digits-lt", "--loss", "mbls", "--space", "loss.margin=5,10", "--trials", "1", "--epochs", "1"]
    words += ["--data.limit", "60", "--jobs", "1", "--out", "search"]
    assert main([*words, "--seeds", "1"]) == 0
    foreign = here / "search/best-trial000/mbls-seed1"
    foreign.mkdir()
    (foreign / "mine.txt").write_text("mine")
    capsys.readouterr()
    assert main([*words, "--seeds", "2"]) == 0
    told = capsys.readouterr().err
    assert "best options, seed 1: failed" in told
    assert "best options, mbls-seed1 failed: " in told


def test_a_saved_search_can_be_read(here: Path) -> None:
    del here
    with pytest.raises(InputError, match="holds no search"):
        quick().result  # noqa: B018
    result = quick(trials=2).run()
    again = quick(trials=2)
    assert again.result == result
    assert again.best_recipe().loss.options == {"margin": result.best.options["loss.margin"]}
    assert again.summary()["mbls"].seeds == [0]


def test_lists_can_be_searched(here: Path) -> None:
    result = quick(
        space={"schedule.milestones": [[1], [1, 2]]}, sampler="grid", trials=None, schedule="step", epochs=3
    ).run()
    assert sorted(trial.options["schedule.milestones"] for trial in result.trials) == [[1], [1, 2]]
    runs = [RunFolder(here / "search" / trial.folders[0]).recipe().schedule.milestones for trial in result.trials]
    assert sorted(runs) == [[1], [1, 2]]


def test_trials_that_fail_are_recorded_and_the_search_goes_on(here: Path) -> None:
    """A learning rate of a million makes the loss NaN."""
    del here
    tuning = quick(space={"optimizer.lr": [1e-3, 1e30]}, trials=4, sampler="grid", optimizer="sgd", batch_size=30)
    result = tuning.run()
    assert {trial.options["optimizer.lr"]: trial.state for trial in result.trials} == {1e-3: "done", 1e30: "failed"}
    failed = next(trial for trial in result.trials if trial.state == "failed")
    assert "lower optimizer.lr" in failed.problem
    assert math.isnan(failed.score)
    assert result.best.options == {"optimizer.lr": 1e-3}
    assert TuningFolder("search").result().title.startswith("digits-lt, mbls: 2 trials (1 failed), ranked by NLL")
    with pytest.raises(InputError, match=r"no trial finished \(the loss became"):
        quick(space={"optimizer.lr": [1e30]}, trials=1, optimizer="sgd", batch_size=30, out="other").run()


def test_repeated_trials_count_by_their_mean_and_a_grid_ends_when_all_is_tried(here: Path) -> None:
    result = quick(space={"loss.margin": [5.0, 10.0]}, trials=9, sampler="grid", repeats=2).run()
    assert len(result.trials) == 2
    for trial in result.trials:
        runs = [RunFolder(here / "search" / name) for name in trial.folders]
        assert [run.recipe().seed for run in runs] == [0, 1]
        assert trial.score == pytest.approx(np.mean([run.result().test["nll"] for run in runs]))


def test_one_search_over_several_losses(here: Path) -> None:
    """Options of a loss are chosen only for trials with that loss."""
    del here
    space = {"loss": ["mbls", "fl"], "fl.gamma": (1, 5), "mbls.margin": [5.0, 10.0]}
    result = quick(loss=None, space=space, trials=4, sampler="random").run()
    for trial in result.trials:
        other = {"mbls": "fl.gamma", "fl": "mbls.margin"}[trial.options["loss"]]
        assert other not in trial.options
        assert len(trial.options) == 2
    assert {trial.options["loss"] for trial in result.trials} == {"mbls", "fl"}


@pytest.mark.slow
def test_unpromising_trials_are_ended_early(here: Path) -> None:
    """With a learning rate of almost zero, a network stays worse than one that learns."""
    space = {"optimizer.lr": [4e-3, 1e-9, 2e-9, 5e-3, 6e-3, 2e-2, 3e-9]}  # the first five are never ended
    given = {"sampler": "grid", "pruner": "median", "repeats": 2, "by": "accuracy", "model": "mlp", "batch_size": 10}
    tuning = quick(space=space, trials=7, epochs=6, **given)
    result = tuning.run()
    pruned = [trial for trial in result.trials if trial.state == "pruned"]
    assert pruned
    assert {trial.options["optimizer.lr"] for trial in pruned} <= {1e-9, 2e-9, 3e-9}
    assert all(2 <= trial.epochs < 6 and trial.problem.startswith("after epoch") for trial in pruned)
    assert all(not (here / "search" / trial.folders[1]).exists() for trial in pruned)  # its second run was spared
    assert result.best.options["optimizer.lr"] > 1e-3


@pytest.mark.slow
@pytest.mark.usefixtures("_forked_workers")
def test_a_killed_search_loses_no_finished_trial(here: Path) -> None:
    """Two trials run at once when it is killed; resumed, they run one after the other."""
    words = [
        "tune",
        "digits-lt",
        "--loss",
        "mbls",
        "--space",
        "loss.margin=2..20",
        "--trials",
        "3",
        "--seeds",
        "1",
        "--epochs",
        "4",
        "--data.limit",
        "60",
    ]
    running = ("trial001-seed0", "trial002-seed0")
    with waiting_after_an_epoch(*running):
        child = started(*words, "--quiet", "--jobs", "2", "--out", "search")
    while not all((here / "search/trials" / name / "history.csv").exists() for name in running):
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    done = [path for path in sorted((here / "search/trials").iterdir()) if (path / "metrics.json").exists()]
    before = [(path / "metrics.json").stat().st_mtime_ns for path in done]
    assert [path.name for path in done] == ["trial000-seed0"]
    assert main([*words, "--jobs", "1", "--out", "search", "--quiet"]) == 0
    assert [(path / "metrics.json").stat().st_mtime_ns for path in done] == before
    for name in running:
        assert RunFolder(here / "search/trials" / name).environment().resumed
    assert [trial.state for trial in TuningFolder("search").result().trials] == ["done"] * 3


# What is shown


def example() -> TuningResult:
    trials = [
        TrialRecord(0, {"loss.margin": 10.0}, "done", 0.4, {"nll": 0.4, "ece": 0.05, "accuracy": 0.9}, 2),
        TrialRecord(1, {"loss.margin": 5.123456}, "done", 0.3, {"nll": 0.3, "ece": 0.04, "accuracy": 0.91}, 2),
        TrialRecord(2, {"loss.margin": 2.0}, "failed", math.nan, {}, 0, "the loss became nan"),
    ]
    return TuningResult("digits-lt", "mbls", "nll", {"loss.margin": "log:2..20"}, 100, 100, trials)


def test_the_table_of_trials() -> None:
    columns, rows = example().cells()
    assert columns == ["trial", "loss.margin", "NLL", "ECE, %", "accuracy, %", ""]
    assert rows == [
        ["1", "5.123", "0.3000", "4.00", "91.00", ""],
        ["0", "10", "0.4000", "5.00", "90.00", ""],
        ["2", "2", "", "", "", "failed: the loss became nan"],
    ]


def test_the_figure_marks_the_best() -> None:
    figure = SearchPlot("accuracy", [0.8, 0.9, math.nan], {"a": [1.0, 2.0, 3.0], "b": ["x", None, "y"]}, ["a"])
    assert figure.best == 1
    assert SearchPlot("nll", [0.8, 0.9], {"a": [1.0, 2.0]}).best == 0
    assert SearchPlot("nll", [math.nan], {"a": [1.0]}).best is None
    ax = figure.plot()
    shown = [child for child in ax.child_axes if child.has_data()]
    assert [own.get_xlabel() for own in shown] == ["a", "b"]
    stars = [c for c in shown[0].collections if tuple(c.get_offsets()[0]) == (2.0, 90.0) and len(c.get_offsets()) == 1]
    assert len(stars) == 1
    assert [label.get_text() for label in shown[1].get_xticklabels()] == ["x", "y"]
    assert shown[0].get_ylim() == shown[1].get_ylim()  # only the first has labels


@pytest.mark.parametrize("ends", [(1e-4, 0.1), (0.01, 1), (2, 20), (3, 8), (1e-9, 1e3)], ids=str)
def test_the_axes_show_the_range_and_labels_that_do_not_touch(ends: tuple[float, float]) -> None:
    values = list(np.geomspace(ends[0], ends[1], 6)[2:4])
    figure = SearchPlot("nll", [0.3, 0.4], {"a": values, "b": values}, ["a"], {"a": ends, "b": ends})
    ax = figure.plot()
    ax.figure.canvas.draw()
    for own in (child for child in ax.child_axes if child.has_data()):
        low, high = own.get_xlim()
        assert low < ends[0] < ends[1] < high
        boxes = [label.get_window_extent() for label in own.get_xticklabels() if label.get_text()]
        inside = [box for box in boxes if own.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= own.bbox.x1 + 1]
        assert len(inside) >= 2
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(inside))


def test_a_report_of_a_search_that_is_not_over_says_so(here: Path) -> None:
    folder = TuningFolder(here / "search")
    folder.path.mkdir()
    folder.write_result(example())
    with pytest.raises(InputError, match="best-trial001 is not a study folder"):
        Report(folder)
    with pytest.raises(InputError, match="holds no search"):
        TuningFolder(here).result()
