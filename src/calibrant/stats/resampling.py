"""Bootstrap intervals, of one model and of the difference of two.

Most measures depend on the samples through a few counts: how many right and how many wrong predictions fall into each
bin, or into each of some two thousand cells in order of confidence. Resampling N samples with replacement means drawing
these counts from a multinomial distribution; no softmax is computed again. Pixels of an image are not independent: of
dense predictions whole images are resampled.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import metrics, tensors
from calibrant.binning import BinStatistics, bin_index, equal_width_edges
from calibrant.extras import require
from calibrant.metrics import calibration, scores
from calibrant.metrics import cells as on_cells
from calibrant.metrics.cells import Cells
from calibrant.outcomes import Outcomes, top_label
from calibrant.tensors import Batch
from calibrant.validation import in_range, whole

Metric = Callable[..., Tensor]

#: Cells in order of confidence that stand for the samples when these are resampled.
CELLS = 2048


@dataclass(frozen=True)
class Interval:
    """A measure with its interval.

    Attributes:
        value: The measure itself.
        low: Lower end.
        high: Upper end.
        level: Confidence level.
        resamples: Number of resamples.
        method: How the interval was found.
    """

    value: float
    low: float
    high: float
    level: float
    resamples: int
    method: str

    def to_dict(self) -> dict[str, Any]:
        """In plain Python types."""
        return asdict(self)


@dataclass(frozen=True)
class Comparison:
    """Difference of a measure between two models on the same samples, a - b.

    Attributes:
        a: The measure of the first model.
        b: The measure of the second.
        difference: a - b.
        low: Lower end of its interval.
        high: Upper end.
        p_value: Of no difference, two-sided.
        level: Confidence level.
        resamples: Number of resamples.
    """

    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    level: float
    resamples: int

    def to_dict(self) -> dict[str, Any]:
        """In plain Python types."""
        return asdict(self)


def bootstrap(
    metric: Metric | str,
    logits: Tensor,
    target: Tensor,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    ignore_index: int = -100,
    progress: bool = False,
    **options: Any,
) -> Interval:
    """Interval of any metric.

    For most metrics the interval is that of the number itself, as it would vary from one test set of this size to the
    next: the quantiles of the resampled values around their mean, mirrored at the measured one. Plug-in calibration
    errors such as ``ece`` are too large by themselves, the more so the fewer samples; where the true error lies is told
    by ``debiased_ece``. Its interval holds all errors under which the measured value is not unlikely: the bins' gaps
    are scaled up and down, and for each scale new outcomes are drawn (test inversion). It starts at 0 exactly if the
    samples do not contradict perfect calibration.

    Args:
        metric: A function of :mod:`calibrant.functional` or its name, or any function of logits and target. Those that no
            shortcut is known for, such as ``classwise_ece``, are evaluated once for each resample.
        logits: ``(N, K)`` or ``(N, K, *spatial)``.
        target: Labels, ``(N,)`` or ``(N, *spatial)``.
        resamples: Number of resamples.
        level: Confidence level.
        seed: Makes it repeatable.
        ignore_index: Label of samples or pixels to leave out.
        progress: Show a progress bar.
        **options: Passed on to ``metric``, such as ``num_bins``.
    """
    whole("resamples", resamples, 2)
    in_range("level", level, 0, 1, above=True)
    function = _by_name(metric)
    random = np.random.default_rng(seed)
    batch = tensors.check(logits, target, ignore_index)
    tensors.check_not_empty(int(batch.kept.sum()), ignore_index)
    value = float(function(logits, target, ignore_index=ignore_index, **options))
    if function is metrics.debiased_ece and logits.dim() == 2:
        low, high = invert(_bins_to_invert(batch, **options), random, resamples, level, options.get("norm", 1))
        return Interval(value, low, high, level, resamples, "test inversion")
    route = _ROUTES.get(function)
    if route is None:
        draws = _by_index(
            partial(function, ignore_index=ignore_index, **options), batch, random, resamples, progress=progress
        )
    else:
        draws = route(batch, **options).draw(random, resamples)
    low, high = around(value, draws, level)
    return Interval(value, *_in_bounds(function, low, high), level, resamples, "bootstrap")


def compare(
    a: Tensor,
    b: Tensor,
    target: Tensor,
    metric: Metric | str = "ece",
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    ignore_index: int = -100,
    progress: bool = False,
    **options: Any,
) -> Comparison:
    """Paired bootstrap of the difference of two models on the same samples.

    Both models are measured on the same resamples, so that what makes a sample hard for both cancels out.

    Args:
        a: Logits of the first model, ``(N, K)`` or ``(N, K, *spatial)``.
        b: Logits of the second; the number of classes may differ.
        target: Labels, ``(N,)`` or ``(N, *spatial)``.
        metric: As in :func:`bootstrap`.
        resamples: Number of resamples.
        level: Confidence level.
        seed: Makes it repeatable.
        ignore_index: Label of samples or pixels to leave out.
        progress: Show a progress bar.
        **options: Passed on to ``metric``.
    """
    whole("resamples", resamples, 2)
    in_range("level", level, 0, 1, above=True)
    function = _by_name(metric)
    values = [float(function(logits, target, ignore_index=ignore_index, **options)) for logits in (a, b)]
    route = _ROUTES.get(function)
    batches = [tensors.check(logits, target, ignore_index) for logits in (a, b)]
    random = np.random.default_rng(seed)
    if route is None:
        evaluate = partial(function, ignore_index=ignore_index, **options)
        state = random.bit_generator.state
        draws = []
        for batch in batches:
            random.bit_generator.state = state  # the same resamples for both
            draws.append(_by_index(evaluate, batch, random, resamples, progress=progress))
    else:
        draws = draw_together([route(batch, **options) for batch in batches], random, resamples, progress=progress)
    return comparison(values, draws, level)


def comparison(values: list[float], draws: list[np.ndarray], level: float) -> Comparison:
    """From two measured values and their paired resamples to interval and p-value of the difference."""
    differences = draws[0] - draws[1]
    difference, resamples = values[0] - values[1], len(differences)
    low, high = around(difference, differences, level)
    # Less than a rounding error is no difference, however little it varies.
    as_far = int((np.abs(differences - differences.mean()) >= abs(difference) - 1e-7).sum())
    return Comparison(values[0], values[1], difference, low, high, (1 + as_far) / (1 + resamples), level, resamples)


def _by_name(metric: Metric | str) -> Metric:
    if not isinstance(metric, str):
        return metric
    function = getattr(metrics, metric, None)
    if metric.startswith("_") or not isinstance(function, FunctionType):
        names = ", ".join(route.__name__ for route in _ROUTES)
        raise ValueError(f"metric must be a function or the name of one, such as {names}; got {metric!r}")
    return function


def around(value: float, draws: np.ndarray, level: float) -> tuple[float, float]:
    """The basic bootstrap interval, with the bias of the resampled values taken out."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    mean = draws.mean()
    return float(value - (high - mean)), float(value + (mean - low))


