"""Events (binary and multi-label tasks) and soft targets, against torchmetrics, scikit-learn and repeated labels."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss
from torch import Tensor
from torchmetrics.functional.classification import binary_calibration_error

from calibrant import functional as cal, metrics, posthoc, stats
from calibrant.audit import Audit, audit, compare, figure
from calibrant.metrics import MEASURES, Panel, estimators
from calibrant.outcomes import Outcomes
from calibrant.plots import ReliabilityDiagram
from calibrant.predictions import open_predictions

L = 4
CALIBRATION = ["ece", "mce", "overconfidence", "underconfidence", "adaptive_ece", "debiased_ece", "sweep_ece", "smooth_ece"]


def events(n: int = 600, labels: int = L) -> tuple[Tensor, Tensor]:
    """Logits of rare and common events, overconfident by different factors, and whether they happened."""
    generator = torch.Generator().manual_seed(0)
    truth = 2 * torch.randn(n, labels, generator=generator, dtype=torch.float64) - torch.arange(labels)
    happened = (torch.rand(n, labels, generator=generator) < truth.sigmoid()).long()
    return truth * (1 + torch.arange(labels) / 2), happened


def test_binary_errors_are_of_the_events_probability() -> None:
    logits, target = (part[:, 1] for part in events())
    probs = logits.sigmoid()
    for norm, name in ((1, "l1"), (2, "l2")):
        expected = binary_calibration_error(probs, target, n_bins=15, norm=name)
        assert float(cal.ece(logits, target, norm=norm, task="binary")) == pytest.approx(float(expected), rel=1e-9)
    expected = binary_calibration_error(probs, target, n_bins=15, norm="max")
    assert float(cal.mce(logits, target, task="binary")) == pytest.approx(float(expected), rel=1e-9)
    assert float(cal.nll(logits, target, task="binary")) == pytest.approx(log_loss(target, probs), rel=1e-9)
    assert float(cal.brier_score(logits, target, task="binary")) == pytest.approx(2 * brier_score_loss(target, probs))
    assert float(cal.accuracy(logits, target, task="binary")) == pytest.approx(
        float(((probs > 0.5) == target).double().mean())
    )
    # sorted estimates: the same formula on (probability, happened)
    ordered = estimators.sort_outcomes(Outcomes(probs, target == 1))
    for name, formula in (
        ("adaptive_ece", estimators.adaptive_error),
        ("debiased_ece", estimators.debiased_sorted_error),
        ("sweep_ece", estimators.sweep_error),
        ("smooth_ece", estimators.smooth_error),
    ):
        found = float(getattr(cal, name)(logits, target, task="binary"))
        assert found == pytest.approx(float(formula(ordered)), rel=1e-6), name
    # what one acts on is the more probable class
    both = torch.stack([torch.zeros_like(logits), logits], dim=1)
    for name in ("aurc", "coverage_at_risk", "accuracy", "nll", "brier_score"):
        assert float(getattr(cal, name)(logits, target, task="binary")) == pytest.approx(
            float(getattr(cal, name)(both, target))
        )


def test_panels_of_events_agree_with_the_functions() -> None:
    logits, target = (part[:, 2] for part in events())
    panel = Panel(num_classes=2, task="binary")
    for start in range(0, 600, 150):
        panel.update(logits[start : start + 150], target[start : start + 150])
    result = panel.compute()
    for key, record in MEASURES.items():
        if record.function is None or not result.has(record):
            continue
        expected = float(record.function(logits, target, task="binary"))
        assert result[key] == pytest.approx(expected, abs=2e-4 if record.on in ("sorted", "accepted") else 1e-9), key
    module = metrics.CalibrationPanel(2, task="binary")
    module.update(logits, target)
    assert module.compute().ece == pytest.approx(result.ece)
    intervals = stats.panel_intervals(result, resamples=100)
    for key in ("ece", "accuracy", "aurc", "nll"):
        assert intervals[key].low <= result[key] <= intervals[key].high
    assert stats.bootstrap("ece", logits, target, task="binary", resamples=100).value == pytest.approx(result.ece)
    assert stats.bootstrap("aurc", logits, target, task="binary", resamples=50).value == pytest.approx(result.aurc, abs=2e-4)


def test_rare_events_are_resolved_while_streaming() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(20_000, generator=generator, dtype=torch.float64) - 8  # probabilities around 0.0003
    target = (torch.rand(20_000, generator=generator) < (logits + 1).sigmoid()).long()
    metric = metrics.AdaptiveECE(streaming=True, task="binary")
    metric.update(logits, target)
    assert float(metric.compute()) == pytest.approx(float(cal.adaptive_ece(logits, target, task="binary")), rel=1e-3)


@pytest.mark.parametrize("name", [*CALIBRATION, "accuracy", "nll", "brier_score", "aurc", "coverage_at_risk"])
def test_labels_are_pooled(name: str) -> None:
    logits, target = events()
    function = getattr(cal, name)
    expected = float(function(logits.flatten(), target.flatten(), task="binary"))
    assert float(function(logits, target, task="multilabel")) == pytest.approx(expected)
    assert function(logits.sigmoid().numpy(), target.numpy(), task="multilabel", probs=True) == pytest.approx(
        expected, rel=1e-6
    )
    frames = pd.DataFrame(logits.numpy(), columns=list("abcd")), pd.DataFrame(target.numpy(), columns=list("abcd"))
    assert function(*frames, task="multilabel") == pytest.approx(expected)
    hidden = target.clone()
    hidden[::3, 1] = -100
    kept = hidden.flatten() != -100
    expected = float(function(logits.flatten()[kept], hidden.flatten()[kept], task="binary"))
    assert float(function(logits, hidden, task="multilabel")) == pytest.approx(expected)
    own = cal.per_label(function, logits, hidden)
    one_by_one = [float(function(logits[:, k], hidden[:, k], task="binary")) for k in range(L)]
    assert own == pytest.approx(one_by_one)


def test_panels_and_modules_of_labels() -> None:
    logits, target = events()
    target[::3, 1] = -100
    panel = Panel(L, task="multilabel")
    for start in range(0, 600, 150):
        panel.update(logits[start : start + 150], target[start : start + 150])
    result = panel.compute()
    assert result.samples == int((target != -100).sum())
    for key, record in MEASURES.items():
        if record.function is None or not result.has(record) or key == "mean_iou":
            continue
        expected = float(record.function(logits, target, task="multilabel"))
        assert result[key] == pytest.approx(expected, abs=2e-4 if record.on in ("sorted", "accepted") else 1e-9), key
    for name, of_row in (("ece", "ece"), ("nll", "nll"), ("brier_score", "brier"), ("accuracy", "accuracy")):
        found = [getattr(row, of_row) for row in result.classes]
        assert found == pytest.approx(cal.per_label(getattr(cal, name), logits, target))
    assert float(cal.classwise_ece(logits, target, task="multilabel")) == pytest.approx(
        np.mean(cal.per_label(cal.ece, logits, target))
    )
    assert float(cal.classwise_ece(logits, target, binning="mass", task="multilabel")) == pytest.approx(
        np.mean(cal.per_label(cal.adaptive_ece, logits, target))
    )
    split = cal.brier_split(logits, target, task="multilabel")
    assert result.brier_calibration == pytest.approx(float(split.calibration))
    parts = [cal.brier_split(logits[:, k], target[:, k], task="binary") for k in (0, 2, 3)]
    without = [cal.brier_split(logits[:, [0, 2, 3]], target[:, [0, 2, 3]], task="multilabel")]
    assert float(without[0].calibration) == pytest.approx(np.mean([float(part.calibration) for part in parts]))
    for module in (
        metrics.ECE(task="multilabel"),
        metrics.ClasswiseECE(L, task="multilabel"),
        metrics.SmoothECE(task="multilabel"),
    ):
        module.update(logits[:300], target[:300])
        module.update(logits[300:], target[300:])
        name = {"ECE": "ece", "ClasswiseECE": "classwise_ece", "SmoothECE": "smooth_ece"}[type(module).__name__]
        assert float(module.compute()) == pytest.approx(
            float(getattr(cal, name)(logits, target, task="multilabel")), rel=1e-6
        )


def test_diagrams_of_events() -> None:
    logits, target = events()
    one = ReliabilityDiagram.from_logits(logits[:, 0], target[:, 0], task="binary", resamples=50)
    assert one.axes == ("probability of the event", "frequency")
    assert one.ece == pytest.approx(float(cal.ece(logits[:, 0], target[:, 0], task="binary")))
    several = ReliabilityDiagram.per_label(logits, target, ["dog", "cat", "car", "sky"])
    assert [diagram.ece for diagram in several] == pytest.approx(cal.per_label(cal.ece, logits, target))
    axes = several[0].plot()
    assert axes.get_ylabel() == "frequency"
    assert len(ReliabilityDiagram.side_by_side(several).axes) >= L
    with pytest.raises(ValueError, match="one name for each of 4 labels"):
        ReliabilityDiagram.per_label(logits, target, ["dog"])


def test_a_file_with_one_score_is_audited_as_an_event(tmp_path: Path) -> None:
    logits, target = (part[:, 0].numpy() for part in events())
    other = logits / 2
    for name, scores in (("a", logits), ("b", other)):
        frame = pd.DataFrame({"score": 1 / (1 + np.exp(-scores)), "label": np.where(target == 1, "spam", "ham")})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    first, second = (_audited(tmp_path / f"{name}.csv") for name in "ab")
    assert first.event == "spam"
    assert first["ece"] == pytest.approx(float(cal.ece(logits, target, task="binary")), abs=1e-6)
    assert first["accuracy"] == pytest.approx(float(((logits > 0) == target).mean()))
    assert "the probability of spam is off by" in first.verdict
    from calibrant.audit import Audit

    measures = compare(first, second, resamples=50).measures
    assert measures["accuracy"].difference == 0  # the sign of the score is the same
    assert measures["ece"].difference == pytest.approx(first["ece"] - second["ece"], abs=1e-6)
    assert Audit.from_dict(first.to_dict()).event == "spam"
    assert figure([first]).axes[0].get_ylabel() == "frequency"


def _audited(path: Path) -> Audit:

    return audit(open_predictions(path, positive="spam", kind="probs"), resamples=50, keep=True)


@pytest.mark.parametrize("task", ["multilabel", "binary"])
def test_bad_events(task: str) -> None:
    logits, target = events()
    if task == "binary":
        with pytest.raises(ValueError, match=r'task="binary".*one score per sample.*got shape \(600, 4\)'):
            cal.ece(logits, target, task="binary")
        return
    with pytest.raises(ValueError, match=r"target must have the shape of the logits, \(600, 4\), got \(600, 3\)"):
        cal.ece(logits, target[:, :3], task="multilabel")
    with pytest.raises(ValueError, match=r"logits must have shape \(N, L"):
        cal.ece(logits[:, 0], target[:, 0], task="multilabel")
    with pytest.raises(ValueError, match="logits have 4 labels in dimension 1, but num_classes=5"):
        Panel(5, task="multilabel").update(logits, target)
    with pytest.raises(ValueError, match="target has value 2"):
        cal.ece(logits, target + 1, task="multilabel")
    with pytest.raises(ValueError, match=r'PerLabel\("platt"\)'):
        posthoc.PlattScaling().fit(logits, target, task="multilabel")
    frames = pd.DataFrame(logits.numpy(), columns=list("abcd")), pd.DataFrame(target.numpy(), columns=list("dcba"))
    with pytest.raises(ValueError, match="same columns in the same order"):
        cal.ece(*frames, task="multilabel")


# Soft targets: votes of four annotators are the same as four samples with a label each


def votes(n: int = 300, k: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, soft targets in quarters, and the same as hard labels of repeated samples."""
    generator = torch.Generator().manual_seed(2)
    logits = 3 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / 2).softmax(dim=1), 4, replacement=True, generator=generator)
    soft = torch.nn.functional.one_hot(labels, k).double().mean(dim=1)
    return logits, soft, logits.repeat_interleave(4, dim=0), labels.flatten()


