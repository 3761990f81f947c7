"""Whatever predictions come as: probabilities, single scores, arrays, data frames, lists; the number is the same."""

import inspect
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_calibration_error

from calibrant import functional as cal, inputs, metrics, plots, posthoc, stats
from calibrant.metrics import FUNCTIONS
from calibrant.posthoc import CALIBRATORS

K = 4
Numbers = float | list[float]


def flat(value: Any) -> list[float]:
    """All numbers of a result, however nested."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, Tensor):
        value = value.double().flatten().tolist()
    if isinstance(value, np.ndarray):
        value = value.flatten().tolist()
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in flat(part)]
    return [float(value)] if isinstance(value, (int, float)) else []


def module(build: Callable[..., Any]) -> Callable[..., Any]:
    """A metric module as a function: options of the call go to its constructor."""

    def measure(logits: Any, target: Any, **given: Any) -> Any:
        metric = build(**given)
        half = len(target) // 2
        for part in (slice(half), slice(half, None)):
            metric.update(logits[part], target[part])
        return metric.compute()

    return measure


def as_images(logits: Any, target: Any) -> tuple[Any, Any]:
    """Samples as images of one pixel."""
    if isinstance(logits, list):
        return [[[z] for z in np.atleast_1d(row)] for row in logits], [[label] for label in target]
    if hasattr(logits, "columns"):
        return logits, target  # tables have no pixels
    return logits.reshape(len(logits), -1, 1), target.reshape(len(target), 1)


def calibrator(key: str) -> Callable[..., Any]:
    def measure(logits: Any, target: Any, ignore_index: int = -100, **given: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = posthoc.create(key).fit(logits, target, ignore_index=ignore_index, **given)
        return [fitted.predict_proba(logits, **given)]

    return measure


def image_bins(logits: Any, target: Any, **given: Any) -> Any:
    found = stats.ImageBins()
    found.update(logits, target, **given)
    return [part.tolist() for bins in found.bins for part in bins]


#: Everything that takes logits and target, by name.
ENTRANCES: dict[str, Callable[..., Any]] = {
    **FUNCTIONS,
    "brier_split": cal.brier_split,
    "per_image": lambda *x, **given: cal.per_image(cal.ece, *as_images(*x), **given),
    "ECE": module(metrics.ECE),
    "MCE": module(metrics.MCE),
    "NLL": module(metrics.NLL),
    "AdaptiveECE": module(metrics.AdaptiveECE),
    "AdaptiveECE, streaming": module(lambda **given: metrics.AdaptiveECE(streaming=True, **given)),
    "BrierScore": module(metrics.BrierScore),
    "ClasswiseECE": module(lambda task="multiclass", **given: metrics.ClasswiseECE(_classes(task), task=task, **given)),
    "DebiasedECE": module(metrics.DebiasedECE),
    "MeanIoU": module(lambda task="multiclass", **given: metrics.MeanIoU(_classes(task), task=task, **given)),
    "PerImage": lambda *x, **given: module(lambda: metrics.PerImage(cal.ece, num_bins=7, **given))(*as_images(*x)),
    "SmoothECE": module(metrics.SmoothECE),
    "SweepECE": module(metrics.SweepECE),
    "CalibrationPanel": lambda *x, task="multiclass", **given: module(
        lambda: metrics.CalibrationPanel(_classes(task), task=task, **given)
    )(*x).values(),
    "Panel": lambda *x, task="multiclass", **given: module(lambda: metrics.Panel(_classes(task), task=task, **given))(
        *x
    ).values(),
    "bootstrap": lambda *x, **given: list(stats.bootstrap("ece", *x, resamples=20, **given)),
    "bootstrap of a mean": lambda *x, **given: list(stats.bootstrap("nll", *x, resamples=20, **given))[:1],
    "bootstrap without shortcut": lambda *x, **given: list(stats.bootstrap(cal.classwise_ece, *x, resamples=3, **given)),
    "bootstrap, inversion": lambda *x, **given: list(stats.bootstrap("debiased_ece", *x, resamples=20, **given)),
    "bootstrap of one's own": lambda *x, **given: list(
        stats.bootstrap(partial(cal.mce, num_bins=7), *x, resamples=3, **given)
    ),
    "calibration_test": lambda *x, **given: stats.calibration_test(*x, resamples=20, **given).to_dict(),
    "ImageBins": image_bins,
    "ReliabilityDiagram": lambda *x, **given: plots.ReliabilityDiagram.from_logits(*x, resamples=20, **given).to_dict(),
    "ConfidenceHistogram": lambda *x, **given: plots.ConfidenceHistogram.from_logits(*x, **given).to_dict(),
    "RiskCoverage": lambda *x, **given: plots.RiskCoverage.from_logits(*x, points=9, **given).to_dict(),
    **{key: calibrator(key) for key, entry in CALIBRATORS.items() if not entry.dense},
}
every = pytest.mark.parametrize("name", ENTRANCES)
#: Without calibrators that take long to fit; they enter where the others do.
LIGHT = [name for name in ENTRANCES if name not in ("vector", "matrix", "dirichlet", "platt", "isotonic", "bbq", "spline")]
#: Those that give one number.
NUMBERS = [*FUNCTIONS, "per_image"]


def _classes(task: str) -> int:
    return 2 if task == "binary" else K


def data(n: int = 90, k: int = K, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=random, dtype=torch.float64)
    target = torch.multinomial((logits / 2).softmax(1), 1, generator=random).squeeze(1)
    target[::11] = -100
    return logits, target


def test_everything_that_takes_logits_is_tested() -> None:
    """By name, or through what it is part of."""
    known = {name.split(",")[0].split()[0] for name in ENTRANCES}
    others = {"ood_auroc", "ood_aupr", "ood_fpr95", "auroc_interval", "ROC", "PixelReliability", "from_probs"}  # below
    others |= {"per_label"}  # in test_events.py
    modules = [
        name
        for name in metrics.__all__
        if isinstance(getattr(metrics, name), type) and hasattr(getattr(metrics, name), "update")
    ]
    figures = [name for name in plots.__all__ if hasattr(getattr(plots, name), "from_logits")]
    functions = [name for name in cal.__all__ if not name.endswith("_loss")]
    statistics = [name for name in stats.__all__ if "logits" in str(inspect.signature(getattr(stats, name)))]
    calibrators = [key for key, entry in CALIBRATORS.items() if not entry.dense]
    wanted = {*modules, *figures, *functions, *statistics, *calibrators}
    assert len(wanted) > 50
    assert wanted <= known | others, wanted - known - others


@pytest.mark.parametrize("name", [*FUNCTIONS, "brier_split"])
def test_signatures_show_the_options(name: str) -> None:
    signature = inspect.signature(ENTRANCES[name])
    assert list(signature.parameters)[-3:] == ["ignore_index", "probs", "task"]
    assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'prob'; did you mean 'probs'"):
        ENTRANCES[name](*data(), prob=True)


@pytest.mark.parametrize("build", [partial(metrics.Panel, 3), metrics.ECE])
def test_misspelt_options_of_classes_are_refused(build: Callable[..., Any]) -> None:
    with pytest.raises((TypeError, ValueError), match="prob"):
        build(prob=True)


# Probabilities


def with_zeros(probs: Tensor, target: Tensor) -> Tensor:
    """Probabilities of which some, not those of true classes, are 0."""
    small = probs < 0.05
    small[torch.arange(len(probs)), target.clamp(min=0)] = False
    probs = probs.masked_fill(small, 0)
    return probs / probs.sum(dim=1, keepdim=True)


@every
def test_probabilities_are_refused_as_logits(name: str) -> None:
    logits, target = data()
    for probs in (logits.softmax(1), with_zeros(logits.softmax(1), target), logits.softmax(1).float()):
        with pytest.raises(ValueError, match="are probabilities: no row has a negative value.*pass `probs=True`"):
            ENTRANCES[name](probs, target)


@pytest.mark.parametrize("name", [*LIGHT, "vector", "platt"])
def test_probabilities_are_their_logarithms(name: str) -> None:
    logits, target = data()
    probs = with_zeros(logits.softmax(1), target)
    assert (probs == 0).any()
    found = flat(ENTRANCES[name](probs, target, probs=True))
    assert found
    assert found == pytest.approx(flat(ENTRANCES[name](probs.log(), target)), rel=1e-12, nan_ok=True)
    if name != "vector":  # which looks at the logits themselves
        found, expected = (flat(ENTRANCES[name](*x)) for x in ((probs.log(), target), (probs.log() + 3.7, target)))
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6, nan_ok=True)


@every
def test_logits_are_refused_as_probabilities(name: str) -> None:
    logits, target = data()
    with pytest.raises(ValueError, match="probs: row 1 .*has the value -.*not a probability; if these are logits"):
        ENTRANCES[name](logits, target, probs=True)


def test_the_number_in_the_issue() -> None:
    """A softmax of probabilities has another calibration error, and another temperature."""
    random = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(4000, 5, generator=random, dtype=torch.float64)
    target = torch.multinomial((logits / 2).softmax(1), 1, generator=random).squeeze(1)
    probs = logits.softmax(1)
    right, twice = cal.ece(probs, target, probs=True), cal.ece(probs, target, probs=False)
    assert float(right) == pytest.approx(float(cal.ece(logits, target)))
    assert abs(float(right) - float(twice)) > 0.02
    found = posthoc.TemperatureScaling().fit(probs, target, probs=True)
    assert float(found.temperature_) == pytest.approx(2, abs=0.15)
    assert float(posthoc.TemperatureScaling().fit(probs, target, probs=False).temperature_) < 0.5


REFUSED = {
    "one-hot rows": torch.eye(3)[[0, 1, 2, 0]],
    "one-hot rows of whole numbers": [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]],
    "equal rows": torch.full((4, 3), 1 / 3),
    "one row": torch.tensor([[0.2, 0.8]]),
    "float16": torch.randn(4, 3).softmax(1).half(),
    "bfloat16 of many classes": torch.randn(4, 1000).softmax(1).bfloat16(),
    "two digits": (100 * torch.rand(40, 10).softmax(1)).round() / 100,
    "three digits": ((1000 * (5 * torch.randn(40, 10)).softmax(1)).round() / 1000).double(),
    "images": torch.randn(2, 3, 5, 7).softmax(1),
    "channels last": torch.randn(2, 3, 5, 7).softmax(1).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_all_sorts_of_probabilities_are_noticed_and_taken(kind: str) -> None:
    probs = REFUSED[kind]
    shape = np.shape(probs)
    target = torch.zeros((shape[0], *shape[2:]), dtype=torch.int64)
    with pytest.raises(ValueError, match="pass `probs=True`"):
        cal.ece(probs, target)
    as_tensor = torch.as_tensor(probs).double() if not isinstance(probs, Tensor) else probs.float()
    largest = (as_tensor / as_tensor.sum(1, keepdim=True)).double().amax(1)
    right = (as_tensor.argmax(1) == 0).double()
    assert float(cal.ece(probs, target, probs=True, num_bins=1)) == pytest.approx(
        abs(float(largest.mean() - right.mean())), abs=1e-3
    )


LOGITS = {
    "negative": torch.tensor([[-0.1, 1.1], [0.5, 0.5]]),
    "one row that does not add up": torch.tensor([[0.5, 0.5], [0.5, 0.6]]),
    "positive": torch.rand(20, 5) + 0.1,
    "zeros": torch.zeros(5, 3),
    "log-probabilities": torch.randn(20, 5).log_softmax(1),
    "all classes at 1": torch.ones(5, 3),
    "shifted probabilities": torch.randn(20, 5).softmax(1) - 1,
}


@pytest.mark.parametrize("kind", LOGITS)
def test_logits_are_let_through(kind: str) -> None:
    logits = LOGITS[kind]
    assert cal.nll(logits, torch.zeros(len(logits), dtype=torch.int64)).isfinite()


def test_said_to_be_logits_they_are_logits() -> None:
    probs, target = torch.randn(50, 3).softmax(1), torch.randint(3, (50,))
    assert cal.nll(probs, target, probs=False) == pytest.approx(float(torch.nn.functional.cross_entropy(probs, target)))
    assert stats.bootstrap("classwise_ece", probs, target, probs=False, resamples=3).value == cal.classwise_ece(
        probs, target, probs=False
    )
    assert posthoc.TemperatureScaling(criterion="ece").fit(probs, target, probs=False).temperature_ > 0


def test_ignored_rows_may_be_anything() -> None:
    probs, target = torch.randn(200, 3).softmax(1), torch.randint(3, (200,))
    expected = cal.ece(probs[100:], target[100:], probs=True)
    probs[:100], target[:100] = torch.nan, 255
    assert cal.ece(probs, target, probs=True, ignore_index=255) == expected
    with pytest.raises(ValueError, match="pass `probs=True`"):
        cal.ece(probs, target, ignore_index=255)
    probs[:100] = -5
    with pytest.raises(ValueError, match="pass `probs=True`"):
        cal.ece(probs, target, ignore_index=255)
    assert cal.ece(probs, target, probs=True, ignore_index=255) == expected


def test_looking_at_logits_costs_a_glance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of real logits a few rows are looked at, and no sums are made."""
    seen: list[int] = []
    monkeypatch.setattr(inputs, "off_one", lambda scores: seen.append(scores.numel()))
    corner = inputs.corner
    monkeypatch.setattr(inputs, "corner", lambda *x: seen.append(corner(*x).numel()) or corner(*x))
    inputs.for_measuring(torch.randn(100_000, 10), torch.zeros(100_000, dtype=torch.int64))
    inputs.for_measuring(torch.randn(3, 10, 200, 200), torch.zeros(3, 200, 200, dtype=torch.int64))
    assert seen == [640, 64, 30, 3]