def _in_bounds(function: Metric, low: float, high: float) -> tuple[float, float]:
    top = {metrics.nll: np.inf, metrics.brier_score: 2.0}.get(function, 1.0 if function in _ROUTES else np.inf)
    bottom = 0.0 if function in _ROUTES else -np.inf
    return max(low, bottom), min(high, top)


class _Counts:
    """A measure that depends on counts alone: every sample is of one of some kinds, or every image holds some of each.

    Args:
        kind: Kind of each sample that is kept, ``(n,)``.
        image: Image of each sample, ``(n,)``, or None if each is on its own.
        kinds: Number of kinds.
        measure: From counts ``(resamples, kinds)`` to values ``(resamples,)``.
    """

    def __init__(self, kind: Tensor, image: Tensor | None, kinds: int, measure: Callable[[Tensor], Tensor]) -> None:
        self.kind = kind.cpu()
        self.kinds = kinds
        self.measure = measure
        self.images = None if image is None else _table(image.cpu(), self.kind, kinds)

    def draw(self, random: np.random.Generator, resamples: int) -> np.ndarray:
        if self.images is not None:
            weights = _weights(len(self.images), random, resamples)
            return self.measure(weights @ self.images).numpy()
        counts = np.bincount(self.kind.numpy(), minlength=self.kinds)
        return self.measure(multinomial(counts, random, resamples)).numpy()


