"""Figures: their data is right, and what they draw is readable. (They were looked at, too.)"""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from calibrant import functional as cal, losses, metrics, plots, stats
from calibrant.plots.base import COLOURS

mpl.use("Agg")


def data(n: int = 600, k: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=random, dtype=torch.float64)
    target = torch.multinomial(logits.softmax(1), 1, generator=random).squeeze(1)
    return 1.6 * logits, target


def adapted(key: str) -> losses.AdaptiveLoss:
    loss = losses.create(key, num_classes=5)
    for epoch in range(12):
        loss.observe(*data(300, seed=epoch))
        loss.adapt()
    return loss


def pixel_figure() -> plots.PixelReliability:
    torch.manual_seed(0)
    label = torch.randint(4, (24, 32))
    label[:3] = 255
    names = ["sky", "road", "car", "tree"]
    return plots.PixelReliability.from_logits(torch.rand(3, 24, 32), torch.randn(4, 24, 32), label, names, ignore_index=255)


def bin_figure() -> plots.BinCurves:
    recorder, rows = metrics.BinRecorder(), []
    for epoch in range(6):
        recorder.train(*data(seed=epoch))
        recorder.validation(*data(seed=9 + epoch))
        rows.append(recorder.take())
    bins = metrics.EpochBins.from_rows(rows, range(1, 7))
    return plots.BinCurves.from_bins({"CE": [bins], "FL": [bins, bins]}, rows=["error", "all"])


RUNS = {"CE": [(0.70, 0.081), (0.71, 0.075)], "LS": [(0.74, 0.03)], "CALS-ALM": [(0.75, 0.015), (0.76, 0.02)]}
BARS = {key: [[0.2, 0.3], [0.25], [0.1, 0.12]] for key in ("ece", "classwise_ece", "nll", "accuracy", "aurc")}
UNKNOWN = {name: (data(seed=i)[0], data(200, seed=9)[0] / 2) for i, name in enumerate(("CE", "CALS"))}
SWEPT = {key: [[[0.2, 0.3], [0.25]], [[0.1, 0.12], [0.2], [0.1]], [[0.4]]] for key in ("ece", "adaptive_ece", "nll")}
MAPPED = {key: [[[0.2, 0.3], [0.25], []], [[0.1, 0.12], [0.2], [0.1]]] for key in ("ece", "accuracy", "nll")}
PATHS = {key: [[[0.2, 0.1, 0.08], [0.3, 0.2, 0.1]], [[0.1, 0.1, 0.08]]] for key in ("ece", "accuracy")}
FIGURES = {
    "ReliabilityDiagram": lambda: plots.ReliabilityDiagram.from_logits(*data(), "a model"),
    "ReliabilityDiagram 25 bins": lambda: plots.ReliabilityDiagram.from_logits(*data(), "a model", num_bins=25),
    "ConfidenceHistogram": lambda: plots.ConfidenceHistogram.from_logits(*data(), "a model"),
    "RiskCoverage": lambda: plots.RiskCoverage.from_logits(*data(), "a model"),
    "AccuracyVsECE": lambda: plots.AccuracyVsECE.from_runs(RUNS),
    "MultiplierPath": lambda: plots.MultiplierPath.from_loss(adapted("cals-alm"), {"cat": 0, "dog": 4}),
    "GammaPath": lambda: plots.GammaPath.from_loss(adapted("adafocal")),
    "MetricPath": lambda: plots.MetricPath(["CE", "CALS"], [[1, 2, 3]] * 2, PATHS),
    "MethodBars": lambda: plots.MethodBars(list(RUNS), BARS),
    "ROC": lambda: plots.ROC.from_logits(UNKNOWN, title="digits and noise"),
    "ShiftCurves": lambda: plots.ShiftCurves(["CE", "CALS"], [0, 1, 2], [[0.9, 0.8, 0.6]] * 2, [[0.02, 0.05, 0.2]] * 2),
    "BinCurves": bin_figure,
    "PenaltyShapes": plots.PenaltyShapes.of,
    "FocalShapes": plots.FocalShapes.of,
    "Sweep": lambda: plots.Sweep("margin", ["mbls", "CALS", "CE"], [[5, 10], [5, 10, 20], []], SWEPT),
    "SweepMap": lambda: plots.SweepMap("CALS", ["rho", "margin"], [[1, 10], [5, 10, 20]], MAPPED),
    "PixelReliability": pixel_figure,
}
every_figure = pytest.mark.parametrize("name", FIGURES)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def text_boxes(figure) -> list[tuple[str, Bbox]]:
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    found = []
    for text in figure.findobj(Text):
        box = text.get_window_extent(renderer)
        if text.get_visible() and text.get_text().strip() and box.width > 0:
            axes = text.axes
            ticks = [] if axes is None else [*axes.get_xticklabels(), *axes.get_yticklabels()]
            shown = text not in ticks or any(t is text for t in ticks if t.get_visible())
            inside = axes is None or axes.axison or text not in ticks
            if shown and inside:
                found.append((text.get_text(), box))
    return found