def test_rounded_probabilities_that_rounding_does_not_explain() -> None:
    probs = torch.tensor([[0.5, 0.4], [0.2, 0.8]])
    with pytest.raises(ValueError, match="row 0 adds up to 0.9, not to 1.*if they were rounded, divide by the sum"):
        cal.ece(probs, torch.tensor([0, 1]), probs=True)
    thirds = torch.tensor([[0.33, 0.33, 0.33], [0.1, 0.2, 0.7]])
    assert cal.nll(thirds, torch.tensor([0, 2]), probs=True) == pytest.approx(-np.log(0.7 / 3) / 2, rel=1e-6)
    with pytest.raises(ValueError, match="row 0 adds up to 0.99"):
        cal.from_probs(thirds, tolerance=1e-3)


@pytest.mark.parametrize("function", [cal.ood_auroc, cal.ood_aupr, cal.ood_fpr95, stats.auroc_interval])
def test_out_of_distribution(function: Callable[..., Any]) -> None:
    known, unknown = data()[0], data(70, seed=1)[0] / 3
    for score in ("entropy", "max_prob"):
        expected = flat(
            list(function(known, unknown, score=score))
            if function is stats.auroc_interval
            else function(known, unknown, score=score)
        )
        for kind in (lambda x: x, lambda x: x.numpy(), lambda x: x.tolist()):
            found = function(kind(known.softmax(1)), kind(unknown.softmax(1)), score=score, probs=True)
            found = list(found) if function is stats.auroc_interval else found
            assert flat(found) == pytest.approx(expected, abs=1e-9)
    with pytest.raises(ValueError, match="in_logits are probabilities"):
        function(known.softmax(1), unknown.softmax(1))
    with pytest.raises(ValueError, match="energy.* needs logits"):
        function(known.softmax(1), unknown.softmax(1), score="energy", probs=True)
    assert isinstance(cal.ood_auroc(known.numpy(), unknown.numpy()), float)