class _Mean:
    """The mean of a score of each sample."""

    def __init__(self, scores: Tensor, image: Tensor | None) -> None:
        self.scores = scores.cpu()
        if image is not None:
            image = image.cpu()
            size = int(image.max()) + 1
            total = torch.zeros(size, dtype=torch.float64).index_add_(0, image, self.scores)
            self.images = torch.stack([total, torch.bincount(image, minlength=size).double()], dim=1)

    def draw(self, random: np.random.Generator, resamples: int) -> np.ndarray:
        if hasattr(self, "images"):
            total, count = (_weights(len(self.images), random, resamples) @ self.images).numpy().T
            return np.asarray(total / count)
        values = self.scores.numpy()
        return np.array([values[random.integers(len(values), size=len(values))].mean() for _ in range(resamples)])


def multinomial(counts: np.ndarray, random: np.random.Generator, resamples: int) -> Tensor:
    """Draw as many samples anew, ``resamples`` times, and return their counts, one set per row."""
    total = int(counts.sum())
    return torch.from_numpy(random.multinomial(total, counts / total, size=resamples)).double()


def _weights(number: int, random: np.random.Generator, resamples: int) -> Tensor:
    """How often each of a number of images is drawn."""
    return multinomial(np.ones(number, dtype=np.int64), random, resamples)


def _table(row: Tensor, column: Tensor, columns: int) -> Tensor:
    rows = int(row.max()) + 1
    return torch.bincount(row * columns + column, minlength=rows * columns).view(rows, columns).double()


