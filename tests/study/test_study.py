"""Grids of runs, and the tables that come out."""

import csv
import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

import own_code
import trees
from calibrant import functional as cal, stats
from calibrant.cli import main
from calibrant.cli.compare import parse_varied
from calibrant.errors import InputError
from calibrant.metrics import Panel
from calibrant.recipes import Recipe
from calibrant.runs import RunFolder, StudyResult, Summary
from calibrant.study import Study, StudyTable, launchers
from calibrant.study.jobs import plan
from calibrant.train import fit
from processes import started, waiting_after_an_epoch


def compare(*arguments: str, out: str = "study") -> int:
    return main(["compare", "digits-lt", "--quiet", "--out", out, *arguments])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def row(method: str, ece: list[float], accuracy: list[float], **more) -> Summary:
    values = {"accuracy": accuracy, "ece": ece, "adaptive_ece": ece, "nll": [e * 10 for e in ece]}
    return Summary(
        method, list(range(len(ece))), values, {k: [v / 2 for v in vs] for k, vs in values.items()}, [2.0] * len(ece), **more
    )


ROWS = [
    row("ce", [0.08, 0.10], [0.90, 0.92]),
    row(
        *("mbls", [0.03, 0.03], [0.91, 0.93]),
        p_values={"ece": 0.0004},
        differences={"ece": {"difference": 0.06, "low": 0.05, "high": 0.07}},
    ),
    row("cals-alm, margin=5", [0.02, 0.03], [0.89, 0.93], p_values={"ece": 0.2}),
]


def table(title: str) -> StudyTable:
    return StudyTable(StudyResult(title, "digits", ["accuracy", "ece", "adaptive_ece", "nll"], [], ROWS))


def test_tables_mark_the_best_and_the_second() -> None:
    lines = table("title").markdown().splitlines()
    assert lines[0] == "title"
    assert lines[2].startswith("| method | accuracy, % | ECE, % | AdaECE, % | NLL | T | ECE, %, post T")
    ce, mbls, cals, _, note = lines[4:]
    assert note == (
        "T minimises the NLL of the validation set. ΔECE: difference in ECE from ce in points, with its p-value from a "
        "paired t-test over seeds that also allows for the variance of the test set."
    )
    assert ce.startswith("| ce | *91.00 ± 1.41* | 9.00 ± 1.41 |")
    assert mbls.startswith("| mbls | **92.00 ± 1.41** | *3.00 ± 0.00* |")
    assert "| **2.50 ± 0.71** |" in cals
    assert mbls.endswith("| -6.00 (<0.001) |")
    assert cals.endswith("| 0.200 |")


def test_equal_entries_share_their_rank() -> None:
    rows = [row("a", [0.02], [0.9]), row("b", [0.02 + 1e-9], [0.9]), row("c", [0.05], [0.9]), row("d", [0.07], [0.9])]
    lines = StudyTable(StudyResult("title", "digits", ["ece", "accuracy"], [], rows)).markdown().splitlines()[4:8]
    assert [line.split(" | ")[1] for line in lines] == ["**2.00**", "**2.00**", "*5.00*", "7.00"]
    assert all(line.split(" | ")[2] == "90.00" for line in lines)  # none is better than another


def test_latex_is_booktabs() -> None:
    text = table("100 % of a_b & c").latex()
    assert "\\caption{100 \\% of a\\_b \\& c. T minimises the NLL of the validation set. $\\Delta$ECE: difference" in text
    body = text.split("\\midrule\n")[1].split("\\bottomrule")[0].strip().splitlines()
    columns = text.split("\\begin{tabular}{")[1].split("}")[0]
    assert all(line.endswith(" \\\\") and line.count("&") == len(columns) - 1 for line in body)
    assert "\\textbf{92.00 $\\pm$ 1.41}" in body[1]
    assert "\\underline{3.00 $\\pm$ 0.00}" in body[1]
    for opening in ("\\begin{table}", "\\toprule", "\\midrule", "\\bottomrule", "\\end{tabular}", "\\end{table}"):
        assert text.count(opening) == 1
    assert text.count("{") == text.count("}")


