"""The panel: one pass, everything, fixed size."""

import inspect
import json
import math
import pickle
import re
import resource
from html import escape
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from test_modules import data, updated
from torch import Tensor

from calibrant import functional as cal, metrics, stats
from measuring import peak_memory

K = 6
EXACT = ["accuracy", "nll", "ece", "overconfidence", "underconfidence", "mce", "classwise_ece", "mean_iou"]
FROM_GRID = ["adaptive_ece", "debiased_ece", "sweep_ece", "smooth_ece", "aurc"]
#: Measures that are also functions of logits and target.
FUNCTIONS = [record for record in metrics.MEASURES.values() if record.function is not None and record.in_panel]


def panel_of(logits: Tensor, target: Tensor, **options: Any) -> metrics.PanelResult:
    panel = metrics.Panel(K, **options)
    panel.update(logits, target)
    return panel.compute()


@pytest.mark.parametrize("sizes", [500, 77], ids=str)
def test_agrees_with_the_functions(sizes: int) -> None:
    logits, target = data()
    result = updated(metrics.CalibrationPanel(K), logits, target, sizes).compute()
    assert result.samples == (target != -100).sum()
    for name in EXACT:
        assert getattr(result, name) == pytest.approx(float(getattr(cal, name)(logits, target)), rel=1e-6), name
    for name in FROM_GRID:
        assert getattr(result, name) == pytest.approx(float(getattr(cal, name)(logits, target)), abs=2e-3), name
    split = cal.brier_split(logits, target)
    assert result.brier == pytest.approx(float(split.total), rel=1e-6)
    assert result.brier_calibration == pytest.approx(float(split.calibration), rel=1e-6)
    assert result.brier_refinement == pytest.approx(float(split.refinement), rel=1e-6)


@pytest.mark.parametrize("record", FUNCTIONS, ids=lambda record: record.key)
def test_every_measure_is_that_of_its_function(record: metrics.Measure) -> None:
    """But for the order of summation the same number; from the grid, if no two samples share a step, too."""
    few, many = data(60), data(500)
    assert len(panel_of(*few).sorted.counts) == (few[1] != -100).sum()
    for logits, target in (few, many):
        expected = float(record.function(logits, target))
        found = panel_of(logits, target)[record.key]
        if record.on in ("bins", "class_bins", "areas"):
            assert found == expected
        elif record.on == "scores" or len(target) == 60:
            assert found == pytest.approx(expected, rel=1e-12)
        else:
            assert found == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("num_bins", [1, 7, 40])
def test_every_measure_takes_the_number_of_bins(num_bins: int) -> None:
    logits, target = data(60)
    result = panel_of(logits, target, num_bins=num_bins)
    for record in FUNCTIONS:
        options = {"num_bins": num_bins} if "num_bins" in inspect.signature(record.function).parameters else {}
        assert result[record.key] == pytest.approx(float(record.function(logits, target, **options)), rel=1e-12), record.key
    assert result.debiased_ece_30 == pytest.approx(float(cal.debiased_ece(logits, target, num_bins=30)), rel=1e-12)
    assert result.sweep_ece_width == pytest.approx(float(cal.sweep_ece(logits, target, binning="width")), rel=1e-12)
    assert result.error == 1 - result.accuracy


def test_merging_is_adding() -> None:
    """Bit for bit what one panel finds that sees both halves; nothing is shared, and nothing is left after a reset."""
    logits, target = data()
    halves = (logits[:200], target[:200]), (logits[200:], target[200:])
    options = {"num_bins": 7, "groups": {"head": [0, 1]}}
    a, b, both, empty = (metrics.Panel(K, **options) for _ in range(4))
    a.update(*halves[0])
    b.update(*halves[1])
    before = b.compute().to_dict()
    for half in halves:
        both.update(*half)
    a.merge(b)
    a.merge(empty)
    empty.merge(a)
    for name, expected in both.state.items():
        assert torch.equal(a.state[name], expected), name
        assert torch.equal(empty.state[name], expected), name
    assert a.compute().to_dict() == empty.compute().to_dict() == both.compute().to_dict()
    a.update(*halves[0])
    assert empty.compute().to_dict() == both.compute(sync=True).to_dict()  # one process has nothing to add
    assert b.compute().to_dict() == before
    b.reset()
    assert b.compute().samples == 0
    b.update(*halves[1])
    assert b.compute().to_dict() == before