def draw_together(routes: list[Any], random: np.random.Generator, resamples: int, *, progress: bool) -> list[np.ndarray]:
    """Values of both models on the same resamples."""
    first, second = routes
    if getattr(first, "images", None) is not None:
        state = random.bit_generator.state
        values = []
        for route in routes:
            random.bit_generator.state = state
            values.append(route.draw(random, resamples))
        return values
    if isinstance(first, _Mean):
        size = len(first.scores)
        both = np.stack([first.scores.numpy(), second.scores.numpy()])
        draws = np.array([both[:, random.integers(size, size=size)].mean(axis=1) for _ in range(resamples)])
        return [draws[:, 0], draws[:, 1]]
    pairs, pair = torch.unique(first.kind * second.kinds + second.kind, return_inverse=True)
    if len(pairs) <= 4 * CELLS:  # kinds of pairs of outcomes: draw their numbers
        counts = multinomial(np.bincount(pair.numpy(), minlength=len(pairs)), random, resamples)
        sides = [(first, pairs // second.kinds), (second, pairs % second.kinds)]
        return [
            route.measure(counts.new_zeros(resamples, route.kinds).index_add_(1, kind, counts)).numpy()
            for route, kind in sides
        ]
    size = len(first.kind)
    tables = [torch.zeros(resamples, route.kinds, dtype=torch.float64) for route in routes]
    for i in _track(range(resamples), progress=progress):
        index = torch.from_numpy(random.integers(size, size=size))
        for route, table in zip(routes, tables, strict=True):
            table[i] = torch.bincount(route.kind[index], minlength=route.kinds)
    return [route.measure(table).numpy() for route, table in zip(routes, tables, strict=True)]


def _by_index(function: Metric, batch: Batch, random: np.random.Generator, resamples: int, *, progress: bool) -> np.ndarray:
    """Evaluate a metric on resampled samples or images."""
    filled = batch.kept.flatten(1).any(dim=1).nonzero().flatten() if batch.kept.dim() > 1 else batch.kept.nonzero().flatten()
    logits, kept = batch.logits[filled], batch.kept[filled]
    ignore_index = function.keywords["ignore_index"] if isinstance(function, partial) else -100
    target = batch.target[filled].where(kept, ignore_index)
    values = []
    for _ in _track(range(resamples), progress=progress):
        index = torch.from_numpy(random.integers(len(logits), size=len(logits))).to(logits.device)
        values.append(float(function(logits[index], target[index])))
    return np.array(values)


def _track(items: range, *, progress: bool) -> Any:
    return require("rich.progress", "a progress bar").track(items, "resampling", transient=True) if progress else items


def image_numbers(batch: Batch) -> Tensor | None:
    """Number of the image that each kept pixel belongs to, counting only images that have one; None of samples."""
    if batch.kept.dim() == 1:
        return None
    numbers: Tensor = torch.unique(batch.kept.nonzero()[:, 0], return_inverse=True)[1]
    return numbers


def _on_bins(batch: Batch, measure: Callable[[BinStatistics], Tensor], num_bins: int = 15) -> _Counts:
    """A measure of bins of equal width: a sample is right or wrong, in one of the bins."""
    return counts_on_bins(top_label(batch), measure, num_bins, image_numbers(batch))


def counts_on_bins(
    outcomes: Outcomes, measure: Callable[[BinStatistics], Tensor], num_bins: int, images: Tensor | None = None
) -> _Counts:
    """A measure of bins of equal width, from outcomes."""
    confidence, correct = (x.cpu() for x in outcomes)
    confidence = confidence.double()
    kind = 2 * bin_index(confidence, equal_width_edges(num_bins)) + correct
    count = torch.bincount(kind, minlength=2 * num_bins).clamp(min=1)
    mean = torch.zeros(2 * num_bins, dtype=torch.float64).index_add_(0, kind, confidence) / count

    def of_counts(counts: Tensor) -> Tensor:
        by_bin = counts.view(len(counts), num_bins, 2)
        return measure(BinStatistics(by_bin.sum(-1), (by_bin * mean.view(num_bins, 2)).sum(-1), by_bin[..., 1]))

    return _Counts(kind, images, 2 * num_bins, of_counts)


def _on_cells(batch: Batch, measure: Callable[[Cells], Tensor]) -> _Counts:
    """A measure of outcomes in order: a sample is right or wrong, in one of the cells."""
    confidence, correct = (x.cpu() for x in top_label(batch))
    cells = on_cells.merged(on_cells.cells_of(Outcomes(confidence, correct)), CELLS)
    between = (cells.confidence[:-1] + cells.confidence[1:]) / 2
    size = len(cells.confidence)
    kind = 2 * torch.bucketize(confidence.double(), between) + correct

    def of_counts(counts: Tensor) -> Tensor:
        by_cell = counts.view(len(counts), size, 2)
        return measure(Cells(cells.confidence, by_cell.sum(-1), by_cell[..., 1]))

    return _Counts(kind, image_numbers(batch), 2 * size, of_counts)


def _ece(batch: Batch, num_bins: int = 15, norm: int = 1) -> _Counts:
    return _on_bins(batch, partial(on_cells.calibration_error, norm=norm), num_bins)


def _adaptive(batch: Batch, num_bins: int = 15, norm: int = 1) -> _Counts:
    return _on_cells(batch, lambda c: on_cells.calibration_error(on_cells.bins_of_equal_mass(c, num_bins), norm))


def _debiased(batch: Batch, num_bins: int = 15, binning: str = "mass", norm: int = 1) -> _Counts:
    if binning == "width":
        return _on_bins(batch, lambda bins: calibration.as_error(on_cells.debiased_error(bins, norm), norm), num_bins)

    def measure(cells: Cells) -> Tensor:
        bins = on_cells.bins_of_equal_mass(cells, num_bins, split=True)
        return calibration.as_error(on_cells.debiased_error(bins, norm), norm)

    return _on_cells(batch, measure)


def _sweep(batch: Batch, binning: on_cells.Binning = "mass", norm: int = 1) -> _Counts:
    return _on_cells(batch, lambda cells: on_cells.sweep(cells, binning, norm)[0])


def _score(score: Callable[..., Tensor]) -> Callable[[Batch], _Mean]:
    return lambda batch: _Mean(scores.of_samples(score, batch), image_numbers(batch))


def _top_k(batch: Batch, k: int = 5) -> _Mean:
    return _Mean(scores.of_samples(lambda block, _: scores.rank(block) < k, batch), image_numbers(batch))


#: Metrics that need no softmax for each resample.
_ROUTES: dict[Metric, Callable[..., Any]] = {
    metrics.ece: _ece,
    metrics.mce: lambda batch, num_bins=15: _on_bins(batch, calibration.maximum_error, num_bins),
    metrics.overconfidence: lambda batch, num_bins=15: _on_bins(batch, calibration.overconfident_part, num_bins),
    metrics.underconfidence: lambda batch, num_bins=15: _on_bins(batch, calibration.underconfident_part, num_bins),
    metrics.adaptive_ece: _adaptive,
    metrics.debiased_ece: _debiased,
    metrics.sweep_ece: _sweep,
    metrics.smooth_ece: lambda batch: _on_cells(batch, partial(on_cells.smooth_error, points=2**11)),
    metrics.aurc: lambda batch: _on_cells(batch, on_cells.area_under_risk_coverage),
    metrics.accuracy: _score(scores.right),
    metrics.nll: _score(scores.negative_log_likelihood),
    metrics.brier_score: _score(scores.brier),
    metrics.top_k_accuracy: _top_k,
}


def _bins_to_invert(batch: Batch, num_bins: int = 15, binning: str = "mass", norm: int = 1) -> BinStatistics:  # noqa: ARG001
    outcomes = Outcomes(*(x.cpu() for x in top_label(batch)))
    if binning == "mass":
        return on_cells.bins_of_equal_mass(on_cells.cells_of(outcomes), num_bins, split=True)
    return calibration.width_bins(outcomes, num_bins)


def invert(
    bins: BinStatistics, random: np.random.Generator, resamples: int, level: float, norm: int = 1
) -> tuple[float, float]:
    """Interval of the true error: those scales of the measured gaps at which the measured estimate is not unlikely."""
    measured = float(on_cells.debiased_error(bins, norm))
    confidence, gaps, weights = (x.numpy() for x in (bins.means()[0], bins.gaps(), bins.weights()))
    total, seed = int(bins.counts.sum()), random.integers(2**63)

    def accuracy(scale: float) -> np.ndarray:
        return np.clip(confidence - scale * gaps, 0, 1)

    def share_below(scale: float) -> float:
        """How often new outcomes give an estimate of at most the measured one; with the same seed, monotone in the scale."""
        draw = np.random.default_rng(seed)
        counts = draw.multinomial(total, weights / weights.sum(), size=resamples)
        drawn = [counts, counts * confidence, draw.binomial(counts, accuracy(scale))]
        drawn_bins = BinStatistics(*(torch.from_numpy(x).double() for x in drawn))
        return float((on_cells.debiased_error(drawn_bins, norm) <= measured).double().mean())

    def error(share: float) -> float:
        low, high = 0.0, 1.0
        while share_below(high) > share and high < 2**10:
            low, high = high, 2 * high
        for _ in range(14):
            middle = (low + high) / 2
            low, high = (middle, high) if share_below(middle) > share else (low, middle)
        return float((weights * np.abs(confidence - accuracy((low + high) / 2)) ** norm).sum() ** (1 / norm))

    tail = (1 - level) / 2
    calibrated = share_below(0.0)
    return (0.0 if calibrated < 1 - tail else error(1 - tail), 0.0 if calibrated <= tail else error(tail))