def test_csv_has_everything() -> None:
    first = next(csv.DictReader(table("title").csv().splitlines()))
    assert float(first["ece_mean"]) == pytest.approx(0.09)
    assert float(first["ece_std"]) == pytest.approx(np.std([0.08, 0.10], ddof=1))
    half = scipy.stats.t.ppf(0.975, 1) * np.std([0.08, 0.10], ddof=1) / 2**0.5
    assert float(first["ece_low"]) == pytest.approx(0.09 - half)
    assert float(first["ece_after_temperature_mean"]) == pytest.approx(0.045)


def test_options_multiply() -> None:
    assert parse_varied(["loss.margin=5,10", "--epochs=3"]) == {"loss.margin": [5, 10], "epochs": [3]}
    for bad in ("loss.margin", "=3", "loss.margin=", "loss.margin=1,,2"):
        with pytest.raises(InputError, match="--set takes FIELD=VALUE,VALUE"):
            parse_varied([bad])
    varied = {"loss.margin": [5, 10], "optimizer.lr": [0.1, 0.2]}
    jobs = plan([Recipe.load("digits-lt")], ["ce", "mbls"], [0, 7], Path("x"), varied)
    assert len(jobs) == 2 * (2 + 4)  # ce has no margin
    assert [job.seed for job in jobs] == [0] * 6 + [7] * 6  # cut short, it still compares
    names = [job.method for job in jobs if job.seed == 7]
    assert names[0] == "ce, optimizer.lr=0.1"
    assert names[2] == "mbls, margin=5, optimizer.lr=0.1"
    one = next(job for job in jobs if job.method == "mbls, margin=10, optimizer.lr=0.2")
    assert one.recipe.loss.options == {"margin": 10}
    assert one.recipe.optimizer.lr == 0.2
    assert len({job.folder for job in jobs}) == len(jobs)