def test_the_module_finds_what_the_plain_panel_finds() -> None:
    logits, target = data()
    groups = {"head": [0, 1], "tail": [5]}
    plain, module = metrics.Panel(K, groups=groups), metrics.CalibrationPanel(K, groups=groups)
    for panel in (plain, module):
        for part, labels in zip(logits.split(99), target.split(99), strict=True):
            panel.update(part, labels)
    assert module.compute().to_dict() == plain.compute().to_dict()
    assert set(module.metric_state) == set(plain.state)


def test_dense_with_other_bins() -> None:
    logits, target = data(2 * 8 * 9)
    panel = metrics.CalibrationPanel(K, num_bins=7, ignore_index=255)
    panel.update(logits.view(2, 8, 9, K).movedim(-1, 1), target.view(2, 8, 9).masked_fill(target.view(2, 8, 9) == -100, 255))
    result = panel.compute()
    assert result.ece == pytest.approx(float(cal.ece(logits, target, num_bins=7)), rel=1e-6)
    assert result.mean_iou == pytest.approx(float(cal.mean_iou(logits, target)))
    assert result.foreground_iou == pytest.approx(float(cal.mean_iou(logits, target, rule="released")))


def test_classes_and_groups_are_subsets() -> None:
    logits, target = data(900)
    groups = {"head": [0, 1], "tail": [5], "none": []}
    result = updated(metrics.CalibrationPanel(K, groups=groups), logits, target, 100).compute()
    subsets = {(k,): result.classes[k] for k in range(K)} | {tuple(v): result.groups[n] for n, v in groups.items() if v}
    for classes, group in subsets.items():
        inside = torch.isin(target, torch.tensor(classes))
        part = logits[inside], target[inside]
        assert group.samples == inside.sum()
        for name in ("accuracy", "ece", "nll"):
            assert getattr(group, name) == pytest.approx(float(getattr(cal, name)(*part)), rel=1e-6)
        assert group.brier == pytest.approx(float(cal.brier_score(*part)), rel=1e-6)
        assert group.confidence == pytest.approx(float(part[0].softmax(1).amax(1).mean()), rel=1e-6)
    assert result.groups["none"].samples == 0
    assert sum(group.samples for group in result.classes) == result.samples
    with pytest.raises(ValueError, match="'tail' has class 6, but classes are 0..5"):
        metrics.CalibrationPanel(K, groups={"tail": [6]})


def test_class_groups_are_those_of_imagenet_lt() -> None:
    assert metrics.class_groups([1280, 101, 100, 20, 19, 5]) == {"head": [0, 1], "medium": [2, 3], "tail": [4, 5]}