def test_figures_of_probabilities() -> None:
    known, unknown = data()[0], data(70, seed=1)[0] / 3
    expected = plots.ROC.from_logits({"a": (known, unknown)}).to_dict()
    found = plots.ROC.from_logits({"a": (known.softmax(1).numpy(), unknown.softmax(1).tolist())}, probs=True).to_dict()
    assert flat(found) == pytest.approx(flat(expected), abs=1e-9)
    image, logits = torch.rand(3, 5, 6), torch.randn(4, 5, 6)
    target = torch.randint(4, (5, 6))
    one = plots.PixelReliability.from_logits(image, logits, target).to_dict()
    other = plots.PixelReliability.from_logits(
        image.numpy(), logits.softmax(0).numpy(), target.tolist(), probs=True
    ).to_dict()
    assert flat(other) == pytest.approx(flat(one), abs=1e-6)
    with pytest.raises(ValueError, match="pass `probs=True`"):
        plots.PixelReliability.from_logits(image, logits.softmax(0), target)


def test_a_layer_for_networks_that_give_probabilities() -> None:
    logits, target = data()
    calibrator = posthoc.TemperatureScaling().fit(logits, target)
    network = torch.nn.Sequential(torch.nn.Linear(3, K).double(), torch.nn.Softmax(dim=1))
    x = torch.randn(6, 3, dtype=torch.float64)
    expected = calibrator(network[0](x))
    torch.testing.assert_close(calibrator.wrap(network, probs=True)(x), expected)
    torch.testing.assert_close(calibrator(network(x), probs=True), expected)
    with pytest.raises(ValueError, match="pass `probs=True`"):
        calibrator.wrap(network)(x)