def overlap(a: Bbox, b: Bbox) -> bool:
    both = Bbox.intersection(a, b)
    return both is not None and both.width > 2 and both.height > 2


@every_figure
def test_draws_texts_that_do_not_overlap(name: str) -> None:
    ax = FIGURES[name]().plot()
    boxes = [(text, box) for text, box in text_boxes(ax.figure) if any(c.isalpha() for c in text)]  # not ticks
    assert len(boxes) >= 2
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        assert not overlap(a, b), (one, other)


@every_figure
def test_draws_into_given_axes_and_keeps_the_users_style(name: str) -> None:
    before = dict(mpl.rcParams)
    _, (left, right) = plt.subplots(1, 2, figsize=(8, 4))
    assert FIGURES[name]().plot(right) is right
    assert not left.has_data()
    assert dict(mpl.rcParams) == before


@every_figure
def test_data_is_plain(name: str) -> None:
    figure = FIGURES[name]()
    assert json.loads(json.dumps(figure.to_dict()))


@every_figure
@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_saves(name: str, ending: str, tmp_path: Path) -> None:
    FIGURES[name]().save(tmp_path / f"figure.{ending}")
    assert (tmp_path / f"figure.{ending}").stat().st_size > 3000
    assert not plt.get_fignums()


def test_reliability_diagram_has_the_bins_of_the_ece() -> None:
    logits, target = data()
    diagram = plots.ReliabilityDiagram.from_logits(logits, target, num_bins=10)
    weights = np.array(diagram.counts) / diagram.samples
    gaps = np.abs(np.array(diagram.confidence) - np.array(diagram.accuracy))
    assert (weights * gaps).sum() == pytest.approx(float(cal.ece(logits, target, num_bins=10))) == pytest.approx(diagram.ece)
    interval = stats.bootstrap("debiased_ece", logits, target, num_bins=10)  # the same, with bins of equal mass
    assert (diagram.ece_low, diagram.ece_high) == pytest.approx((interval.low, interval.high), abs=0.01)
    ends = f"{100 * diagram.ece_low:.2f} to {100 * diagram.ece_high:.2f}%"
    assert diagram.label == f"ECE {100 * diagram.ece:.2f}%, true error {ends}"
    assert diagram.how == "10 equal-width bins, n = 600"
    filled = np.array(diagram.counts) > 0
    assert (np.array(diagram.low)[filled] <= np.array(diagram.accuracy)[filled]).all()
    assert (np.array(diagram.high)[filled] >= np.array(diagram.accuracy)[filled]).all()
    assert np.array(diagram.low)[~filled].tolist() == [0] * (~filled).sum()
    panel = metrics.CalibrationPanel(5, num_bins=10)
    panel.update(logits, target)
    from_panel = plots.ReliabilityDiagram.from_panel(panel.compute())
    assert from_panel.counts == diagram.counts
    assert from_panel.ece == pytest.approx(diagram.ece)
    assert from_panel.label == diagram.label
    interval = stats.true_error_interval(panel.compute().bins)
    given = plots.ReliabilityDiagram.from_panel(panel.compute(), "own", ece=interval)
    assert given == plots.ReliabilityDiagram.from_bins(panel.compute().bins, interval, "own")
    assert given.confidence == pytest.approx(diagram.confidence)
    same = {name: pytest.approx(getattr(given, name)) for name in ("ece", "ece_low", "ece_high", "confidence")}
    assert replace(diagram, name="own", **same) == given


def test_empty_bins_are_not_drawn_as_calibrated() -> None:
    """A bin without samples has no bar; what marks it reaches to the top, hatched."""
    logits = torch.tensor([[9.0, 0.0], [8.0, 0.0]])
    ax = plots.ReliabilityDiagram.from_logits(logits, torch.tensor([0, 1]), num_bins=4, resamples=10).plot()
    hatched = [bar for bar in ax.patches if bar.get_hatch()]
    assert [bar.get_x() for bar in hatched] == [0, 0.25, 0.5]
    assert all(bar.get_height() == 1 for bar in hatched)
    solid = [bar for bar in ax.patches if not bar.get_hatch() and bar.get_height() > 0]
    assert {bar.get_x() for bar in solid} == {0.75}


