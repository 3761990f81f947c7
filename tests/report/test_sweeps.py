"""Sweeps over numeric options: which figures a study gets, and that they hold the numbers of its runs."""

import itertools
import json
import math
import statistics
from pathlib import Path

import pytest

from calibrant.cli import main
from calibrant.plots import Sweep, SweepMap
from calibrant.plots.sweeps import Scale
from calibrant.report import Report
from calibrant.report.figures import figures, save
from calibrant.report.sweeps import plain, sweeps
from calibrant.runs import JobRecord, StudyResult, Summary

KEYS = ("accuracy", "ece", "adaptive_ece", "nll")


def result(*methods: tuple[str, dict[str, str]]) -> StudyResult:
    """A study of which the ECE of method k, seed s is k + s / 10."""
    jobs, rows = [], []
    for k, (base, options) in enumerate(methods):
        name = ", ".join([base, *(f"{option}={text}" for option, text in options.items())])
        values = {key: [k + seed / 10 for seed in (0, 1)] for key in KEYS}
        rows.append(Summary(name, [0, 1], values, values, [1.0, 1.0]))
        jobs += [JobRecord(name, seed, f"{name}-seed{seed}", "done", "", base, options) for seed in (0, 1)]
    return StudyResult("title", "digits", list(KEYS), jobs, rows)


def test_one_option_gives_lines_and_methods_without_it_are_shown_for_comparison() -> None:
    methods = [("mbls", {"margin": "10"}), ("ce", {}), ("mbls", {"margin": "5"}), ("cals-alm", {"margin": "5"})]
    (figure,) = sweeps(result(*methods)).values()
    assert isinstance(figure, Sweep)
    assert (figure.option, figure.names) == ("margin", ["mbls", "ce", "cals-alm, margin=5"])
    assert figure.points == [[5, 10], [], []]  # one margin alone is no sweep
    assert figure.values["ece"] == [[[2, 2.1], [0, 0.1]], [[1, 1.1]], [[3, 3.1]]]
    assert list(figure.values) == ["ece", "adaptive_ece", "accuracy", "nll"]


def test_other_options_make_lines_of_their_own() -> None:
    grid = itertools.product(("phr", "p2"), ("5", "10", "15"))
    found = sweeps(result(*(("cals-alm", {"cals-alm.penalty": p, "margin": m}) for p, m in grid)))
    assert list(found) == ["sweep"]
    assert found["sweep"].names == ["cals-alm, cals-alm.penalty=phr", "cals-alm, cals-alm.penalty=p2"]
    assert found["sweep"].points == [[5, 10, 15]] * 2


def test_two_options_give_a_map_with_gaps_where_runs_are_missing() -> None:
    grid = [("cals-alm", {"cals-alm.rho_init": r, "margin": m}) for r in ("1", "10") for m in ("5", "10", "15")]
    (figure,) = sweeps(result(*grid[:-1])).values()
    assert isinstance(figure, SweepMap)
    assert (figure.name, figure.options, figure.points) == ("cals-alm", ["rho_init", "margin"], [[1, 10], [5, 10, 15]])
    assert figure.values["nll"] == [[[0, 0.1], [1, 1.1], [2, 2.1]], [[3, 3.1], [4, 4.1], []]]
    drawn = figure.plot()
    texts = [[text.get_text() for text in own.texts] for own in drawn.child_axes]
    assert texts[3] == [f"{mean + 0.05:.3f}" for mean in range(5)]  # NLL, nothing in the gap


def test_of_three_options_the_longest_is_drawn() -> None:
    grid = itertools.product(("1", "2"), ("5", "10", "15"), ("3", "4"))
    found = sweeps(result(*(("x", {"a": a, "b": b, "c": c}) for a, b, c in grid)))
    assert found["sweep"].option == "b"
    assert found["sweep"].names == ["x, a=1, c=3", "x, a=1, c=4", "x, a=2, c=3", "x, a=2, c=4"]


def test_several_sweeps_have_names_of_their_own_and_a_study_without_options_none() -> None:
    methods = [("fl", {"fl.gamma": g}) for g in ("3", "5")] + [("mbls", {"margin": m}) for m in ("5", "10")]
    found = sweeps(result(*methods, ("ce", {})))
    assert list(found) == ["sweep-fl.gamma", "sweep-margin"]
    assert [figure.names for figure in found.values()] == [["fl", "ce"], ["mbls", "ce"]]
    assert sweeps(result(("ce", {}), ("mbls", {}))) == {}
    assert sweeps(result(("ce", {"validation": "clean"}), ("ce", {"validation": "noisy"}))) == {}


def test_axes_follow_the_values() -> None:
    assert Scale.of([5, 10, 20]).kind == "linear"
    assert Scale.of([1e-6, 1e-3, 1]).kind == "log"
    unlimited = Scale.of([20, 50, math.inf, 20])
    assert (unlimited.kind, unlimited.places([50, math.inf])) == ("even", [1, 2])
    figure = Sweep("gamma_max", ["adafocal"], [[20, 50, math.inf]], {"ece": [[[0.01], [0.02], [0.03]]]})
    shown = figure.plot().child_axes[0]
    assert [label.get_text() for label in shown.get_xticklabels()] == ["20", "50", "inf"]
    assert plain(figure)["labels"] == ["20", "50", "inf"]


def test_compare_draws_what_its_runs_measured(tmp_path: Path) -> None:
    command = ["compare", "digits-lt", "--quiet", "--losses", "mbls", "--set", "loss.margin=1,2", "--seeds", "2"]
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "sweep-old.png").write_text("of another command")
    assert main([*command, "--epochs", "1", "--data.limit", "60", "--model", "mlp", "--out", str(folder), "--report"]) == 0
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert not (folder / "sweep-old.png").exists()
    report = Report(folder)
    figure = report.found.sweeps["sweep"]
    assert (figure.names, figure.points) == (["mbls"], [[1, 2]])
    for place, margin in enumerate((1, 2)):
        runs = [json.loads((folder / f"mbls,margin={margin}-seed{s}/metrics.json").read_text()) for s in (0, 1)]
        own = [run["test"]["ece"] for run in runs]
        assert figure.values["ece"][0][place] == own
        bars = figure.plot().child_axes[0].containers[0]
        assert bars.lines[0].get_ydata()[place] == pytest.approx(100 * statistics.mean(own))
        (low, high) = bars.lines[2][0].get_segments()[place][:, 1]
        assert high - low == pytest.approx(200 * statistics.stdev(own))
    (shown,) = report.content["sweeps"]
    assert shown["measures"][0]["values"][0][0] == [100 * value for value in figure.values["ece"][0][0]]
    assert "sweep" in figures(report.found, report.content)
    assert [path.name for path in save(tmp_path, "sweep", figure)] == ["sweep.pdf", "sweep.png"]