# One score for two classes


@pytest.mark.parametrize("name", LIGHT)
def test_single_scores_are_those_of_class_1(name: str) -> None:
    logits, target = data(k=2)
    scores = logits[:, 1] - logits[:, 0]
    expected = flat(ENTRANCES[name](torch.stack([torch.zeros_like(scores), scores], dim=1), target, task="binary"))
    binary = ENTRANCES[name](scores, target, task="binary")
    if name in CALIBRATORS:  # which answer in kind: the probability of class 1
        expected = expected[1::2]
    assert flat(binary) == pytest.approx(expected, rel=1e-9, nan_ok=True)
    probs = ENTRANCES[name](scores.sigmoid(), target, task="binary", probs=True)
    assert flat(probs) == pytest.approx(expected, rel=1e-5, abs=1e-9, nan_ok=True)
    with pytest.raises(ValueError, match='class 1 of two, pass task="binary", and probs=True if they are prob'):
        ENTRANCES[name](scores, target)
    with pytest.raises(
        ValueError, match="between 0 and 1.*`probs=True` if they are probabilities of class 1, `probs=False`"
    ):
        ENTRANCES[name](scores.sigmoid(), target, task="binary")


def test_shapes_and_labels_of_binary_tasks() -> None:
    logits, target = data(60, k=2)
    target = target.abs() % 2
    scores = logits[:, 1] - logits[:, 0]
    expected = float(binary_calibration_error(scores.sigmoid(), target, n_bins=15))  # of the event's probability
    cases = [
        (scores, target),
        (scores, target.bool()),
        (scores, target.double()),
        (scores[:, None], target),
        (scores[:, None], target[:, None]),
        (scores.view(2, 1, 5, 6), target.view(2, 5, 6)),
        (scores.view(2, 1, 5, 6), target.view(2, 1, 5, 6)),
        (scores.numpy(), target.bool().numpy()),
        (scores.tolist(), target.tolist()),
        (logits, target.bool()),
    ]
    for x, y in cases:
        assert float(cal.ece(x, y, task="binary")) == pytest.approx(expected)
    assert float(cal.ece(logits, target.bool())) == pytest.approx(float(cal.ece(logits, target)))  # of the predicted class
    with pytest.raises(ValueError, match=r'task="binary".*one score .*got shape \(60, 3\)'):
        cal.ece(torch.randn(60, 3), target, task="binary")
    with pytest.raises(ValueError, match="row 1 has the value 1.5, which is not a probability"):
        cal.ece(torch.tensor([0.5, 1.5]), torch.tensor([0, 1]), task="binary", probs=True)
    with pytest.raises(ValueError, match=r"row 0 at pixel \(1,\) has the value -1"):
        cal.ece(torch.tensor([[[0.5, -1.0]]]), torch.tensor([[0, 1]]), task="binary", probs=True)
    with pytest.raises(ValueError, match="must hold 0 or 1, or the probability of 1"):
        cal.ece(scores, target + 0.5, task="binary")
    with pytest.raises(ValueError, match="task must be one of 'multiclass', 'binary', 'multilabel', got 'two'"):
        cal.ece(scores, target, task="two")
    with pytest.raises(ValueError, match="task must be one of"):
        metrics.ECE(task="two")