@pytest.mark.parametrize(
    "name",
    ["accuracy", "top_k_accuracy", "nll", "brier_score", "ece", "mce", "classwise_ece", "smooth_ece", "overconfidence"],
)
def test_soft_targets_are_expectations(name: str) -> None:
    logits, soft, repeated, labels = votes()
    options = {"k": 2} if name == "top_k_accuracy" else {}
    expected = float(getattr(cal, name)(repeated, labels, **options))
    assert float(getattr(cal, name)(logits, soft, **options)) == pytest.approx(expected, rel=1e-9)
    assert getattr(cal, name)(logits.numpy(), soft.numpy(), **options) == pytest.approx(expected, rel=1e-9)
    one_hot = torch.nn.functional.one_hot(labels, 5).double()
    assert float(getattr(cal, name)(repeated, one_hot, **options)) == pytest.approx(expected, rel=1e-9)
    dense = float(getattr(cal, name)(logits.T.reshape(1, 5, 15, 20), soft.T.reshape(1, 5, 15, 20), **options))
    assert dense == pytest.approx(expected, rel=1e-9)


def test_soft_events() -> None:
    logits, soft, repeated, labels = votes(k=2)
    scores, again = logits[:, 1] - logits[:, 0], repeated[:, 1] - repeated[:, 0]
    for name in ("ece", "nll", "brier_score", "accuracy", "smooth_ece"):
        function = getattr(cal, name)
        expected = float(function(again, labels, task="binary"))
        assert float(function(scores, soft[:, 1], task="binary")) == pytest.approx(expected, rel=1e-9), name
        both = float(function(scores[:, None].expand(-1, 2), soft[:, 1:].expand(-1, 2), task="multilabel"))
        assert both == pytest.approx(expected, rel=1e-9), name