def test_options_are_set_by_method() -> None:
    """Focal loss, FLSD and CALS-ALM each have a gamma, of different meaning; the margin is the same to all that have one."""
    recipe = Recipe.load("digits-lt")

    def planned(losses: list[str], varied: dict[str, list[Any]], **fields: Any) -> list[Any]:
        jobs = Study(recipe, losses=losses, seeds=1, varied=varied, **fields).jobs
        return [(job.method, job.folder.name, job.recipe.loss.options) for job in jobs]

    assert planned(["ce", "fl", "cals-alm"], {"fl.gamma": [3, 5], "cals-alm.gamma": [1.5]}) == [
        ("ce", "ce-seed0", {}),
        ("fl, gamma=3", "fl,gamma=3-seed0", {"gamma": 3}),
        ("fl, gamma=5", "fl,gamma=5-seed0", {"gamma": 5}),
        ("cals-alm, gamma=1.5", "cals-alm,gamma=1.5-seed0", {"gamma": 1.5}),
    ]
    assert planned(["ce", "fl"], {"methods.fl.gamma": [3]}) == planned(["ce", "fl"], {"loss.gamma": [3]})
    assert [name for name, *_ in planned(["mbls", "ls", "cals-alm"], {"loss.margin": [5]})] == [
        *("mbls, margin=5", "ls", "cals-alm, margin=5"),
    ]
    for losses, field, message in (
        (["fl", "ce", "flsd", "cals-alm"], "loss.gamma", "name the loss: fl.gamma, flsd.gamma or cals-alm.gamma"),
        (["ecp", "mbls"], "loss.options.weight", "loss.weight means something else in each of ecp, mbls"),
        (["ce", "ls"], "loss.margin", "none of the losses ce, ls has an option 'margin'"),
        (["ce", "mbls"], "fl.gamma", "fl.gamma: fl is not one of the losses (ce, mbls)"),
        (["ce", "fl"], "fl.gama", "fl.gama: fl has no option 'gama'; did you mean 'gamma'?"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            planned(losses, {field: [1, 2]})
    with pytest.raises(InputError, match=re.escape("name the loss: fl.gamma or flsd.gamma")):
        planned(["fl", "flsd"], {}, **{"loss.gamma": 2})
    assert planned(["ce", "mbls"], {}, **{"loss.margin": 4}) == [
        ("ce", "ce-seed0", {}),
        ("mbls", "mbls-seed0", {"margin": 4}),
    ]
    own = Study(recipe, losses=["ce", "fl", "flsd"], seeds=1, **{"fl.gamma": 5}).jobs
    assert [getattr(job.recipe.build_loss(10), "gamma", None) for job in own] == [None, 5, 3]
    assert not own[0].recipe.difference(recipe)  # gamma of another loss changes nothing
    assert own[1].recipe.difference(Recipe.load(recipe, loss="fl")) == "methods.fl.gamma was 5, now None"


def test_ablations_of_the_papers(here: Path) -> None:
    common = ["--seeds", "1", "--epochs", "1", "--data.limit", "60"]
    assert compare("--losses", "cals-alm", "--set", "loss.penalty=phr,p2,p3", *common) == 0
    assert compare("--losses", "adafocal", "--set", "loss.num_bins=5,10", "loss.gamma_max=20,inf", *common, out="b") == 0
    assert Study.load(here / "study").summarise().methods == [f"cals-alm, penalty={p}" for p in ("phr", "p2", "p3")]
    jobs = json.loads((here / "b/study.json").read_text())["jobs"]
    assert [job["state"] for job in jobs] == ["done"] * 4
    assert [job["method"] for job in jobs] == [
        f"adafocal, num_bins={bins}, gamma_max={top}" for bins in (5, 10) for top in ("20", "inf")
    ]


def test_the_whole_family_of_metrics(here: Path, capsys) -> None:
    small = ["--seeds", "2", "--epochs", "1", "--data.limit", "200"]
    assert compare("--losses", "ce", "ls", *small, "--metrics", "all") == 0
    shown, text = " ".join(capsys.readouterr().out.split()), (here / "study/table.md").read_text()
    for title in ("debiased ECE, 30 bins", "sweep ECE, equal width", "classwise ECE", "error"):
        assert f"| {title}, %" in text
        assert title.split()[0] in shown
    summary = json.loads((here / "study/study.json").read_text())["summaries"][1]
    logits, target = RunFolder(here / "study/ls-seed1").open().read_all()

    panels = {"before": Panel(10), "after": Panel(10)}
    panels["before"].update(logits, target)
    panels["after"].update(logits / summary["temperatures"][1], target)
    for stage, panel in panels.items():
        for key in ("debiased_ece_30", "sweep_ece_width", "smooth_ece", "ece"):
            assert summary[stage][key][1] == pytest.approx(panel.compute()[key], rel=1e-6), (stage, key)
    exact = {
        "debiased_ece_30": cal.debiased_ece(logits, target, num_bins=30),
        "sweep_ece_width": cal.sweep_ece(logits, target, binning="width"),
    }
    for key, value in exact.items():  # of which a panel has the order of confidences on a fine grid
        assert summary["before"][key][1] == pytest.approx(float(value), abs=5e-3), key
    assert summary["before"]["error"][0] == pytest.approx(1 - summary["before"]["accuracy"][0])
    assert (here / "study/bars.png").exists()


TWO = ["--losses", "ce", "fl", "--epochs", "2", "--data.limit", "300"]


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, three seeds each."""
    folder = tmp_path_factory.mktemp("paired") / "study"
    assert compare(*TWO, "--seeds", "3", out=str(folder)) == 0
    return folder


def test_significance_is_paired_over_seeds(paired: Path) -> None:
    """Digits are split anew for each seed: Student's t of the differences, by SciPy."""
    first, second = json.loads((paired / "study.json").read_text())["summaries"]
    for key in ("ece", "accuracy", "nll"):
        a, b = first["before"][key], second["before"][key]
        expected = scipy.stats.ttest_rel(a, b)
        found = second["differences"][key]
        assert found["difference"] == pytest.approx(np.mean(a) - np.mean(b))
        assert second["p_values"][key] == pytest.approx(expected.pvalue, rel=1e-6)
        low, high = expected.confidence_interval(0.95)
        assert (found["low"], found["high"]) == pytest.approx((low, high), rel=1e-6)
    text = (paired / "table.md").read_text()
    assert text.endswith("from a paired t-test over seeds that also allows for the variance of the test set.\n")
    shown = 100 * (np.mean(second["before"]["ece"]) - np.mean(first["before"]["ece"]))
    assert f"| {shown:+.2f} ({second['p_values']['ece']:.3f}) |" in text


def bins_and_gaps(logits: torch.Tensor, target: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The bin of each sample, and by how much its confidence is too low."""
    confidence, predicted = logits.double().softmax(1).max(1)
    return (15 * confidence).ceil().long().numpy(), ((predicted == target).double() - confidence).numpy()


def test_seeds_that_share_a_test_set_are_no_new_test_sets(here: Path) -> None:
    assert compare("--losses", "ce", "fl", "--seeds", "3", "--epochs", "3", "--data.seed", "0") == 0
    summary = json.loads((here / "study/study.json").read_text())["summaries"][1]
    runs = [[RunFolder(here / f"study/{m}-seed{s}").open().read_all() for s in range(3)] for m in ("ce", "fl")]
    differences = np.array([float(cal.ece(*a)) - float(cal.ece(*b)) for a, b in zip(*runs, strict=True)])
    random, size, draws = np.random.default_rng(5), len(runs[0][0][1]), []
    judged = [[bins_and_gaps(*run) for run in own] for own in runs]
    for _ in range(200):
        index = random.integers(size, size=size)
        means = [np.mean([np.abs(np.bincount(b[index], g[index])).sum() / size for b, g in own]) for own in judged]
        draws.append(means[0] - means[1])
    variance = differences.var(ddof=1) / 3 + np.var(draws, ddof=1)
    freedom = 2 * (variance / (differences.var(ddof=1) / 3)) ** 2
    half = scipy.stats.t.ppf(0.975, freedom) * variance**0.5
    found = summary["differences"]["ece"]
    assert (found["high"] - found["low"]) / 2 == pytest.approx(half, rel=0.2)  # 200 resamples each
    assert found["low"] < differences.mean() < found["high"]


def test_one_run_each_is_about_two_networks(here: Path, paired: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ce-seed0", "fl-seed0"):
        shutil.copytree(paired / name, here / "study" / name)
    assert compare(*TWO, "--seeds", "1") == 0
    assert "compares two networks, not methods" in " ".join(capsys.readouterr().out.split())
    summary = json.loads((here / "study/study.json").read_text())["summaries"][1]
    (a, target), (b, _) = (RunFolder(here / f"study/{m}-seed0").open().read_all() for m in ("ce", "fl"))
    expected = stats.compare("ece", a, b, target)
    assert summary["differences"]["ece"] == pytest.approx(
        {"difference": expected.difference, "low": expected.low, "high": expected.high}, rel=1e-6
    )
    assert summary["p_values"]["ece"] == pytest.approx(expected.p_value)


@pytest.mark.slow
def test_of_segmented_images_significance_comes_from_whole_images(here: Path) -> None:
    trees.voc(here, {"train": 4, "val": 3, "test": 5}, name="camvid")
    command = ["compare", "camvid-deeplabv3", "--losses", "ce", "fl", "--seeds", "1", "--epochs", "1", "--quiet"]
    small = ["--data.root", ".", "--data.size", "32", "--data.workers", "0", "--batch_size", "2", "--data.stride", "2"]
    small += ["--optimizer.lr", "0.1"]  # or the two networks are nearly the same
    assert (
        main([*command, *small, "--model.options", "{}", "--model", "own_code.Pixels", "--allow-code", "--out", "study"])
        == 0
    )
    header = (here / "study/table.md").read_text().splitlines()[2]
    assert header.startswith("| method | accuracy, % | mIoU, % | ECE, % | ECE per image, % |")
    assert header.endswith("| ΔECE, % (p) |")
    summary = json.loads((here / "study/study.json").read_text())["summaries"][1]
    (a, target), (b, _) = (RunFolder(here / f"study/{m}-seed0").open().read_all() for m in ("ce", "fl"))
    expected = stats.compare("ece", a, b, target)  # which resamples images
    assert a.dim() == 4
    found = summary["differences"]["ece"]  # of all pixels, whereas the files hold every second row and column
    assert found["high"] - found["low"] == pytest.approx(expected.high - expected.low, rel=1e-6)
    assert found["difference"] - found["low"] == pytest.approx(expected.difference - expected.low, rel=1e-6)
    kept, of_images = (target != -100).numpy(), []
    for logits in (a, b):
        bins, gaps = bins_and_gaps(logits, target)
        kind = 2 * bins + (gaps >= 0)  # the right and the wrong pixels of a bin, each of which has their mean confidence
        mean = np.bincount(kind[kept], gaps[kept], 32) / np.bincount(kind[kept], minlength=32).clip(1)
        rows = zip(bins, mean[kind], kept, strict=True)
        of_images.append(np.array([np.bincount(i[own], g[own], 16) for i, g, own in rows]))
    weight = kept.sum((1, 2))
    index = np.array(list(itertools.product(range(5), repeat=5)))  # all ways to draw the images
    errors = [np.abs(sums[index].sum(1)).sum(1) / weight[index].sum(1) for sums in of_images]
    draws = errors[0] - errors[1]
    p_value = (np.abs(draws - draws.mean()) >= abs(found["difference"])).mean()
    assert summary["p_values"]["ece"] == pytest.approx(p_value, abs=0.06)  # of 1000 resamples


def test_loss_names_the_losses(here: Path) -> None:
    assert compare("--loss", "mbls", "--loss.margin=6", "--seeds", "1", "--epochs", "1") == 0
    assert [job["method"] for job in json.loads((here / "study/study.json").read_text())["jobs"]] == ["mbls"]
    assert RunFolder(here / "study/mbls-seed0").recipe().loss.options == {"margin": 6}
    assert [path.name for path in (here / "study").iterdir() if path.is_dir()] == ["mbls-seed0"]


def test_other_calibrators(here: Path, capsys) -> None:
    assert compare("--losses", "ce", "--seeds", "1", "--epochs", "2", "--posthoc", "vector", "isotonic") == 0
    assert "ECE after calibration" in capsys.readouterr().out
    assert set(Study.load(here / "study").posthoc["ce"]) == {"vector", "isotonic"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "--seeds must be a number of at least 1"),
        (["--seeds", "1", "1"], "--seeds must be a number of at least 1, or several different seeds"),
        (["--set", "loss.margin"], "--set takes FIELD=VALUE,VALUE"),
        (["--metrics", "zebra"], "metrics must be one of accuracy, mean_iou, foreground_iou"),
        (["--losses", "zebra"], "loss.name must be one of ce"),
        (["--launcher", "slurm"], "--launcher must be one of 'local', 'ray', got 'slurm'"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--resources", "gpu"], "--resources takes NAME=NUMBER"),
        (["--posthoc", "vectr"], "calibrator must be one of temperature, .*; did you mean 'vector'?"),
        (["--loss", "ce", "--losses", "mbls"], "--loss and --losses both name losses; pass only --losses"),
        (["--epoch", "3"], "epoch is not a field of a recipe; did you mean --epochs?"),
        (["--losses", "mbls", "--set", "loss.margin=wide"], "margin must be a number, got str 'wide'"),
    ],
)
@pytest.mark.usefixtures("here")
def test_bad_usage(capsys, arguments: list[str], message: str) -> None:
    seeds = [] if "--seeds" in arguments else ["--seeds", "1"]
    assert compare("--epochs", "1", *seeds, *arguments) == 2
    text = capsys.readouterr().err
    assert re.search(message.replace("?", "[?]"), text), text
    assert "Traceback" not in text
    assert "loss.margin=wide" in arguments or not Path("study").exists()  # nothing was trained before it was said


# Crashes and several at once


GRID = ["--losses", "ce", "cals-alm", "--seeds", "2", "--epochs", "6", "--data.limit", "80"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The grid, one run after another."""
    folder = tmp_path_factory.mktemp("grid") / "whole"
    assert compare(*GRID, "--jobs", "1", out=str(folder)) == 0
    return folder


@pytest.mark.slow
def test_killed_in_the_middle_the_grid_ends_with_the_same_table(here: Path, whole: Path) -> None:
    with waiting_after_an_epoch("ce-seed1"):
        child = os.fork()
        if not child:
            os.setsid()
            compare(*GRID, out="parts")
            os._exit(0)
    while not (here / "parts/ce-seed1/history.csv").exists():  # the first two jobs are done, the third one runs
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not (here / "parts/table.csv").exists()
    assert compare(*GRID, out="parts") == 0
    for name in ("table.csv", "table.md", "table.tex"):
        assert (here / "parts" / name).read_text() == (whole / name).read_text(), name


@pytest.mark.slow
@pytest.mark.usefixtures("_forked_workers")
def test_several_at_once_give_the_same(here: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks are trained on all cores without being asked to."""
    monkeypatch.setattr("calibrant.study.launchers.WORTHWHILE", 0)
    monkeypatch.setattr("calibrant.study.launchers.cores", lambda: 2)
    assert compare(*GRID, out="two") == 0  # by itself, one on each core
    assert (here / "two/table.csv").read_text() == (whole / "table.csv").read_text()


@pytest.mark.parametrize(
    ("fields", "kernels", "jobs"),
    [
        ({"epochs": 1000}, 4, 3),  # one for each of the runs
        ({"epochs": 1000}, 2, 2),
        ({"epochs": 1000}, 1, 1),
        ({"epochs": 2}, 4, 1),  # done before other processes have started
        ({"epochs": 1000, "model": "resnet50", "batch_size": 300}, 4, 3),  # one that is not small
        ({"epochs": 1000, "trainer.devices": 2}, 4, 1),
        ({"epochs": 1000, "data.path": "nowhere"}, 4, 1),  # which is told when its turn comes
    ],
)
def test_how_many_at_once_by_itself(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], kernels: int, jobs: int
) -> None:
    monkeypatch.setattr(launchers, "cores", lambda: kernels)
    planned = plan([Recipe.load("digits-lt", **fields)], ["ce"], [0, 1, 2], "study")
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        jobs = 1
    assert launchers.usual_jobs(planned, allow_code=False) == jobs


@pytest.mark.parametrize(("gigabytes", "jobs"), [(16, 3), (5, 2), (1, 1)])
def test_no_more_at_once_than_fit_into_memory(monkeypatch: pytest.MonkeyPatch, gigabytes: float, jobs: int) -> None:
    monkeypatch.setattr(launchers, "cores", lambda: 4)
    monkeypatch.setattr("calibrant.train.preparing.machine_memory", lambda: gigabytes * 1e9)
    planned = plan([Recipe.load("digits-lt", epochs=1000)], ["ce"], [0, 1, 2], "study")
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        jobs = 1
    assert launchers.usual_jobs(planned, allow_code=False) == jobs


@pytest.mark.slow
@pytest.mark.usefixtures("_forked_workers")
def test_a_worker_that_is_killed_loses_only_its_own_run(here: Path) -> None:
    """Of two at once, four runs: one process is killed, the other goes on, and another takes the place of the first."""
    study = Study("digits-lt", losses=["ce", "ls", "fl", "brier"], seeds=1, out="study", epochs=4, **{"data.limit": 60})
    killed: list[int] = []

    def kill_one() -> None:
        while not (here / "study/ls-seed0/history.csv").exists():
            time.sleep(0.02)
        lock = (here / "study/ls-seed0/.calibrant-lock").read_text()
        killed.append(int(lock.split()[1]))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill_one)
    thread.start()
    with waiting_after_an_epoch("ls-seed0"):
        study.run(jobs=2)
    thread.join()
    assert {folder.name: text for folder, text in study.state.failed.items()} == {
        "ls-seed0": "its process was killed by signal 9; run the same command again to resume it"
    }
    assert sorted(folder.name for folder in study.state.done) == ["brier-seed0", "ce-seed0", "fl-seed0"]
    study.state.failed.clear()
    study.run()
    assert len(study.state.done) == 4
    assert RunFolder(here / "study/ls-seed0").environment().resumed


def test_a_process_of_a_study_starts_others_as_one_by_itself_does() -> None:
    """And its threads sleep while they wait, unless somebody wants it otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KMP_BLOCKTIME", "7")
        patch.setattr(launchers, "_work", own_code.tell_circumstances)
        worker = launchers._Worker()
        assert "OMP_WAIT_POLICY" not in os.environ or os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert worker.pipe.recv() == (multiprocessing.get_all_start_methods()[0], "PASSIVE", "7")
    worker.process.join()


def processes(*columns: str) -> list[list[str]]:
    command = ["ps", "-A", "-o", ",".join(f"{column}=" for column in columns)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split(maxsplit=len(columns) - 1) for line in listed.splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("_forked_workers")
def test_a_study_that_is_killed_takes_its_processes_with_it(here: Path) -> None:
    arguments = ["--losses", "ce", "mbls", "--seeds", "1", "--epochs", "5000", "--jobs", "2", "--out", "study"]
    killed = started("compare", "digits-lt", "--quiet", *arguments)
    try:
        while not all((here / f"study/{loss}-seed0/history.csv").exists() for loss in ("ce", "mbls")):
            assert os.waitpid(killed, os.WNOHANG) == (0, 0)
            time.sleep(0.1)
        own = {pid for pid, parent in processes("pid", "ppid") if parent == str(killed)}
        assert len(own) >= 2
    finally:
        os.kill(killed, signal.SIGKILL)
        os.waitpid(killed, 0)
    deadline = time.time() + 100
    while own & {pid for pid, state in processes("pid", "stat") if not state.startswith("Z")}:
        assert time.time() < deadline
        time.sleep(0.1)


def workers() -> list[int]:
    """Processes in which Ray runs a job."""
    return [int(pid) for pid, command in processes("pid", "command") if "ray::train_job" in command]


@pytest.mark.slow
def test_ray_retries_a_job_whose_worker_was_killed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'calibrant[ray]'")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")  # or Ray kills workers when other processes need memory
    monkeypatch.setenv("RAY_worker_niceness", "0")  # or they wait for whatever else this machine does
    killed: list[int] = []

    def kill_one() -> None:
        deadline = time.time() + 120
        while not killed and time.time() < deadline:
            time.sleep(0.05)
            if (here / "study/ce-seed0/history.csv").exists():
                for process in workers():
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)

    thread = threading.Thread(target=kill_one)
    thread.start()
    try:
        small = {"epochs": 50, "data.limit": 60}  # long enough that it is killed before its end
        fields = [word for name, value in small.items() for word in (f"--{name}", str(value))]
        arguments = ["--losses", "ce", "--seeds", "1", *fields, "--launcher", "ray", "--resources", "cpu=1"]
        assert compare(*arguments) == 0
    finally:
        ray.shutdown()
        thread.join()
    assert killed
    assert RunFolder(here / "study/ce-seed0").environment().resumed
    alone = fit(Recipe.load("digits-lt", loss="ce", **small), here / "alone", quiet=True)
    done = RunFolder(here / "study/ce-seed0").result()
    assert done.test["accuracy"] == alone.result.test["accuracy"]
    assert done.test["ece"] == pytest.approx(alone.result.test["ece"], rel=1e-6)