def test_result_as_dictionary_and_table() -> None:
    logits, target = data()
    result = updated(metrics.CalibrationPanel(K, groups={"head": [0, 1]}), logits, target, 500).compute()
    as_dict = json.loads(json.dumps(result.to_dict()))
    assert as_dict["ece"] == result.ece
    assert as_dict["groups"]["head"]["samples"] == result.groups["head"].samples
    assert len(as_dict["bins"]["counts"]) == 15
    assert as_dict["how"]["ece"].startswith("15 equal-width bins, L1")
    console = Console(width=110, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(result)
    text = console.export_text()
    assert re.search(rf"│ ECE, % +│ +{100 * result.ece:.2f} │ 15 equal-width bins, L1", text)
    assert "15 equal-mass bins, L1" in text
    assert "group head" in text


def test_what_a_result_has() -> None:
    logits, target = data()
    result = panel_of(logits, target, groups={"head": [0, 1]})
    known = {record.key for record in metrics.MEASURES.values() if record.on not in ("images", "outside")} - {
        "top_k_accuracy"
    }
    assert set(result.values()) == known
    assert result.values() == {key: getattr(result, key) for key in result.values()}
    assert set(result.values(1)) == {"accuracy", "mean_iou", "ece", "adaptive_ece", "nll"}
    assert set(result.scalars()) == set(result.values(3)) - {"mean_iou", "foreground_iou"}
    assert all(type(value) is float for value in result.scalars().values())
    for name in ("image_ece", "shift_ece", "top_k_accuracy", "esce"):
        with pytest.raises(AttributeError, match=f"a panel has no '{name}'"):
            getattr(result, name)
    assert repr(result).startswith("PanelResult(446 samples: accuracy ")
    assert f"ECE {100 * result.ece:.2f}, AdaECE" in repr(result)
    assert pickle.loads(pickle.dumps(result)).to_dict() == result.to_dict()  # noqa: S301
    html = result._repr_html_()
    for title, value, how in result.rows():
        assert f">{title}</td>" in html
        assert f">{value}</td>" in html
        assert f">{escape(how)}</td>" in html


def test_standard_errors_by_loops() -> None:
    logits, target = data()
    result = panel_of(logits, target)
    rows = [row for row in zip(logits.split(1), target.split(1), strict=True) if row[1] != -100]
    for key in ("nll", "brier"):
        values = [float(metrics.MEASURES[key].function(*row)) for row in rows]
        expected = np.std(values, ddof=1) / len(values) ** 0.5
        assert result.standard_error(metrics.MEASURES[key]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_of_nothing() -> None:
    result = metrics.CalibrationPanel(K).compute()
    assert result.samples == 0
    assert result.ece != result.ece  # NaN
    panel = metrics.CalibrationPanel(K)
    panel.update(torch.zeros(0, K), torch.zeros(0, dtype=torch.int64))
    assert panel.compute().samples == 0
    assert all(math.isnan(value) for value in metrics.Panel(K).compute().values().values())


@pytest.mark.slow
def test_memory_is_constant_over_updates() -> None:
    """Of (2, 21, 128, 128) logits each: the peak after 220, 7 million pixels, is that after 20."""
    panel = metrics.CalibrationPanel(21, ignore_index=255)
    logits = 3 * torch.randn(2, 21, 128, 128)
    target = torch.randint(21, (2, 128, 128))
    target[:, :3] = 255

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kilobytes

    for _ in range(20):
        panel.update(logits, target)
    state = sum(value.numel() * value.element_size() for value in panel.metric_state.values())
    before = peak()
    for _ in range(200):
        panel.update(logits, target)
    assert peak() - before < 16 * 1024  # some gaps in the heap; one float32 for each of these pixels would take 25 MB
    assert sum(value.numel() * value.element_size() for value in panel.metric_state.values()) == state < 5e6
    assert int(panel.own_counts.sum()) == 220 * int((target != 255).sum())


def test_memory_of_many_classes_is_that_of_a_few_rows_for_each() -> None:
    """ImageNet-21k: a table of pairs of classes would take 3.8 GB; the logits of this batch take 4 MB."""
    classes, samples = 21_841, 48
    logits, target = torch.randn(samples, classes), torch.randint(classes, (samples,))
    panel = metrics.Panel(classes)

    def run() -> None:
        panel.update(logits, target)
        result = panel.compute()
        result.to_dict()

    assert peak_memory(run) < 100e6
    assert sum(part.numel() * part.element_size() for part in panel.state.values()) < 6 * 8 * 15 * classes + 6e6
    result = panel.compute()
    assert result.samples == 2 * samples  # peak_memory runs it twice
    assert result.mean_iou == pytest.approx(float(cal.mean_iou(logits, target)))
    assert result.foreground_iou == pytest.approx(float(cal.mean_iou(logits, target, rule="released")))
    module = metrics.CalibrationPanel(classes)
    module.update(logits, target)
    assert sum(part.numel() * part.element_size() for part in module.metric_state.values()) < 6 * 8 * 15 * classes + 6e6


def test_one_bin_and_one_entry() -> None:
    panel = metrics.CalibrationPanel(2, num_bins=1)
    panel.update(torch.tensor([[2.0, 0.0]]).expand(8, 2), torch.tensor([0, 0, 0, 0, 0, 0, 1, 1]))
    result = panel.compute()
    assert result.bins.counts.shape == result.sorted.counts.shape == (1,)
    assert result.to_dict()["bins"]["counts"] == [8]
    assert result.ece == pytest.approx(float(torch.tensor(2.0).sigmoid()) - 0.75, rel=1e-5)
    assert stats.panel_intervals(result)["ece"].value == result.ece
