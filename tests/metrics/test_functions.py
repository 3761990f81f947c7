"""Every function against a loop over samples, and what must hold for any input."""

import inspect

import numpy as np
import pytest
import references
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from calibrant import functional as cal
from calibrant.metrics.table import BY_FUNCTION

#: Function, options, and the reference with the same options.
CASES = {
    "ece": (cal.ece, {}, references.ece),
    "ece 7 bins, L2": (cal.ece, {"num_bins": 7, "norm": 2}, lambda *x: references.ece(*x, 7, 2)),
    "mce": (cal.mce, {}, references.mce),
    "overconfidence": (cal.overconfidence, {}, references.overconfidence),
    "underconfidence": (cal.underconfidence, {}, references.underconfidence),
    "adaptive_ece": (cal.adaptive_ece, {}, references.adaptive_ece),
    "adaptive_ece 4 bins, L2": (cal.adaptive_ece, {"num_bins": 4, "norm": 2}, lambda *x: references.adaptive_ece(*x, 4, 2)),
    "classwise_ece": (cal.classwise_ece, {}, references.classwise_ece),
    "classwise_ece L2": (cal.classwise_ece, {"norm": 2}, lambda *x: references.classwise_ece(*x, norm=2)),
    "classwise_ece mass": (
        cal.classwise_ece,
        {"num_bins": 6, "binning": "mass"},
        lambda *x: references.classwise_ece(*x, 6, binning="mass"),
    ),
    **{
        f"debiased_ece {binning} L{norm}": (
            cal.debiased_ece,
            {"binning": binning, "norm": norm},
            lambda *x, binning=binning, norm=norm: references.debiased_ece(*x, 15, binning, norm),
        )
        for binning in ("mass", "width")
        for norm in (1, 2)
    },
    **{
        f"sweep_ece {binning} L{norm}": (
            cal.sweep_ece,
            {"binning": binning, "norm": norm},
            lambda *x, binning=binning, norm=norm: references.sweep_ece(*x, binning, norm),
        )
        for binning in ("mass", "width")
        for norm in (1, 2)
    },
    "nll": (cal.nll, {}, references.nll),
    "brier_score": (cal.brier_score, {}, references.brier_score),
    "accuracy": (cal.accuracy, {}, references.accuracy),
    "top_k_accuracy": (cal.top_k_accuracy, {"k": 3}, lambda *x: references.top_k_accuracy(*x, 3)),
    "aurc": (cal.aurc, {}, references.aurc),
    "coverage_at_risk": (cal.coverage_at_risk, {}, references.coverage_at_risk),
    "coverage_at_risk 30 %": (cal.coverage_at_risk, {"risk": 0.3}, lambda *x: references.coverage_at_risk(*x, 0.3)),
    "mean_iou": (cal.mean_iou, {}, references.mean_iou),
    "mean_iou released": (cal.mean_iou, {"rule": "released"}, lambda *x: references.mean_iou(*x, "released")),
    "smooth_ece": (cal.smooth_ece, {}, references.smooth_ece),
}
every_case = pytest.mark.parametrize("name", CASES)
#: Errors and rates, whose values lie in [0, 1].
FRACTIONS = [name for name in CASES if name not in ("nll", "brier_score")]


def data(n: int, k: int, seed: int = 0, sharpness: float = 1.4) -> tuple[Tensor, Tensor]:
    """Logits of an overconfident network, float64."""
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=random, dtype=torch.float64)
    target = torch.multinomial(logits.softmax(1), 1, generator=random).squeeze(1)
    return sharpness * logits, target


@every_case
@pytest.mark.parametrize(("n", "k"), [(1, 3), (2, 2), (40, 3), (220, 10), (150, 40)])
def test_against_loops(name: str, n: int, k: int) -> None:
    function, options, reference = CASES[name]
    logits, target = data(n, k)
    tolerance = 2e-3 if name == "smooth_ece" else 1e-9
    expected = reference(logits.numpy(), target.numpy())
    assert float(function(logits, target, **options)) == pytest.approx(expected, rel=tolerance, abs=1e-10)


@every_case
def test_in_float32_and_half(name: str) -> None:
    function, options, _ = CASES[name]
    logits, target = data(300, 10)
    exact = float(function(logits.float(), target, **options))
    assert exact == pytest.approx(float(function(logits, target, **options)), rel=1e-5, abs=1e-6)
    half = logits.half()
    assert function(half, target, **options) == function(half.float(), target, **options)
    assert function(logits, target, **options).dtype == torch.float64


