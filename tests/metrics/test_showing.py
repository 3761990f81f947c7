"""What metrics, results and calibrators show of themselves: in a notebook, as a figure, and to loggers."""

from typing import Any

import matplotlib as mpl
import pytest
import torch
from matplotlib import pyplot as plt
from test_modules import CASES, STREAMING, K, data
from torch import Tensor
from torch.utils.data import DataLoader

from calibrant import metrics, posthoc, stats
from calibrant.audit import audit
from calibrant.plots import ReliabilityDiagram
from calibrant.posthoc import CALIBRATORS

mpl.use("Agg")
#: Metrics of confidences, which draw a reliability diagram, and their number of bins.
CONFIDENCES: dict[str, Any] = {name: case[0] for name, case in CASES.items() if name not in ("ClasswiseECE", "NLL")}
CONFIDENCES = {name: build for name, build in CONFIDENCES.items() if name not in ("BrierScore", "MeanIoU")}
CONFIDENCES |= {f"{name}, streaming": (lambda build=case[0]: build(streaming=True)) for name, case in STREAMING.items()}
CONFIDENCES["CalibrationPanel"] = lambda: metrics.CalibrationPanel(K)
OTHERS = {name: case[0] for name, case in CASES.items() if name not in CONFIDENCES}


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    plt.close("all")


@pytest.mark.parametrize("name", CONFIDENCES)
def test_metrics_of_confidences_draw_a_reliability_diagram(name: str) -> None:
    logits, target = data()
    metric = CONFIDENCES[name]()
    metric.update(logits, target)
    figure, ax = metric.plot()
    assert isinstance(figure, mpl.figure.Figure)
    assert ax.get_title() == type(metric).__name__
    expected = ReliabilityDiagram.from_logits(logits, target, num_bins=getattr(metric, "num_bins", 15), resamples=2)
    drawn = [bar.get_height() for bar in ax.containers[1]]
    both = [min(c, a) for n, c, a in zip(expected.counts, expected.confidence, expected.accuracy, strict=True) if n]
    assert drawn == pytest.approx(both, abs=2e-3)  # of a grid, an edge may be a step off
    own = plt.figure().add_subplot()
    assert metric.plot(ax=own) == (own.figure, own)


@pytest.mark.parametrize("name", OTHERS)
def test_other_metrics_draw_their_value(name: str) -> None:
    metric = OTHERS[name]()
    metric.update(*data())
    figure, ax = metric.plot()
    assert isinstance(figure, mpl.figure.Figure)
    assert ax.lines[0].get_ydata()[0] == pytest.approx(float(metric.compute()))


def test_values_over_time_and_nothing() -> None:
    metric = metrics.ECE()
    with pytest.raises(ValueError, match="ECE has seen no samples: there is nothing to plot; call update first"):
        metric.plot()
    _, ax = metric.plot([torch.tensor(0.3), torch.tensor(0.2), torch.tensor(0.1)])
    assert list(ax.lines[0].get_ydata()) == pytest.approx([0.3, 0.2, 0.1])


def test_intervals_print_as_they_are_written() -> None:
    interval = stats.Interval(0.16123, 0.14199, 0.18049)
    assert repr(interval) == str(interval) == f"{interval}" == "0.161 [0.142, 0.180]"
    assert repr({"ece": interval}) == "{'ece': 0.161 [0.142, 0.180]}"
    assert stats.Interval(**interval.to_dict()) == interval


@pytest.mark.parametrize("key", [key for key, entry in CALIBRATORS.items() if not entry.dense])
@pytest.mark.filterwarnings("ignore:.*alone would make")
def test_calibrators_show_what_they_learned(key: str) -> None:
    logits, target = data(300)
    calibrator = posthoc.create(key)
    assert repr(calibrator).endswith("not fitted)")
    calibrator.fit(logits, target)
    text = repr(calibrator)
    assert text.startswith(f"{type(calibrator).__name__}(")
    assert f"{K} classes" in text
    for name in calibrator.learned:
        value = getattr(calibrator, name)
        if name == "floor_":
            continue
        if value.dim() == 0:
            assert f"{name} = {float(value):.4f}" in text
        else:
            shape = " x ".join(map(str, value.shape))
            assert f"{name}: {shape} from {float(value.min()):.4g} to {float(value.max()):.4g}" in text


def test_results_are_tables_in_a_notebook(tmp_path: Any) -> None:
    import numpy as np

    logits, target = data()
    np.savez(tmp_path / "predictions.npz", logits=logits.numpy(), target=target.numpy())
    found = audit(tmp_path / "predictions.npz", resamples=20)
    panel = metrics.Panel(K)
    panel.update(logits, target)
    for html in (found._repr_html_(), panel.compute()._repr_html_()):
        assert html.startswith("<table>")
        assert "ECE" in html


# Loggers


def test_scalars_are_flat_floats() -> None:
    panel = metrics.CalibrationPanel(K)
    panel.update(*data())
    scalars = panel.compute().scalars()
    assert {"accuracy", "ece", "nll", "brier", "debiased_ece"} <= scalars.keys()
    assert all(type(name) is str and type(value) is float for name, value in scalars.items())


def lightning_module(*, scalars: bool) -> Any:
    import lightning.pytorch as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.panel = metrics.CalibrationPanel(K)
            self.ece = metrics.ECE()

        def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
            self.panel.update(*batch)
            self.ece(*batch)
            self.log("ece", self.ece)
            if not scalars:
                self.log("panel", self.panel)

        def on_validation_epoch_end(self) -> None:
            if scalars:
                self.log_dict({f"panel/{name}": value for name, value in self.panel.compute().scalars().items()})
                self.panel.reset()

    return Module()


@pytest.mark.filterwarnings("ignore")
def test_lightning_logs_scalars_and_is_told_so(tmp_path: Any) -> None:
    import lightning.pytorch as lightning

    logits, target = data()
    batches = DataLoader(list(zip(logits.split(100), target.split(100), strict=True)), batch_size=None)
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(**quiet, enable_checkpointing=False, default_root_dir=tmp_path)
    (found,) = trainer.validate(lightning_module(scalars=True), batches, verbose=False)
    panel = metrics.Panel(K)
    panel.update(logits, target)
    for name, value in panel.compute().scalars().items():
        assert found[f"panel/{name}"] == pytest.approx(value, rel=1e-5)
    assert found["ece"] == pytest.approx(found["panel/ece"], rel=1e-5)
    with pytest.raises(ValueError, match=r"logged as 'panel' must be a tensor.*scalars\(\).*self.log_dict"):
        trainer.validate(lightning_module(scalars=False), batches, verbose=False)