@pytest.mark.parametrize("key", [key for key, entry in CALIBRATORS.items() if not entry.dense])
def test_calibrators_of_single_scores_answer_in_kind(key: str) -> None:
    logits, target = data(300, k=2)
    scores = logits[:, 1] - logits[:, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = posthoc.create(key).fit(scores, target, task="binary")
    odds, probs = fitted.transform(scores, task="binary"), fitted.predict_proba(scores, task="binary")
    assert odds.shape == probs.shape == scores.shape
    torch.testing.assert_close(odds.sigmoid(), probs, atol=1e-6, rtol=0)
    torch.testing.assert_close(probs, fitted.predict_proba(torch.stack([torch.zeros_like(scores), scores], dim=1))[:, 1])
    if key not in ("vector", "matrix", "venn-abers"):
        again = fitted.predict_proba(scores.sigmoid().numpy(), task="binary", probs=True)
        np.testing.assert_allclose(again, probs.numpy(), atol=1e-6)
    column = fitted.predict_proba(scores[:, None].numpy(), task="binary")
    assert column.shape == (300, 1)


# Arrays and lists


#: Ways to hold the same numbers.
KINDS = ["float32", "read-only", "reversed", "big-endian", "objects"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in LIGHT for kind in ("numpy", "list")]
    + [(name, kind) for name in ("ece", "ECE", "bootstrap", "temperature") for kind in KINDS],
)
def test_arrays_and_lists(name: str, kind: str) -> None:
    logits, target = data()
    if kind == "float32":
        logits = logits.float()
    expected = flat(ENTRANCES[name](logits, target))
    x, y = logits.numpy().copy(), target.numpy().copy()
    if kind == "list":
        x, y = x.tolist(), y.tolist()
    elif kind == "read-only":
        x.flags.writeable = y.flags.writeable = False
    elif kind == "reversed":
        x, y = x[::-1].copy()[::-1], y[::-1].copy()[::-1]
    elif kind == "big-endian":
        x, y = x.astype(">f8"), y.astype(">i4")
    elif kind == "objects":
        x, y = x.astype(object), y.astype(object)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if name in CALIBRATORS:
            warnings.simplefilter("ignore", UserWarning)
        found = ENTRANCES[name](x, y)
    assert flat(found) == pytest.approx(expected, rel=1e-9, nan_ok=True)
    if name in NUMBERS:
        assert type(found) is float
    if name == "brier_split":
        assert [type(part) for part in found] == [float] * 3
    if name in CALIBRATORS:
        assert isinstance(found[0], list if kind == "list" else np.ndarray)