def test_several_models() -> None:
    diagrams = [plots.ReliabilityDiagram.from_logits(*data(seed=i), f"model {i}", resamples=50) for i in range(5)]
    figure = plots.ReliabilityDiagram.side_by_side(diagrams)
    assert [ax.get_title() for ax in figure.axes if ax.get_title()] == [f"model {i}" for i in range(5)]
    ax = plots.ReliabilityDiagram.overlay(diagrams[:3])
    assert [text.get_text().split(":")[0] for text in ax.get_legend().get_texts()] == ["model 0", "model 1", "model 2"]


def test_confidence_histogram_and_risk_coverage() -> None:
    logits, target = data()
    histogram = plots.ConfidenceHistogram.from_logits(logits, target, num_bins=20)
    assert sum(histogram.right) == round(600 * histogram.accuracy)
    assert sum(histogram.right) + sum(histogram.wrong) == 600
    assert histogram.accuracy == pytest.approx(float(cal.accuracy(logits, target)))
    curve = plots.RiskCoverage.from_logits(logits, target, points=600)
    assert curve.coverage[-1] == 1
    assert curve.risk[-1] == pytest.approx(1 - histogram.accuracy)
    assert np.mean(curve.risk) == pytest.approx(curve.aurc) == pytest.approx(float(cal.aurc(logits, target)))


def test_roc_curves_by_loops_over_thresholds() -> None:
    known, unknown = UNKNOWN["CE"]
    figure = plots.ROC.from_logits({"CE": (known, unknown)}, scores=["max_prob"], points=10**6)
    doubt = [(1 - z.softmax(1).amax(1)).numpy() for z in (known, unknown)]
    thresholds = sorted({*doubt[0], *doubt[1]}, reverse=True)
    for shares, own in zip((figure.known[0], figure.unknown[0]), doubt, strict=True):
        assert shares == pytest.approx([0, *((own >= t).mean() for t in thresholds), 1], abs=1e-6)
    assert np.trapezoid(figure.unknown[0], figure.known[0]) == pytest.approx(figure.auroc[0], abs=1e-4)
    assert figure.auroc == [float(cal.ood_auroc(known, unknown, score="max_prob"))]


def test_bars_are_means_in_the_units_of_each_measure() -> None:
    ax = plots.MethodBars(list(RUNS), BARS).plot()
    shown = [own for own in ax.child_axes if own.patches]
    assert [own.get_ylabel() for own in shown] == ["ECE, %", "classwise ECE, %", "NLL", "accuracy, %", "AURC, %"]
    for own in shown:
        scale = 100 if "%" in own.get_ylabel() else 1
        assert [bar.get_height() for bar in own.patches] == pytest.approx([scale * mean for mean in (0.25, 0.25, 0.11)])


def test_many_methods_stand_below_one_another() -> None:
    names = [f"method {i}" for i in range(20)]
    ax = plots.MethodBars(names, {"ece": [[i / 100] for i in range(20)], "nll": [[i / 10] for i in range(20)]}).plot()
    first, second = (own for own in ax.child_axes if own.patches)
    assert [label.get_text() for label in first.get_yticklabels()] == names
    assert [bar.get_width() for bar in first.patches] == pytest.approx(list(range(20)))
    assert [bar.get_width() for bar in second.patches] == pytest.approx([i / 10 for i in range(20)])
    assert first.yaxis_inverted()


@every_figure
def test_shows_itself_in_notebooks(name: str) -> None:
    figure = FIGURES[name]()
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert repr(figure).startswith(f"{type(figure).__name__}(")
    assert not plt.get_fignums()


def test_accuracy_versus_ece_takes_means_and_deviations() -> None:
    figure = plots.AccuracyVsECE.from_runs(RUNS)
    assert figure.accuracy == pytest.approx([0.705, 0.74, 0.755])
    assert figure.ece_error == pytest.approx([np.std([0.081, 0.075], ddof=1), 0, np.std([0.015, 0.02], ddof=1)])
    assert plots.AccuracyVsECE.from_runs({"a": [(0.5, 0.1)]}).ece_error == []


