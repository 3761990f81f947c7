"""The metrics as modules: batches, merging, processes, checkpoints, and numbers beyond what float32 can count."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from calibrant import functional as cal, metrics
from calibrant.metrics.estimators import Grid, bins_of_equal_mass
from calibrant.metrics.sums import as_bins
from calibrant.outcomes import Outcomes
from processes import run_as_ranks

K = 6
#: Metric, the function it has to agree with, and how closely.
CASES = {
    "ECE": (metrics.ECE, cal.ece, 1e-12),
    "ECE 7 bins, L2": (lambda: metrics.ECE(num_bins=7, norm=2), lambda *x, **o: cal.ece(*x, num_bins=7, norm=2, **o), 1e-12),
    "MCE": (metrics.MCE, cal.mce, 1e-12),
    "AdaptiveECE": (metrics.AdaptiveECE, cal.adaptive_ece, 1e-9),
    "ClasswiseECE": (lambda: metrics.ClasswiseECE(K), cal.classwise_ece, 1e-8),
    "DebiasedECE": (metrics.DebiasedECE, cal.debiased_ece, 1e-9),
    "DebiasedECE width": (
        lambda: metrics.DebiasedECE(binning="width", norm=2),
        lambda *x, **o: cal.debiased_ece(*x, binning="width", norm=2, **o),
        1e-9,
    ),
    "SweepECE": (metrics.SweepECE, cal.sweep_ece, 1e-9),
    "SmoothECE": (metrics.SmoothECE, cal.smooth_ece, 1e-9),
    "NLL": (metrics.NLL, cal.nll, 1e-9),
    "BrierScore": (metrics.BrierScore, cal.brier_score, 1e-9),
    "MeanIoU": (lambda: metrics.MeanIoU(K), cal.mean_iou, 1e-12),
}
STREAMING = {
    "AdaptiveECE": (metrics.AdaptiveECE, cal.adaptive_ece),
    "DebiasedECE": (metrics.DebiasedECE, cal.debiased_ece),
    "SweepECE": (metrics.SweepECE, cal.sweep_ece),
    "SmoothECE": (metrics.SmoothECE, cal.smooth_ece),
}
every_metric = pytest.mark.parametrize("name", CASES)


def data(n: int = 500, seed: int = 0, sharpness: float = 1.4, k: int = K) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=random)
    target = torch.multinomial(logits.softmax(1), 1, generator=random).squeeze(1)
    target[torch.rand(n, generator=random) < 0.1] = -100
    return sharpness * logits, target


def updated(metric: Metric, logits: Tensor, target: Tensor, sizes: list[int] | int) -> Metric:
    for part, labels in zip(logits.split(sizes), target.split(sizes), strict=True):
        metric.update(part, labels)
    return metric


@every_metric
@pytest.mark.parametrize("sizes", [500, 64, [1, 498, 1], [250, 0, 250]], ids=str)
def test_batches_of_any_size_give_the_function_of_all(name: str, sizes: list[int] | int) -> None:
    build, function, tolerance = CASES[name]
    logits, target = data()
    value = updated(build(), logits, target, sizes).compute()
    assert value.dtype == torch.float64
    assert float(value) == pytest.approx(float(function(logits, target)), rel=tolerance)


@every_metric
def test_merging_is_concatenation(name: str) -> None:
    build, function, tolerance = CASES[name]
    logits, target = data()
    a, b = build(), build()
    a.update(logits[:123], target[:123])
    b.update(logits[123:], target[123:])
    a.merge_state(b)
    assert float(a.compute()) == pytest.approx(float(function(logits, target)), rel=tolerance)


@every_metric
def test_checkpoint_copy_and_pickle(name: str, tmp_path: Path) -> None:
    build, function, tolerance = CASES[name]
    logits, target = data()
    first = build()
    first.update(logits[:200], target[:200])
    torch.save(first.state_dict(), tmp_path / "metric.pt")
    second = build()
    second.load_state_dict(torch.load(tmp_path / "metric.pt", weights_only=True))
    for resumed in (second, copy.deepcopy(first), pickle.loads(pickle.dumps(first))):  # noqa: S301
        resumed.update(logits[200:], target[200:])
        assert float(resumed.compute()) == pytest.approx(float(function(logits, target)), rel=tolerance)


@every_metric
def test_as_torchmetrics_has_it(name: str) -> None:
    """Value of the batch from a call, of everything from compute, nothing after reset; in collections; in half precision."""
    build, function, tolerance = CASES[name]
    logits, target = data()
    metric = build()
    batch = metric(logits[:100], target[:100])
    assert float(batch) == pytest.approx(float(function(logits[:100], target[:100])), rel=tolerance)
    metric(logits[100:], target[100:])
    assert float(metric.compute()) == pytest.approx(float(function(logits, target)), rel=tolerance)
    metric.reset()
    assert metric.half().double().update(logits, target) is None
    assert float(metric.compute()) == pytest.approx(float(function(logits, target)), rel=tolerance)
    collection = MetricCollection({"a": build(), "b": metrics.NLL()})
    collection.update(logits, target)
    assert float(collection.compute()["a"]) == pytest.approx(float(function(logits, target)), rel=tolerance)
    assert isinstance(metric.higher_is_better, bool)


@every_metric
@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_of_nothing_there_is_no_value(name: str) -> None:
    metric = CASES[name][0]()
    assert metric.compute().isnan()
    metric.reset()
    metric.update(torch.randn(3, K), torch.full((3,), -100))
    assert metric.compute().isnan()


@every_metric
def test_dense(name: str) -> None:
    build, function, tolerance = CASES[name]
    logits, target = data(2 * 8 * 9)
    metric = build()
    metric.update(logits.view(2, 8, 9, K).movedim(-1, 1), target.view(2, 8, 9))
    assert float(metric.compute()) == pytest.approx(float(function(logits, target)), rel=max(tolerance, 1e-6))


@pytest.mark.parametrize("name", ["ClasswiseECE", "MeanIoU"])
def test_number_of_classes_has_to_fit(name: str) -> None:
    with pytest.raises(ValueError, match=f"num_classes={K}"):
        CASES[name][0]().update(torch.randn(3, K + 1), torch.zeros(3, dtype=torch.int64))


# The grid of streaming metrics


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("kind", ["soft", "sharp", "saturated", "tied", "few"])
def test_streaming_is_close(name: str, kind: str) -> None:
    build, function = STREAMING[name]
    n, sharpness = {"soft": (4000, 0.5), "sharp": (4000, 4.0), "few": (30, 1.4)}.get(kind, (4000, 1.4))
    logits, target = data(n, sharpness=sharpness)
    if kind == "saturated":
        logits *= 20
    if kind == "tied":
        logits = logits.round()
    metric = updated(build(streaming=True), logits, target, min(n, 333))
    assert float(metric.compute()) == pytest.approx(float(function(logits, target)), abs=2e-3, rel=0.02)
    assert metric.counts.sum() == (target != -100).sum()


@pytest.mark.parametrize("seed", range(20))
def test_error_bound_of_streaming_adaptive_ece(seed: int) -> None:
    """Twice the share of samples in the steps around the edges, as documented."""
    sharpness = [0.3, 1.0, 3.0, 10.0][seed % 4]
    logits, target = data(3000, seed, sharpness)
    metric = updated(metrics.AdaptiveECE(streaming=True), logits, target, 1000)
    ordered = Grid.filled(as_bins(metric.metric_state))
    total = ordered.total
    ranks = (torch.arange(1, 15) * total / 15).floor()
    at_edges = torch.searchsorted(ordered.counts.cumsum(0), ranks, right=True).unique()
    bound = float(2 * ordered.counts[at_edges].sum() / total)
    assert abs(float(metric.compute()) - float(cal.adaptive_ece(logits, target))) <= bound
    assert bins_of_equal_mass(ordered, 15).counts.sum() == total


def test_steps_of_the_grid_are_in_order_and_narrow() -> None:
    confidence = torch.cat([torch.linspace(1e-4, 1, 200_001), 1 - torch.logspace(-7, -1, 50_000)]).sort().values
    index = Grid.index(confidence)
    assert (index.diff() >= 0).all()
    assert 0 <= index.min() <= index.max() == Grid.size - 1
    low = torch.full((Grid.size,), 2.0).scatter_reduce(0, index, confidence, "amin")
    high = torch.full((Grid.size,), -1.0).scatter_reduce(0, index, confidence, "amax")
    width = (high - low).clamp(min=0)
    assert width.max() <= 1.3e-4
    assert (width <= (1 - low) / 4096 + 1.2e-7)[low <= 1].all()
    assert Grid.index(torch.tensor([1.0, 1 - 2**-24])).tolist() == [Grid.size - 1, Grid.size - 2]
    assert Grid.index(torch.zeros(1)) == 0
    sums = Grid.sums(Outcomes(confidence, confidence > 0.5))
    assert sums.counts.sum() == len(confidence)
    assert float(sums.confidence.sum()) == pytest.approx(float(confidence.double().sum()))


# Numbers


def test_more_equal_confidences_than_float32_can_count() -> None:
    """In float32 a count stops at 2^24; torchmetrics returns 0.0 here."""
    logits = torch.tensor([[0.0, 3.0]]).expand(2**22, 2)
    confidence = float(torch.tensor([0.0, 3.0]).softmax(0)[1])
    target = torch.ones(2**22, dtype=torch.int64)
    target[: 2**20] = 0  # a quarter is wrong
    cases = [metrics.ECE(), metrics.AdaptiveECE(streaming=True), metrics.NLL()]
    for _ in range(5):
        for metric in cases:
            metric.update(logits, target)
    ece, adaptive, nll = cases
    assert ece.counts.sum() == adaptive.counts.sum() == nll.count == 5 * 2**22
    for metric in (ece, adaptive):
        assert float(metric.compute()) == pytest.approx(abs(confidence - 0.75), rel=1e-6)
    expected = -(0.75 * torch.tensor(confidence).log() + 0.25 * torch.tensor(1 - confidence).log())
    assert float(nll.compute()) == pytest.approx(float(expected), rel=1e-6)


def test_a_billion_samples_neither_overflow_nor_get_lost() -> None:
    """Sums of a hundred thousand batches of ten thousand pixels, added up as merging does."""
    metric = metrics.ECE()
    logits, target = data(10_000)
    metric.update(logits, target)
    once, kept = float(metric.compute()), int(metric.counts.sum())
    for _ in range(17):  # 2^17 copies
        metric.merge_state(copy.deepcopy(metric))
    assert int(metric.counts.sum()) == kept * 2**17 > 10**9
    assert float(metric.compute()) == pytest.approx(once, rel=1e-12)
    more = metrics.ECE()
    more.update(torch.tensor([[9.0, 0.0]]), torch.tensor([1]))
    metric.merge_state(more)
    assert int(metric.counts.sum()) == kept * 2**17 + 1


def test_exact_modes_keep_four_bytes_for_each_sample() -> None:
    logits, target = data(1000)
    metric = updated(metrics.AdaptiveECE(), logits, target, 100)
    stored = sum(part.numel() * part.element_size() for part in metric.signed)
    assert stored == 4 * int((target != -100).sum())


def test_per_image_metric() -> None:
    logits, target = data(5 * 30)
    dense, labels = logits.view(5, 30, K).movedim(-1, 1), target.view(5, 30)
    metric = metrics.PerImage(cal.ece, num_bins=10)
    updated(metric, dense, labels, [2, 3])
    assert float(metric.compute()) == pytest.approx(float(cal.per_image(cal.ece, dense, labels, num_bins=10)))


PROCESS = """
import sys
import torch
import torch.distributed as dist
from calibrant import metrics
from test_modules import CASES, STREAMING, K, data

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
logits, target = data()
values = {}
builders = {name: case[0] for name, case in CASES.items()}
builders |= {"streaming " + name: (lambda case=case: case[0](streaming=True)) for name, case in STREAMING.items()}
builders["panel"] = lambda: metrics.CalibrationPanel(K)
for cut in (500, 371, 0):  # uneven; also everything on one side
    for name, build in builders.items():
        metric = build()
        part = slice(cut) if rank == 0 else slice(cut, None)
        if len(target[part]):
            metric.update(logits[part], target[part])
        value = metric.compute()
        values[name, cut] = value.values() if name == "panel" else float(value)
    plain = metrics.Panel(K)
    plain.update(logits[part], target[part])
    alone, together = plain.compute(), plain.compute(sync=True)
    assert alone.samples == (target[part] != -100).sum()
    assert plain.compute().samples == alone.samples  # a panel keeps to its own samples
    values["plain panel", cut] = together.values()
torch.save(values, f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


def test_two_processes_measure_what_one_measures_of_all(tmp_path: Path) -> None:
    assert run_as_ranks(PROCESS, tmp_path) == [0, 0]
    logits, target = data()
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first == second
    for cut in (500, 371, 0):
        for name, (_, function, tolerance) in CASES.items():
            assert first[name, cut] == pytest.approx(float(function(logits, target)), rel=tolerance), name
        for name, (build, _) in STREAMING.items():
            alone = updated(build(streaming=True), logits, target, 100)
            assert first["streaming " + name, cut] == pytest.approx(float(alone.compute()), rel=1e-12)
        whole = updated(metrics.CalibrationPanel(K), logits, target, 500).compute()
        assert whole.ece == pytest.approx(float(cal.ece(logits, target)), rel=1e-12)
        assert first["panel", cut] == first["plain panel", cut] == pytest.approx(whole.values(), rel=1e-12)