def test_where_soft_targets_have_no_meaning() -> None:
    logits, soft, _, _ = votes()
    with pytest.raises(TypeError, match="soft targets, but this needs class labels, whose noise it allows for"):
        cal.debiased_ece(logits, soft)
    with pytest.raises(TypeError, match=r"soft targets.*functions such as calibrant.functional.ece take soft targets"):
        Panel(5).update(logits, soft)
    with pytest.raises(TypeError, match="temperature, vector, matrix and Dirichlet calibration take soft targets"):
        posthoc.create("isotonic").fit(logits, soft)
    with pytest.raises(TypeError, match="soft targets"):
        stats.bootstrap("ece", logits, soft)
    with pytest.raises(ValueError, match="row 0 does not hold probabilities that add up to 1"):
        cal.ece(logits, soft * 2)


@pytest.mark.parametrize("key", ["temperature", "vector", "matrix", "dirichlet"])
def test_calibrators_of_soft_targets(key: str) -> None:
    logits, soft, repeated, labels = votes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, expected = posthoc.create(key).fit(logits, soft), posthoc.create(key).fit(repeated, labels)
    torch.testing.assert_close(found.transform(logits), expected.transform(logits), rtol=1e-5, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        numbers = posthoc.create(key).fit(logits.numpy(), soft.numpy())
    torch.testing.assert_close(numbers.transform(logits), found.transform(logits), rtol=1e-6, atol=1e-8)


def test_the_ece_grid_of_soft_targets() -> None:
    logits, soft, repeated, labels = votes()
    found = posthoc.TemperatureScaling(criterion="ece").fit(logits, soft)
    assert float(found.temperature_) == float(posthoc.TemperatureScaling(criterion="ece").fit(repeated, labels).temperature_)


# Calibrators per label


@pytest.mark.parametrize("key", [key for key, entry in posthoc.CALIBRATORS.items() if not entry.dense])
def test_a_calibrator_for_each_label(key: str, tmp_path: Path) -> None:
    logits, target = events()
    target[::7, 1] = -100
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrators = posthoc.PerLabel(key).fit(logits, target)
        single = posthoc.create(key).fit(logits[:, 1], target[:, 1], task="binary")
    probs = calibrators.predict_proba(logits)
    torch.testing.assert_close(probs[:, 1], single.predict_proba(logits[:, 1], task="binary"))
    torch.testing.assert_close(calibrators.transform(logits).sigmoid(), probs, atol=1e-6, rtol=0)
    given = calibrators.predict_proba(pd.DataFrame(logits.sigmoid().numpy(), columns=list("abcd")), probs=True)
    assert list(given.columns) == list("abcd")
    if key not in ("vector", "matrix", "histogram", "bbq", "venn-abers"):  # not invariant, or steps at the samples
        np.testing.assert_allclose(given.to_numpy(), probs.numpy(), atol=1e-5)
    calibrators.save(tmp_path / "labels")
    torch.testing.assert_close(posthoc.PerLabel.load(tmp_path / "labels")(logits), calibrators(logits))
    if key in ("temperature", "isotonic", "platt"):
        assert cal.ece(probs, target, task="multilabel", probs=True) < 0.6 * cal.ece(logits, target, task="multilabel")


def test_bad_calibrators_per_label(tmp_path: Path) -> None:
    logits, target = events()
    with pytest.raises(ValueError, match="local-temperature calibrates images"):
        posthoc.PerLabel("local-temperature")
    with pytest.raises(RuntimeError, match="not fitted"):
        posthoc.PerLabel()(logits)
    fitted = posthoc.PerLabel().fit(logits, target)
    with pytest.raises(ValueError, match=r"shape \(N, 4, \*spatial\), got \(600, 3\)"):
        fitted(logits[:, :3])
    with pytest.raises(ValueError, match="label 2: there is nothing to fit"):
        posthoc.PerLabel().fit(logits, target.index_fill(1, torch.tensor([2]), -100))
    with pytest.raises(ValueError, match="does not hold calibrators written by PerLabel"):
        posthoc.PerLabel.load(tmp_path)