def test_paths_are_the_history() -> None:
    loss = adapted("cals-alm")
    path = plots.MultiplierPath.from_loss(loss, {"cat": 2})
    history = loss.history()["multipliers"]
    assert path.epochs == list(range(13))
    assert path.highest == pytest.approx(history.amax(1).tolist())
    assert path.classes["cat"] == pytest.approx(history[:, 2].tolist())
    gammas = plots.GammaPath.from_loss(adapted("adafocal"))
    assert len(gammas.gammas) == len(gammas.errors) == 13
    with pytest.raises(TypeError, match="CALSALM has no gammas"):
        plots.GammaPath.from_loss(loss)
    with pytest.raises(TypeError, match="AdaFocal has no multipliers"):
        plots.MultiplierPath.from_loss(adapted("adafocal"))


def test_pixel_reliability_data() -> None:
    figure = pixel_figure()
    assert (figure.label[:3] == -1).all()
    assert figure.image.shape == (24, 32, 3)
    assert 0 < figure.confidence.min() <= figure.confidence.max() <= 1
    with pytest.raises(ValueError, match=r"image must be \(3, H, W\) and logits \(K, H, W\)"):
        plots.PixelReliability.from_logits(torch.rand(3, 8, 8), torch.randn(4, 9, 8), torch.zeros(9, 8, dtype=torch.int64))


def test_colours_differ_in_brightness_or_hue_for_colour_blind_readers() -> None:
    """The palette is Okabe and Ito's: no two of the first five look alike to the red-blind (simulated after Vienot 1999)."""
    rgb = np.array([mpl.colors.to_rgb(c) for c in COLOURS[:5]]) ** 2.2
    to_lms = np.array([[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]])
    seen = np.array([[0, 2.02344, -2.52581], [0, 1, 0], [0, 0, 1]]) @ to_lms
    simulated = np.clip((np.linalg.inv(to_lms) @ seen @ rgb.T).T, 0, 1) ** (1 / 2.2)
    for a, b in itertools.combinations(simulated, 2):
        assert np.abs(a - b).max() > 0.09


def test_wilson_interval() -> None:
    low, high = stats.wilson(torch.tensor([0, 5, 10, 0]), torch.tensor([10, 10, 10, 0]))
    assert low.tolist() == pytest.approx([0, 0.2366, 0.7225, 0], abs=1e-4)
    assert high.tolist() == pytest.approx([0.2775, 0.7634, 1, 1], abs=1e-4)


def test_multipliers_of_boundaries_and_of_the_inside() -> None:
    """CRaC has two for each class."""
    path = np.arange(12.0).reshape(2, 2, 3)
    found = plots.MultiplierPath.from_history(np.array([0, 1]), path, ["a", "b", "c"])
    assert found.highest == [5.0, 11.0]
    assert found.classes["b, boundary"] == [1.0, 7.0]
    assert found.classes["c, inside"] == [5.0, 11.0]


def test_bins_of_equal_mass() -> None:
    """Their error is the adaptive one, and every bar spans its own bin."""
    torch.manual_seed(0)
    logits = 3 * torch.randn(900, 5)
    target = torch.distributions.Categorical(logits=logits / 2).sample()
    diagram = plots.ReliabilityDiagram.from_logits(logits, target, binning="mass", num_bins=10)
    assert all(abs(count - 90) <= 1 for count in diagram.counts)
    assert diagram.ece == pytest.approx(float(cal.adaptive_ece(logits, target, num_bins=10)), abs=1e-9)
    assert diagram.label.startswith("AdaECE ")
    assert diagram.how == "10 equal-mass bins, n = 900"
    bars = [bar for bar in diagram.plot(counts=False).patches if bar.get_height() and bar.get_facecolor()[3]]
    assert {round(bar.get_x(), 6) for bar in bars} == {round(edge, 6) for edge in [0, *diagram.edges]}
    with pytest.raises(ValueError, match="binning must be one of 'width', 'mass'"):
        plots.ReliabilityDiagram.from_logits(logits, target, binning="equal")


def test_the_interval_of_pixels_is_not_called_that_of_the_true_error() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 3, 4, 4)
    target = torch.distributions.Categorical(logits=logits.movedim(1, -1)).sample()
    dense = plots.ReliabilityDiagram.from_logits(logits, target, resamples=50)
    assert dense.resampled
    assert ", interval " in dense.label
    flat = plots.ReliabilityDiagram.from_logits(logits.movedim(1, -1).flatten(0, 2), target.flatten(), resamples=50)
    assert not flat.resampled
    assert ", true error " in flat.label


def test_curves_that_share_axes_are_not_cut_off() -> None:
    ax = plots.RiskCoverage("low", [0.5, 1.0], [0.0, 0.05], 0.02).plot()
    plots.RiskCoverage("high", [0.5, 1.0], [0.0, 0.5], 0.2).plot(ax)
    bottom, top = ax.get_ylim()
    assert bottom == 0
    assert top >= 50