@every_case
def test_dense_and_ignored_pixels(name: str) -> None:
    """Pixels are samples, and those that are ignored are not there."""
    function, options, _ = CASES[name]
    logits, target = data(2 * 7 * 9, 5)
    random = torch.Generator().manual_seed(3)
    ignored = torch.rand(len(target), generator=random) < 0.3
    expected = function(logits[~ignored], target[~ignored], **options)
    labels = target.masked_fill(ignored, 255)
    dense = logits.view(2, 7, 9, 5).movedim(-1, 1)
    assert function(logits, labels, ignore_index=255, **options) == pytest.approx(float(expected), rel=1e-12)
    for layout in (dense, dense.contiguous(), dense.to(memory_format=torch.channels_last)):
        value = function(layout, labels.view(2, 7, 9), ignore_index=255, **options)
        assert float(value) == pytest.approx(float(expected), rel=1e-9, abs=1e-12)
    logits[ignored] = float("nan")  # what is ignored may be anything
    assert float(function(logits, labels, ignore_index=255, **options)) == pytest.approx(float(expected), rel=1e-12)


@every_case
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 60), k=st.integers(2, 8), ties=st.booleans())
def test_order_does_not_matter(name: str, seed: int, n: int, k: int, ties: bool) -> None:
    function, options, _ = CASES[name]
    logits, target = data(n, k, seed)
    if ties:
        logits = logits.round()
        logits[n // 2 :] = logits[: n - n // 2].clone()
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    options = {**options, "probs": False}  # rounded, the logits of a single sample may look like probabilities
    value = float(function(logits, target, **options))
    assert float(function(logits[order], target[order], **options)) == pytest.approx(value, rel=1e-9, abs=1e-12)
    if name in FRACTIONS:
        assert -1e-12 <= value <= 1 + 1e-12


@every_case
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 60), k=st.integers(2, 8))
def test_a_perfect_oracle_has_no_error(name: str, seed: int, n: int, k: int) -> None:
    function, options, _ = CASES[name]
    target = torch.randint(k, (n,), generator=torch.Generator().manual_seed(seed))
    logits = 1000 * torch.nn.functional.one_hot(target, k).double()
    value = float(function(logits, target, **options))
    if name == "mean_iou released":
        return  # 0 for classes that do not occur
    expected = 1 if BY_FUNCTION[function].higher else 0
    assert value == pytest.approx(expected, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 200), k=st.integers(2, 12), bins=st.integers(1, 40))
def test_how_errors_relate(seed: int, n: int, k: int, bins: int) -> None:
    logits, target = data(n, k, seed)
    ece = float(cal.ece(logits, target, num_bins=bins))
    over, under = (
        float(cal.overconfidence(logits, target, num_bins=bins)),
        float(cal.underconfidence(logits, target, num_bins=bins)),
    )
    assert over + under == pytest.approx(ece, abs=1e-12)
    assert ece <= float(cal.mce(logits, target, num_bins=bins)) + 1e-12
    assert ece <= float(cal.ece(logits, target, num_bins=bins, norm=2)) + 1e-12
    assert float(cal.ece(logits, target, num_bins=1)) <= ece + 1e-12  # one bin: differences cancel
    split = cal.brier_split(logits, target, num_bins=bins)
    assert float(split.calibration + split.refinement) == pytest.approx(float(split.total))
    assert float(split.total) == pytest.approx(references.brier_score(logits.numpy(), target.numpy()))
    assert float(split.calibration) == pytest.approx(
        references.brier_calibration(logits.numpy(), target.numpy(), bins), abs=1e-12
    )
    assert -1e-12 <= float(split.calibration) <= float(split.total) + 1e-12


def test_confidence_of_exactly_one_and_on_edges() -> None:
    """A popular library puts 1.0 into a bin of its own and gets 0.525 here."""
    probs = torch.tensor([[0.95, 0.05], [1.0, 0.0]], dtype=torch.float64)
    assert float(cal.ece(cal.from_probs(probs), torch.tensor([0, 1]), num_bins=10)) == pytest.approx(0.475)
    # One half, exactly, is in the bin below the edge: apart from what is just above, where gaps would cancel.
    logits = torch.tensor([[0.0, 0.0, -float("inf")], [1e-6, 0.0, -float("inf")]], dtype=torch.float64)
    assert logits[0].softmax(0).amax() == 0.5
    assert float(cal.ece(logits, torch.tensor([0, 1]), num_bins=2)) == pytest.approx(0.5, abs=1e-6)
    assert float(cal.ece(logits, torch.tensor([0, 1]), num_bins=3)) == pytest.approx(0, abs=1e-6)


def test_ties_of_logits_predict_the_first_class() -> None:
    logits = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [1.0, 1.0, 1.0]])
    assert cal.accuracy(logits, torch.tensor([0, 1, 0])) == 1
    assert cal.accuracy(logits, torch.tensor([1, 2, 2])) == 0
    assert cal.ece(logits, torch.tensor([1, 2, 2])) == pytest.approx(float(logits.softmax(1).amax(1).mean()))
    assert cal.top_k_accuracy(logits, torch.tensor([1, 2, 2]), k=2) == pytest.approx(2 / 3)