@pytest.mark.parametrize("name", NUMBERS)
def test_tensors_are_answered_with_tensors(name: str) -> None:
    logits, target = data()
    assert ENTRANCES[name](logits, target).dtype == torch.float64
    assert ENTRANCES[name](logits, target.numpy()).dtype == torch.float64


def test_kinds_of_numbers() -> None:
    logits, target = data()
    target = target.clamp(min=0)
    expected = float(cal.nll(logits, target))
    for x in (
        logits.numpy().astype(np.longdouble),
        logits.numpy().T.copy().T,
        [row.tolist() for row in logits],
        tuple(logits.tolist()),
    ):
        assert cal.nll(x, target) == pytest.approx(expected)
    for y in (target.numpy().astype(np.uint8), target.numpy().astype(float), target.tolist(), [float(t) for t in target]):
        assert float(cal.nll(logits, y)) == pytest.approx(expected)
    whole = [[3, 0, 1], [0, 2, 5]]
    assert cal.nll(whole, [0, 2]) == pytest.approx(float(cal.nll(torch.tensor(whole).double(), torch.tensor([0, 2]))))


def wrong() -> dict[str, tuple[Any, Any, type[Exception], str]]:
    x, y = data()
    array = x.numpy()
    return {
        "ragged": ([[1.0, 2.0], [3.0]], [0, 1], TypeError, "logits cannot be converted to an array"),
        "a list of tensors": (list(x.split(30)), y, TypeError, "list of tensors; join them with torch.cat"),
        "text": (np.array([["a", "b"]]), [0], TypeError, "logits must be numbers, got an array of <U1"),
        "complex": (x.to(torch.complex64), y, TypeError, "floating point numbers, got a tensor of torch.complex64"),
        "whole tensors": (x.long(), y, TypeError, "floating point numbers, got a tensor of torch.int64"),
        "nothing": (None, y, TypeError, "logits must be numbers"),
        "soft labels": (array, 2 * x.softmax(1).numpy(), ValueError, "row 0 does not hold probabilities that add up to 1"),
        "half labels": (x, y.numpy() + 0.5, TypeError, "integer class labels"),
        "missing labels": (x, [*y.tolist()[:-1], None], ValueError, "row 89 has no label"),
        "NaN as label": (x, np.where(y == -100, np.nan, y), ValueError, "row 0 has no label.*ignore_index"),
        "names": (array, ["cat"] * 90, TypeError, "names such as 'cat'; names are looked up in the columns"),
        "bool labels of many classes": (x, y.bool(), TypeError, "integer class labels, got a tensor of torch.bool"),
    }


