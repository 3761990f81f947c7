"""The panel: one pass, everything, fixed size."""

import json
import resource

import pytest
import torch
from rich.console import Console
from test_classes import data, updated

from calibrant import functional as cal
from calibrant import metrics, stats

K = 6
EXACT = ["accuracy", "nll", "ece", "overconfidence", "underconfidence", "mce", "classwise_ece", "mean_iou"]
FROM_GRID = ["adaptive_ece", "debiased_ece", "sweep_ece", "smooth_ece", "aurc"]


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


def test_dense_with_other_bins() -> None:
    logits, target = data(2 * 8 * 9)
    panel = metrics.CalibrationPanel(K, num_bins=7, ignore_index=255)
    panel.update(logits.view(2, 8, 9, K).movedim(-1, 1), target.view(2, 8, 9).masked_fill(target.view(2, 8, 9) == -100, 255))
    result = panel.compute()
    assert result.ece == pytest.approx(float(cal.ece(logits, target, 7)), rel=1e-6)
    assert result.mean_iou == pytest.approx(float(cal.mean_iou(logits, target)))


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
    assert as_dict["recipe"]["ece"] == "15 bins of equal width, L1"
    console = Console(width=110, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(result)
    text = console.export_text()
    assert f"{100 * result.ece:.2f} %" in text
    assert "15 bins of equal mass, L1, closed form" in text
    assert "group head" in text


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_of_nothing() -> None:
    result = metrics.CalibrationPanel(K).compute()
    assert result.samples == 0
    assert result.ece != result.ece  # NaN
    panel = metrics.CalibrationPanel(K)
    panel.update(torch.zeros(0, K), torch.zeros(0, dtype=torch.int64))
    assert panel.compute().samples == 0


@pytest.mark.slow
def test_memory_is_constant_over_500_updates() -> None:
    """Of (2, 21, 256, 256) logits each: 65 million pixels. The peak after 500 is that after 20."""
    panel = metrics.CalibrationPanel(21, ignore_index=255)
    logits = 3 * torch.randn(2, 21, 256, 256)
    target = torch.randint(21, (2, 256, 256))
    target[:, :3] = 255

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kilobytes

    for _ in range(20):
        panel.update(logits, target)
    state = sum(value.numel() * value.element_size() for value in panel.metric_state.values())
    before = peak()
    for _ in range(480):
        panel.update(logits, target)
    assert peak() - before < 8 * 1024
    assert sum(value.numel() * value.element_size() for value in panel.metric_state.values()) == state < 3e6
    assert int(panel.own_counts.sum()) == 500 * int((target != 255).sum())


def test_one_bin_and_one_cell() -> None:
    panel = metrics.CalibrationPanel(2, num_bins=1)
    panel.update(torch.tensor([[2.0, 0.0]]).expand(8, 2), torch.tensor([0, 0, 0, 0, 0, 0, 1, 1]))
    result = panel.compute()
    assert result.bins.counts.shape == result.cells.counts.shape == (1,)
    assert result.to_dict()["bins"]["counts"] == [8]
    assert result.ece == pytest.approx(float(torch.tensor(2.0).sigmoid()) - 0.75, rel=1e-5)
    assert stats.panel_intervals(result)["ece"].value == result.ece