@settings(max_examples=200, deadline=None)
@given(
    samples=st.lists(st.tuples(st.integers(5, 10), st.booleans()), min_size=1, max_size=80),
    risk=st.sampled_from([0, 0.05, 0.1, 0.29, 0.5, 1]),
)
def test_coverage_at_risk_by_thresholds(samples: list[tuple[int, bool]], risk: float) -> None:
    """Confidences of one digit, so that most are equal: a threshold keeps them together."""
    confidence = torch.tensor([tenths / 10 for tenths, _ in samples], dtype=torch.float64)
    logits = cal.from_probs(torch.stack([confidence, 1 - confidence], dim=1))
    target = torch.tensor([0 if right else 1 for _, right in samples])
    expected = references.coverage_at_risk(logits.numpy(), target.numpy(), risk)
    assert float(cal.coverage_at_risk(logits, target, risk=risk)) == expected


def test_a_risk_of_exactly_what_is_allowed() -> None:
    """In floating point 0.29 * 100 is less than 29."""
    logits = torch.tensor([[2.0, 0.0]]).expand(100, 2)
    for percent in range(101):
        target = (torch.arange(100) < percent).long()
        assert cal.coverage_at_risk(logits, target, risk=percent / 100) == 1
        assert cal.coverage_at_risk(logits, target, risk=max(0, percent - 1) / 100) == (percent == 0)


def test_many_classes_in_blocks() -> None:
    """More samples than fit into one block of work, and dense predictions cut in the middle of an image."""
    logits, target = data(9000, 70)
    assert float(cal.ece(logits, target)) == pytest.approx(references.ece(logits.numpy(), target.numpy()), rel=1e-9)
    dense = logits.view(1, 90, 100, 70).movedim(-1, 1)
    for function in (cal.ece, cal.nll, cal.brier_score, cal.classwise_ece, cal.mean_iou):
        value = function(dense, target.view(1, 90, 100))
        assert float(value) == pytest.approx(float(function(logits, target)), rel=1e-9)