@pytest.mark.parametrize("what", wrong())
def test_what_cannot_be_meant_is_refused(what: str) -> None:
    logits, target, error, message = wrong()[what]
    with pytest.raises(error, match=message):
        cal.ece(logits, target)


def test_from_probs_answers_in_kind() -> None:
    probs = data()[0].softmax(1)
    assert torch.equal(cal.from_probs(probs), probs.log())
    assert isinstance(cal.from_probs(probs.numpy()), np.ndarray)
    np.testing.assert_array_equal(cal.from_probs(probs.numpy()), probs.log().numpy())
    assert cal.from_probs(probs.tolist()) == probs.log().tolist()
    assert cal.from_probs([[1, 0]]) == [[0.0, -float("inf")]]


def test_images_are_needed_where_there_are_to_be_some() -> None:
    logits, target = data()
    for measure in (
        lambda: cal.per_image(cal.ece, logits, target),
        lambda: metrics.PerImage(cal.ece).update(logits, target),
    ):
        with pytest.raises(ValueError, match=r"images,? \(N, K, \*spatial\).*got shape \(90, 4\)"):
            measure()


def test_wilson_answers_in_kind() -> None:
    low, high = stats.wilson(torch.tensor([3, 0]), torch.tensor([10, 0]))
    for kind in (np.array, list):
        found = stats.wilson(kind([3, 0]), kind([10, 0]))
        assert type(found[0]) is type(kind([3, 0]))
        assert list(found[0]) == low.tolist()
        assert list(found[1]) == high.tolist()
    assert stats.wilson(3, 10) == (low[0].item(), high[0].item())


# Data frames; pandas is no dependency


@pytest.fixture
def pandas() -> Any:
    return pytest.importorskip("pandas")


NAMES = ["cat", "dog", "bird", "fish"]


@pytest.mark.parametrize("name", [name for name in LIGHT if name not in ("per_image", "PerImage")])
def test_data_frames(name: str, pandas: Any) -> None:
    logits, target = data()
    target = target.clamp(min=0)
    rows = pandas.Index([f"image {i}" for i in range(len(target))])
    frame = pandas.DataFrame(logits.numpy(), index=rows, columns=NAMES)
    labels = pandas.Series([NAMES[k] for k in target.tolist()], index=rows)
    expected = flat(ENTRANCES[name](logits, target))
    for y in (
        labels,
        labels.astype("category"),
        labels.to_numpy(),
        labels.tolist(),
        pandas.Series(target.numpy(), index=rows),
    ):
        found = ENTRANCES[name](frame, y)
        if name in CALIBRATORS:
            (answer,) = found
            assert answer.index.equals(rows)
            assert list(answer.columns) == NAMES
            found = answer.to_numpy()
        assert flat(found) == pytest.approx(expected, rel=1e-9, nan_ok=True)
    probs = pandas.DataFrame(logits.softmax(1).numpy(), columns=NAMES)
    with pytest.raises(ValueError, match="pass `probs=True`"):
        ENTRANCES[name](probs, labels.reset_index(drop=True))


def test_columns_in_another_order(pandas: Any) -> None:
    logits, target = data()
    target = target.clamp(min=0)
    labels = pandas.Series([NAMES[k] for k in target.tolist()])
    frame = pandas.DataFrame(logits.numpy(), columns=NAMES)
    assert cal.nll(frame[NAMES[::-1]], labels) == pytest.approx(float(cal.nll(logits, target)))
    fitted = posthoc.VectorScaling().fit(frame, labels)
    with pytest.raises(ValueError, match="the columns are fish, bird, dog, cat, but VectorScaling was fitted on cat, dog"):
        fitted.transform(frame[NAMES[::-1]])
    assert fitted.transform(frame.to_numpy()).shape == (90, 4)


