"""Studies from Python: run, summarised, shown, saved, and loaded again."""

import csv
import io
import re
import shutil
import statistics
import sys
from pathlib import Path

import pytest
import scipy.stats
import torch
from rich.console import Console

from calibrant import functional as cal, posthoc
from calibrant.errors import InputError
from calibrant.losses import METHODS
from calibrant.recipes import Recipe
from calibrant.report import Report
from calibrant.runs import RunFolder, StudyFolder
from calibrant.study import Job, Study, StudyTable, launchers
from processes import run_script


def small(out: Path, **more) -> Study:
    options = {"losses": ["ce", "mbls", "brier"], "seeds": 2, "epochs": 2, "data.limit": 300}
    return Study("digits", out=out, **{**options, **more})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    told: list[Job] = []
    study = small(tmp_path_factory.mktemp("python") / "study")
    assert repr(study) == f"Study({str(study.folder)!r}: 0 of 6 runs done)"
    assert study.run(tell=told.append) is study
    assert [(job.method, job.seed) for job in told] == [(m, s) for s in (0, 1) for m in ("ce", "mbls", "brier")]
    assert repr(study) == f"Study({str(study.folder)!r}: 6 of 6 runs done)"
    return study.folder.path


@pytest.fixture
def study(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """The finished study, of which nothing is trained again."""
    monkeypatch.setattr(launchers, "train_job", lambda *_, **__: pytest.fail("it trains"))
    return small(Path(shutil.copytree(finished, tmp_path / "study"))).run()


def test_a_summary_is_that_of_the_runs(study: Study) -> None:
    result = study.summarise()
    assert (result.recipe, result.methods) == ("digits", ["ce", "mbls", "brier"])
    assert result.title == "digits: 300 test samples, 2 seeds, 2 epochs, 15 bins"
    assert result.metrics == ["accuracy", "ece", "adaptive_ece", "nll"]
    assert [(job.folder, job.state, job.problem) for job in result.jobs] == [
        (f"{method}-seed{seed}", "done", "") for seed in (0, 1) for method in ("ce", "mbls", "brier")
    ]
    row = result["mbls"]
    runs = [RunFolder(study.folder.path / f"mbls-seed{seed}").result() for seed in (0, 1)]
    assert row.seeds == [0, 1]
    assert row.temperatures == [run.temperature for run in runs]
    for key in ("ece", "nll", "classwise_ece"):
        before, after = ([run.at(stage)[key] for run in runs] for stage in ("before", "after"))
        assert (row.values(key), row.values(key, "after")) == (before, after)
        assert row.mean(key) == pytest.approx(sum(before) / 2)
        assert row.spread(key, "after") == pytest.approx(statistics.stdev(after))
        half = scipy.stats.t.ppf(0.975, 1) * statistics.stdev(before) / 2**0.5
        assert row.interval(key) == pytest.approx((sum(before) / 2 - half, sum(before) / 2 + half))
    assert result["ce"].p_values == {}
    assert set(row.p_values) == set(row.differences) >= {"ece", "accuracy"}
    with pytest.raises(KeyError, match="zebra"):
        result["zebra"]


def test_a_table_says_the_same_everywhere(study: Study) -> None:
    table = study.table()
    row = study.summarise()["brier"]
    shown = f"{100 * row.mean('ece'):.2f} ± {100 * row.spread('ece'):.2f}"
    assert str(table) == table.markdown()
    assert table.markdown().startswith(f"{study.title}\n\n| method | accuracy, % | ECE, % | AdaECE, % | NLL | T |")
    console = Console(width=250, file=io.StringIO())
    console.print(table)
    for text in (table.markdown(), table._repr_html_(), console.file.getvalue()):
        assert shown in text
        assert "ΔECE, % (p)" in text
        assert "ECE, %, T by ECE" in text
    assert shown.replace("±", "$\\pm$") in table.latex()
    assert "$\\Delta$ECE, \\% (p)" in table.latex()
    gap = 100 * (row.mean("ece") - study.summarise()["ce"].mean("ece"))
    assert f"| {gap:+.2f} (" in table.markdown()
    assert table._repr_html_().count("<tr>") == 1 + 3
    assert "*" not in table._repr_html_()
    entries = table.entries(dict.fromkeys(range(3), "{}"))
    assert [len(own) for own in entries] == [len(table.columns())] * 3
    read = {own["method"]: own for own in csv.DictReader(io.StringIO(table.csv()))}
    assert float(read["brier"]["ece_mean"]) == row.mean("ece")
    assert float(read["brier"]["ece_after_temperature_std"]) == row.spread("ece", "after")
    assert float(read["brier"]["p_ece"]) == row.p_values["ece"]
    assert 100 * float(read["brier"]["difference_ece"]) == pytest.approx(gap)
    assert float(read["brier"]["difference_ece_low"]) == -row.differences["ece"]["high"]
    runs = [RunFolder(study.folder.path / f"brier-seed{seed}") for seed in (0, 1)]
    expected = []
    for run in runs:
        fitted = posthoc.TemperatureScaling(criterion="ece").fit(*run.open("validation").read_all())
        logits, target = run.open().read_all()
        expected.append((float(fitted.temperature_), float(cal.ece(fitted.transform(logits), target))))
    assert float(read["brier"]["temperature_by_ece"]) == pytest.approx(sum(t for t, _ in expected) / 2)
    assert float(read["brier"]["ece_after_temperature_by_ece"]) == pytest.approx(sum(e for _, e in expected) / 2)
    narrow = table.narrow(3)
    assert [part.metrics for part in narrow] == [["accuracy", "ece", "adaptive_ece"], ["nll"]]
    assert all(isinstance(part, StudyTable) and part.title == study.title for part in narrow)


def test_the_criterion_of_the_temperature_changes_without_training(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are measured: the same study shows the other one, and drops what was measured with the first on other data."""
    monkeypatch.undo()
    monkeypatch.setattr(sys.modules["calibrant.train.fit"], "prepare", lambda *_, **__: pytest.fail("it trains"))
    before = study.summarise()
    study.measure_beyond(ood=["noise"])
    other = small(study.folder.path, temperature="ece").run()
    after = other.summarise()
    assert (before.criterion, after.criterion) == ("nll", "ece")
    for method in before.methods:
        assert after[method].temperatures == before[method].other_temperatures != before[method].temperatures
        assert after[method].other_temperatures == before[method].temperatures
        assert after[method].values("ece", "after") == before[method].others["ece"]
        assert after[method].before == before[method].before
    assert "T minimises the ECE of the validation set (grid 0.1 to 10)." in other.table().markdown()
    assert "ECE, %, T by NLL" in other.table().markdown()
    run = RunFolder(study.folder.path / "mbls-seed0")
    assert (run.recipe().temperature, run.result().criterion, run.ood()) == ("ece", "ece", {})
    assert all(t == round(t, 1) for row in after.summaries for t in row.temperatures)
    other.save()
    page = Report(other.folder).content
    assert {(m["criterion"], m["other"]["criterion"]) for m in page["methods"]} == {("ece", "nll")}
    asked = Report(other.folder, temperature="nll").content["methods"][1]
    assert asked["values_after"]["ece"]["mean"] == pytest.approx(before["mbls"].mean("ece", "after"))
    assert asked["temperature"] == pytest.approx(statistics.mean(before["mbls"].temperatures))
    with pytest.raises(InputError, match="`temperature` must be one of 'nll', 'ece', got 'brier'"):
        Report(other.folder, temperature="brier")


def test_measures_of_a_table_may_be_chosen(study: Study) -> None:
    assert [column.title for column in study.table(["smooth_ece", "brier"]).columns()] == [
        "smooth ECE, %", "Brier score", "T", "smooth ECE, %, post T", "Brier score, post T", "ΔECE, % (p)",
    ]  # fmt: skip
    every = study.metrics(["all"])
    assert {"ece", "sweep_ece_width", "error"} < set(every)
    assert not {"mean_iou", "image_ece", "shift_ece", "top_k_accuracy"} & set(every)
    with pytest.raises(InputError, match="metrics must be one of accuracy.*did you mean 'smooth_ece'?"):
        study.table(["smoth_ece"])
    with pytest.raises(InputError, match=r"these runs have no mIoU \(mean_iou\)"):
        study.table(["mean_iou"])
    with pytest.raises(InputError, match=r"these runs have no AUROC, noise \(auroc:noise\)"):
        study.table(["ece", "auroc:noise"])


def test_what_is_saved_is_loaded(study: Study, tmp_path: Path) -> None:
    place = study.folder.path
    saved = study.save(["ece", "smooth_ece"])
    names = {path.name for path in place.iterdir() if path.is_file()}
    assert names == {"study.json", "runs.csv", "table.md", "table.tex", "table.csv", "bars.png"}
    assert StudyFolder(place).result() == saved
    again = Study.load(place)
    assert repr(again) == f"Study({str(place)!r}: 6 of 6 runs done)"
    assert (place / "table.md").read_text() == again.table().markdown() == study.table(["ece", "smooth_ece"]).markdown()
    assert (place / "table.tex").read_text() == again.table().latex()
    assert (place / "table.csv").read_bytes().decode() == again.table().csv()
    assert again.summarise() == saved
    assert again.save() == saved
    assert again.table(["nll"]).markdown() == study.table(["nll"]).markdown()
    assert [job.recipe for job in again.jobs] == [job.recipe for job in study.jobs]
    with pytest.raises(InputError, match="nowhere is not a study folder: it has no study.json"):
        Study.load(tmp_path / "nowhere")


def test_other_calibrators_are_saved_too(study: Study) -> None:
    found = study.measure_posthoc(["vector", "isotonic"])
    assert list(found) == ["ce", "mbls", "brier"]
    for seed in (0, 1):
        run = RunFolder(study.folder.path / f"mbls-seed{seed}")
        fitted = posthoc.create("vector").fit(*run.open("validation").read_all())
        logits, target = run.open().read_all()
        assert found["mbls"]["vector"][seed] == pytest.approx(float(cal.ece(fitted.transform(logits), target)))
    assert study.summarise().posthoc == found
    with pytest.raises(InputError, match="calibrator must be one of temperature.*did you mean 'isotonic'?"):
        study.measure_posthoc(["isotonik"])
    study.save()
    assert Study.load(study.folder).posthoc == found


def test_measures_of_unknown_data_are_loaded_and_saved_again(study: Study) -> None:
    study.check_beyond(ood=["noise"])
    with pytest.raises(InputError, match="'nowhere' is not one of mnist"):
        study.check_beyond(ood=["nowhere"])
    steps = []
    study.measure_beyond(ood=["noise"], advance=lambda: steps.append(1))
    assert len(steps) == 6
    saved = study.save()
    assert saved.metrics[-1] == "auroc:noise"
    found = RunFolder(study.folder.path / "mbls-seed1").ood()["noise"]
    assert saved["mbls"].values("auroc:noise", "after")[1] == found.after["entropy"].auroc
    again = Study.load(study.folder)
    assert again.table().markdown() == study.table().markdown()
    assert "AUROC, noise, %" in again.table().markdown()
    assert again.save() == saved


def test_a_report_of_a_study(study: Study, tmp_path: Path) -> None:
    place = study.folder.path
    assert study.report() == place / "report.html"  # and it is saved, for the report is of what is in the folder
    assert (place / "table.md").read_text() == study.table().markdown()
    page = (place / "report.html").read_text()
    assert study.title in page
    assert study.report(tmp_path / "other.html") == tmp_path / "other.html"
    assert (tmp_path / "other.html").read_text() == page


def test_a_run_that_fails_is_noted(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    place = study.folder.path
    broken = RunFolder(place / "brier-seed1")
    (place / "brier-seed1/metrics.json").unlink()
    recipe = (place / "brier-seed1/recipe.yaml").read_text()
    (place / "brier-seed1/recipe.yaml").write_text(re.sub("epochs: 2", "epochs: 7", recipe))
    found = small(place).run()
    assert found.state.failed == {broken: found.state.failed[broken]}
    assert "holds a run of another recipe (epochs was 7, now 2)" in found.state.failed[broken]
    result = found.save()
    assert [(job.method, job.seed, job.state) for job in result.jobs if job.problem] == [("brier", 1, "failed")]
    assert result["brier"].seeds == [0]
    assert " ± " not in found.table().markdown().splitlines()[-3].split("|")[2]  # there is no spread of a single seed
    again = Study.load(place)
    assert again.state.failed == found.state.failed
    assert again.summarise() == result


def test_what_cannot_be_studied(tmp_path: Path) -> None:
    for arguments, options, message in (
        ((), {}, "a study needs at least one recipe"),
        (("digits",), {"seeds": 0}, "`seeds` must be a number of at least 1"),
        (("digits",), {"seeds": [1, 1]}, "several different seeds"),
        (("digits",), {"losses": ["zebra"]}, "recipe digits: loss.name must be one of ce"),
        (("digits",), {"epoch": 3}, "recipe digits: epoch is not a field of a recipe; did you mean `epochs`?"),
        (("digit",), {}, "there is no recipe 'digit'"),
        (("digits",), {"losses": ["ls"], "loss.margin": 3}, "recipe digits: loss.margin is not known"),
        (("digits",), {"losses": ["own_code.Squared"]}, "is code outside calibrant"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            Study(*arguments, out=tmp_path / "study", **options)
    untrained = small(tmp_path / "study")
    with pytest.raises(InputError, match=r"study: no run is finished; call run\(\) first"):
        untrained.table()
    with pytest.raises(InputError, match="`launcher` must be one of 'local', 'ray', got 'slurm'"):
        untrained.run(launcher="slurm")
    with pytest.raises(InputError, match="`jobs` must be at least 1"):
        untrained.run(jobs=0)
    assert not (tmp_path / "study").exists()


def test_several_recipes_and_all_losses(tmp_path: Path) -> None:
    mine = Recipe.load("digits", name="mine")
    study = Study("digits-lt", mine, losses=["ce", "mbls", "ce"], seeds=[4], varied={"loss.margin": [5, 10.0]}, out=tmp_path)
    assert [job.method for job in study.jobs] == [
        *("digits-lt: ce", "digits-lt: mbls, margin=5", "digits-lt: mbls, margin=10"),
        *("mine: ce", "mine: mbls, margin=5", "mine: mbls, margin=10"),
    ]
    assert [job.folder.name for job in study.jobs[:2]] == ["digits-lt-ce-seed4", "digits-lt-mbls,margin=5-seed4"]
    assert {job.seed for job in study.jobs} == {4}
    assert {job.recipe.data.long_tail.ratio for job in study.jobs} == {20, 1}
    usual = [key for key, method in METHODS.items() if not method.dense]  # not for segmented images only
    assert [job.method for job in Study("digits", losses=["all"], seeds=1).jobs] == usual
    assert Study("digits").folder.path == Path("runs/digits")
    assert Study("digits").jobs[0].recipe == Recipe.load("digits", loss="ce", seed=0)


def test_summaries_of_no_common_samples_are_not_compared(study: Study) -> None:
    """Significance is that of the same samples: without them there are no p-values."""
    from calibrant.study.summary import summarise

    jobs = [job for job in study.jobs if (job.method, job.seed) in {("ce", 0), ("mbls", 1)}]
    rows = summarise(jobs, study.state.done)
    assert [row.p_values for row in rows] == [{}, {}]
    assert torch.equal(*(job.folder.open().read_all()[1] for job in study.jobs[:2]))


UNGUARDED = """
from calibrant.study import Study
Study("digits", losses=["ce"], seeds=2, epochs=1, out="study", **{"data.limit": 30}).run(jobs=2)
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    """Its processes would import it, and start the study again."""
    (tmp_path / "script.py").write_text(UNGUARDED)
    code, said = run_script(tmp_path / "script.py")
    assert code == 1
    assert "put its code under if __name__ ==" in said.splitlines()[-1]
    assert said.count("Traceback") == 1


def test_what_came_of_each_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small(tmp_path / "study", losses=["ce"], seeds=2, epochs=1, **{"data.limit": 30}).run()
    said = capsys.readouterr().err.splitlines()
    assert [re.sub(r"[\d.]+, accuracy [\d.]+", "x", line) for line in said] == [
        f"ce, seed {seed}: ECE x ({seed + 1} of 2)" for seed in (0, 1)
    ]


def test_a_study_is_not_put_into_a_search(tmp_path: Path) -> None:
    (tmp_path / "trials.log").write_text("")
    with pytest.raises(InputError, match="holds a search; pass another `out`"):
        small(tmp_path)