@pytest.mark.parametrize("score", ["entropy", "max_prob", "energy"])
def test_out_of_distribution(score: str) -> None:
    known, _ = data(60, 5)
    unknown, _ = data(45, 5, seed=1, sharpness=0.7)
    unknown[:20] = known[:20]  # ties
    expected = references.ood_auroc(known.numpy(), unknown.numpy(), score)
    assert float(cal.ood_auroc(known, unknown, score=score)) == pytest.approx(expected, abs=1e-12)
    assert float(cal.ood_auroc(unknown, known, score=score)) == pytest.approx(1 - expected, abs=1e-12)
    assert float(cal.ood_fpr95(known, unknown, score=score)) == pytest.approx(
        references.ood_fpr95(known.numpy(), unknown.numpy(), score)
    )
    assert cal.ood_auroc(known, known, score=score) == 0.5
    dense = known.view(3, 4, 5, 5).movedim(-1, 1)
    assert float(cal.ood_auroc(dense, unknown, score=score)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", [cal.ece, cal.adaptive_ece, cal.nll])
def test_per_image(metric) -> None:
    logits, target = data(3 * 20, 4)
    dense, labels = logits.view(3, 20, 4).movedim(-1, 1), target.view(3, 20).clone()
    labels[1, :5] = 255
    values = [metric(dense[i : i + 1], labels[i : i + 1], ignore_index=255) for i in range(3)]
    assert float(cal.per_image(metric, dense, labels, ignore_index=255)) == pytest.approx(float(sum(values)) / 3)
    labels[2] = 255  # an image without labels does not count
    assert float(cal.per_image(metric, dense, labels, ignore_index=255)) == pytest.approx(float(sum(values[:2])) / 2)


def test_from_probs() -> None:
    probs = torch.rand(20, 5, dtype=torch.float64).softmax(1)
    torch.testing.assert_close(cal.from_probs(probs).softmax(1), probs)
    assert cal.from_probs(torch.tensor([[1.0, 0.0]])).tolist() == [[0.0, -float("inf")]]
    zero = cal.from_probs(torch.tensor([[1.0, 0.0], [0.25, 0.75]]))
    assert cal.nll(zero, torch.tensor([0, 1])) == pytest.approx(-np.log(0.75) / 2)
    assert cal.nll(zero, torch.tensor([1, 1])) == float("inf")
    assert cal.brier_score(zero, torch.tensor([1, 1])) == pytest.approx(1 + 0.0625)
    bad = probs.clone()
    bad[7] *= 1.2
    with pytest.raises(ValueError, match=r"probs: row 7 adds up to 1.2, not to 1"):
        cal.from_probs(bad)
    with pytest.raises(
        ValueError, match=r"probs: row 0 has the value -[0-9.]+, which is not a probability; if these are logits"
    ):
        cal.from_probs(torch.randn(4, 3) - 5)
    with pytest.raises(ValueError, match="row 3 has the value nan"):
        cal.from_probs(probs.index_fill(0, torch.tensor([3]), float("nan")))
    dense = torch.full((2, 4, 2, 3), 0.25)
    dense[1, :, 0, 2] = 0.3
    with pytest.raises(ValueError, match=r"row 1 at pixel \(0, 2\)"):
        cal.from_probs(dense)
    with pytest.raises(ValueError, match="row 0 adds up to 2, not to 1"):
        cal.from_probs(torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(
        ValueError, match=r"probs must have shape .* got \(3,\); for probabilities of class 1 alone, .*binary"
    ):
        cal.from_probs(torch.rand(3))
    assert cal.from_probs(bad, tolerance=0.5).shape == bad.shape


BAD = {
    "nan": (
        lambda x, y: (x.index_fill(0, torch.tensor([2]), float("nan")), y),
        ValueError,
        "1 of the 8 samples .* 4 logits are NaN, 0 are",
    ),
    "+inf": (
        lambda x, y: (x.index_fill(0, torch.tensor([2, 5]), float("inf")), y),
        ValueError,
        r"2 of the 8 .* 4 are \+infinity",
    ),
    "empty": (lambda x, y: (x[:0], y[:0]), ValueError, "nothing to measure"),
    "all ignored": (lambda x, y: (x, torch.full_like(y, -100)), ValueError, "nothing to measure.*ignore_index=-100"),
    "one class": (lambda x, y: (x[:, :1], y * 0), ValueError, "at least 2 classes"),
    "label": (lambda x, y: (x, y + 4), ValueError, r"target has value \d.*\(0..3\)"),
    "float target": (lambda x, y: (x, y.double()), TypeError, "integer class labels"),
    "shapes": (lambda x, y: (x, y[:3]), ValueError, r"target must have shape \(8,\)"),
}


@every_case
@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused(name: str, what: str) -> None:
    function, options, _ = CASES[name]
    change, error, message = BAD[what]
    logits, target = data(8, 4)
    with pytest.raises(error, match=message):
        function(*change(logits, target), **options)


BAD_OPTIONS = [
    (cal.ece, {"num_bins": 0}, "num_bins must be at least 1"),
    (cal.ece, {"norm": 3}, "norm must be one of 1, 2"),
    (cal.adaptive_ece, {"num_bins": -2}, "num_bins"),
    (cal.debiased_ece, {"binning": "equal"}, "binning must be one of 'mass', 'width', got 'equal'"),
    (cal.sweep_ece, {"binning": "equal"}, "binning"),
    (cal.classwise_ece, {"norm": 0}, "norm"),
    (cal.top_k_accuracy, {"k": 0}, "k must be at least 1"),
    (cal.coverage_at_risk, {"risk": 1.1}, "risk must be at least 0 and at most 1, got 1.1"),
    (cal.mean_iou, {"rule": "voc"}, "rule must be one of 'standard', 'released'"),
]


@pytest.mark.parametrize(("function", "options", "message"), BAD_OPTIONS)
def test_bad_options_are_refused(function, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(*data(8, 4), **options)


def test_bad_ood_input_is_refused() -> None:
    with pytest.raises(ValueError, match="out_logits must be logits .* of at least one sample"):
        cal.ood_auroc(torch.randn(3, 4), torch.zeros(0, 4))
    with pytest.raises(ValueError, match="score must be one of 'entropy', 'max_prob', 'energy'"):
        cal.ood_auroc(torch.randn(3, 4), torch.randn(3, 4), score="odin")


def test_fewer_samples_than_bins_and_k_beyond_classes() -> None:
    logits, target = data(3, 4)
    for function in (cal.ece, cal.adaptive_ece, cal.debiased_ece, cal.classwise_ece):
        assert 0 <= float(function(logits, target, num_bins=50)) <= 1
    assert cal.top_k_accuracy(logits, target, k=10) == 1


def test_inputs_are_left_alone() -> None:
    logits, target = data(30, 4)
    before = logits.clone()
    logits.requires_grad_()
    for function, options, _ in CASES.values():
        assert not function(logits, target, **options).requires_grad
    assert torch.equal(logits.detach(), before)


def test_every_metric_function_is_tested() -> None:
    tested = {function.__name__ for function, _, _ in CASES.values()}
    tested |= {"per_image", "per_label", "from_probs", "ood_auroc", "ood_fpr95", "ood_aupr", "brier_split"}
    public = {name for name, f in inspect.getmembers(cal, inspect.isfunction) if not name.endswith("_loss")}
    assert public == tested