def test_labels_and_columns(pandas: Any) -> None:
    logits, target = data()
    target = target.clamp(min=0)
    expected = float(cal.nll(logits, target))

    def nll(columns: list[Any], labels: Any, **given: Any) -> float:
        return cal.nll(pandas.DataFrame(logits.numpy(), columns=columns), labels, **given)

    numbers = pandas.Series(target.numpy())
    assert nll([0, 1, 2, 3], numbers) == pytest.approx(expected)
    assert nll(["0", "1", "2", "3"], numbers) == pytest.approx(expected)
    assert nll(["0", "1", "2", "3"], numbers.astype(str)) == pytest.approx(expected)
    assert nll([7, 3, 12, 5], numbers.map({0: 7, 1: 3, 2: 12, 3: 5})) == pytest.approx(expected)
    assert nll([1, 0, 3, 2], numbers.map({0: 1, 1: 0, 2: 3, 3: 2})) == pytest.approx(expected)
    assert nll(NAMES, numbers.astype("Int64")) == pytest.approx(expected)
    assert nll(NAMES, numbers.astype(float)) == pytest.approx(expected)
    assert nll(NAMES, numbers.to_frame()) == pytest.approx(expected)
    ignored = numbers.where(numbers.index > 9, -100)
    assert nll([7, 3, 12, 5], ignored.map({-100: -100, 0: 7, 1: 3, 2: 12, 3: 5})) == pytest.approx(nll(NAMES, ignored))
    for columns, labels in (
        (["1", "2", "3", "4"], numbers),  # names or positions?
        (["0", "1", "10", "2"], numbers),
        ([1, 2, 3, 4], numbers),
        ([3, 7, 9, 11], numbers),
    ):
        with pytest.raises(ValueError, match=r"row \d+ has label .* names or positions\? .*logits.to_numpy"):
            nll(columns, labels)
    with pytest.raises(
        ValueError, match="row 0 has label 'tiger', but the columns of logits are named cat, dog, bird, fish"
    ):
        nll(NAMES, ["tiger"] * 90)
    with pytest.raises(ValueError, match="two columns named 'cat'"):
        nll(["cat", "dog", "cat", "fish"], numbers)
    with pytest.raises(ValueError, match="row 5 has no label"):
        nll(NAMES, numbers.map(dict(enumerate(NAMES))).where(numbers.index != 5))
    with pytest.raises(TypeError, match="logits must be numbers"):
        cal.nll(pandas.DataFrame({"id": ["a"] * 90, "x": logits[:, 0].numpy(), "y": logits[:, 1].numpy()}), numbers)


def test_rows_in_another_order(pandas: Any) -> None:
    logits, target = data()
    frame, labels = pandas.DataFrame(logits.numpy()), pandas.Series(target.numpy())
    with pytest.raises(ValueError, match=r"the same index in different orders.*target.loc\[logits.index\]"):
        cal.ece(frame, labels[::-1])
    expected = float(cal.ece(logits, target))
    assert cal.ece(frame[::-1], labels[::-1]) == pytest.approx(expected)
    assert cal.ece(frame, labels.set_axis(range(500, 590))) == pytest.approx(expected)  # another index altogether


def test_series_of_single_scores(pandas: Any) -> None:
    logits, target = data(200, k=2)
    scores = pandas.Series((logits[:, 1] - logits[:, 0]).numpy(), name="score", index=range(5, 205))
    fitted = posthoc.PlattScaling().fit(scores, target, task="binary")
    found = fitted.predict_proba(scores, task="binary")
    assert found.index.equals(scores.index)
    assert found.name == "score"
    column = fitted.predict_proba(scores.to_frame(), task="binary")
    assert list(column.columns) == ["score"]
    assert column["score"].tolist() == pytest.approx(found.tolist())
    frame = cal.from_probs(pandas.DataFrame({"a": [0.25, 1], "b": [0.75, 0]}))
    assert frame["b"].tolist() == pytest.approx([np.log(0.75), -np.inf])


def test_without_pandas_nothing_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    logits, target = data()
    assert cal.ece(logits.numpy(), target.numpy()) == pytest.approx(float(cal.ece(logits, target)))
