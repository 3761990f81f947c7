"""Bootstrap intervals.

Most measures depend on the samples through a few counts: how many correct and how many wrong predictions fall into each
bin, or into each of some two thousand entries in order of confidence. Resampling N samples with replacement means drawing
these counts from a multinomial distribution; no softmax is computed again. Pixels of an image are not independent:
for dense predictions, whole images are resampled.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import inputs, tensors
from calibrant.binning import BinStatistics, sums_by, width_index
from calibrant.checks import in_range, whole
from calibrant.errors import lookup
from calibrant.extras import require
from calibrant.inputs import Array
from calibrant.metrics import scores
from calibrant.metrics.estimators import SortedOutcomes, debiased_bins, merge_neighbours, sort_outcomes
from calibrant.metrics.table import BY_FUNCTION, FUNCTIONS, Measure
from calibrant.outcomes import Outcomes, judged, top_label
from calibrant.stats.intervals import Interval, around
from calibrant.stats.inversion import INVERSION, invert
from calibrant.tensors import Samples, Task

Metric = Callable[..., Tensor]

#: Number of entries, sorted by confidence, that represent the samples when resampling.
ENTRIES = 2048
#: What resampling needs no logits for.
RESAMPLED = ("scores", "bins", "sorted", "predicted", "accepted")


def bootstrap(
    metric: Metric | str,
    logits: Array,
    target: Array,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    ignore_index: int = -100,
    probs: bool | None = None,
    task: Task = "multiclass",
    progress: bool = False,
    **options: Any,
) -> Interval:
    """Confidence interval of any metric.

    For most metrics the interval shows how the number would vary from one test set of this size to the next: a basic
    (reverse-percentile) bootstrap interval, centred on the mean of the resamples. Plug-in calibration errors such as
    ``ece`` are biased upwards, the more so the fewer the samples; ``debiased_ece`` estimates the true error. Its
    interval holds all errors under which the measured value is plausible: the bins' gaps are scaled up and down, and
    outcomes are redrawn for each scale (test inversion). It starts at 0 if and only if the samples do not contradict
    perfect calibration.

    Args:
        metric: A function of :mod:`calibrant.functional` or its name, or any function of logits and target. Those that no
            shortcut is known for, such as ``classwise_ece``, are evaluated once for each resample.
        logits: ``(N, K)`` or ``(N, K, *spatial)``.
        target: Labels, ``(N,)`` or ``(N, *spatial)``.
        resamples: Number of resamples.
        level: Confidence level.
        seed: Seed of the resampling.
        ignore_index: Label of samples or pixels to ignore.
        probs: Whether these are probabilities; see :class:`calibrant.inputs.Given`.
        task: ``"binary"`` or ``"multilabel"`` for events; see :class:`calibrant.inputs.Given`.
        progress: Show a progress bar.
        **options: Passed on to ``metric``, such as ``num_bins``.

    Example:
        >>> from calibrant.stats import bootstrap
        >>> logits, target = [[4.0, 0.0]] * 80, [0] * 60 + [1] * 20
        >>> interval = bootstrap("ece", logits, target)
        >>> round(interval.value, 3), interval.low < interval.value < interval.high
        (0.232, True)
    """
    function, record = resolve(metric, resamples, level)
    random = np.random.default_rng(seed)
    samples = inputs.for_measuring(logits, target, ignore_index, probs=probs, task=task)
    tensors.check_not_empty(int(samples.kept.sum()), ignore_index)
    logits_known = known(function, samples)
    value = float(
        function(samples.logits, samples.labels(ignore_index), ignore_index=ignore_index, **options, **logits_known)
    )
    if record is not None and record.interval == "inversion" and samples.logits.dim() == 2:
        norm = options.pop("norm", 1)
        bins = debiased_bins(sort_outcomes(Outcomes(*(x.cpu() for x in judged(samples)))), **options)
        return Interval(value, *invert(bins, random, resamples, level, norm), level, resamples, INVERSION)
    if record is None:
        evaluate = partial(function, ignore_index=ignore_index, **options, **logits_known)
        draws = evaluate_resamples(evaluate, samples, ignore_index, random, resamples, progress=progress)
        return Interval(value, *around(value, draws, level), level, resamples, "bootstrap")
    low, high = around(value, resampled(record, samples, options).draw(random, resamples), level)
    return Interval(value, max(low, 0.0), min(high, record.most), level, resamples, "bootstrap")


def known(function: Metric, samples: Samples) -> dict[str, Any]:
    """What calibrant's own metrics need not find out again about checked logits."""
    return {"probs": False, "task": samples.two_class_task} if function in BY_FUNCTION else {}


def resolve(metric: Metric | str, resamples: int, level: float) -> tuple[Metric, Measure | None]:
    """The function of a metric, and its record if that tells how to resample it."""
    whole("resamples", resamples, 2)
    in_range("level", level, 0, 1, above=True)
    function = lookup(metric, FUNCTIONS, "metric") if isinstance(metric, str) else metric
    record = BY_FUNCTION.get(function)
    return function, record if record is not None and record.on in RESAMPLED else None


class Counts:
    """A measure that depends only on how many samples of each kind there are, in total or per image.

    Args:
        kind: Kind of each sample that is kept, ``(n,)``.
        image: Image of each sample, ``(n,)``, or None if each is on its own.
        kinds: Number of kinds.
        measure: From counts ``(resamples, kinds)`` to values ``(resamples,)``.
    """

    def __init__(self, kind: Tensor, image: Tensor | None, kinds: int, measure: Callable[[Tensor], Tensor]) -> None:
        self.kinds = kinds
        self.measure = measure
        self.images = None if image is None else _table(image.cpu(), kind.cpu(), kinds)
        # For millions of pixels, the table is all that is needed.
        self.kind = kind.cpu() if image is None else torch.empty(0, dtype=torch.long)

    def draw(self, random: np.random.Generator, resamples: int) -> np.ndarray:
        """Values of resamples."""
        if self.images is not None:
            return self.measure(image_weights(len(self.images), random, resamples) @ self.images).numpy()
        counts = np.bincount(self.kind.numpy(), minlength=self.kinds)
        return self.measure(multinomial(counts, random, resamples)).numpy()

    def draw_samples(self, random: np.random.Generator, resamples: int) -> np.ndarray:
        """Values of resamples drawn by sample index: other objects draw the same samples from the same state."""
        if self.images is not None:
            return self.draw(random, resamples)
        size, kind = len(self.kind), self.kind.numpy()
        drawn = [np.bincount(kind[random.integers(size, size=size)], minlength=self.kinds) for _ in range(resamples)]
        return self.measure(torch.from_numpy(np.stack(drawn)).double()).numpy()


class Means:
    """The mean of a per-sample score, as :func:`calibrant.stats.shared_variance` takes it.

    Args:
        scores: Scores ``(n,)``.
        image: Image of each sample, ``(n,)``, or None if each is on its own.

    Example:
        >>> import torch
        >>> from calibrant.stats import Means, shared_variance
        >>> first, second = (Means(torch.tensor([1.0] * n + [0.0] * (80 - n))) for n in (60, 40))
        >>> round(shared_variance([first], [second]) ** 0.5, 3)  # of the difference in accuracy
        0.053
    """

    def __init__(self, scores: Tensor, image: Tensor | None = None) -> None:
        self.scores = scores.cpu()
        self.images: Tensor | None = None
        if image is not None:
            image = image.cpu()
            size = int(image.max()) + 1
            total = torch.zeros(size, dtype=torch.float64).index_add_(0, image, self.scores)
            self.scores = torch.empty(0, dtype=torch.float64)
            self.images = torch.stack([total, torch.bincount(image, minlength=size).double()], dim=1)

    def draw(self, random: np.random.Generator, resamples: int) -> np.ndarray:
        """Values of resamples; other objects draw the same samples from the same state."""
        if self.images is not None:
            total, count = (image_weights(len(self.images), random, resamples) @ self.images).numpy().T
            return np.asarray(total / count)
        values = self.scores.numpy()
        return np.array([values[random.integers(len(values), size=len(values))].mean() for _ in range(resamples)])

    def draw_samples(self, random: np.random.Generator, resamples: int) -> np.ndarray:
        """The same: samples are always drawn by index."""
        return self.draw(random, resamples)


def resampled(record: Measure, samples: Samples, options: Mapping[str, Any]) -> Counts | Means:
    """What a measure of some samples is resampled from."""
    images, options = image_numbers(samples), {**record.options, **options}
    if record.on == "scores":
        assert record.estimate is not None  # noqa: S101
        return Means(scores.of_samples(partial(record.estimate, **options), samples), images)
    estimate = partial(record.evaluate, num_bins=options.pop("num_bins", 15), **record.draws, **options)
    found = top_label(samples) if record.on in ("predicted", "accepted") else judged(samples)
    outcomes = Outcomes(*(x.cpu() for x in found))
    if record.on in ("bins", "predicted"):
        return counts_on_bins(outcomes, estimate, estimate.keywords["num_bins"], images)
    return _counts_on_sorted(outcomes, estimate, images)


def counts_on_bins(
    outcomes: Outcomes, measure: Callable[[BinStatistics], Tensor], num_bins: int, images: Tensor | None = None
) -> Counts:
    """A measure of equal-width bins: a sample is correct or wrong, in one of the bins."""
    confidence, correct = outcomes.confidence.cpu().double(), outcomes.correct.cpu()
    kind = 2 * width_index(confidence, num_bins) + correct
    mean = sums_by(kind, 2 * num_bins, confidence, correct).means()[0].view(num_bins, 2)

    def of_counts(counts: Tensor) -> Tensor:
        by_bin = counts.view(len(counts), num_bins, 2)
        return measure(BinStatistics(by_bin.sum(-1), (by_bin * mean).sum(-1), by_bin[..., 1]))

    return Counts(kind, images, 2 * num_bins, of_counts)


def _counts_on_sorted(outcomes: Outcomes, measure: Callable[[SortedOutcomes], Tensor], images: Tensor | None) -> Counts:
    """A measure of outcomes in order: a sample is correct or wrong, in one of the entries."""
    ordered = merge_neighbours(sort_outcomes(outcomes), ENTRIES)
    between = (ordered.confidence[:-1] + ordered.confidence[1:]) / 2
    size = len(ordered.confidence)
    kind = 2 * torch.bucketize(outcomes.confidence.double(), between) + outcomes.correct

    def of_counts(counts: Tensor) -> Tensor:
        by_entry = counts.view(len(counts), size, 2)
        return measure(SortedOutcomes(ordered.confidence, by_entry.sum(-1), by_entry[..., 1]))

    return Counts(kind, images, 2 * size, of_counts)


def multinomial(counts: np.ndarray, random: np.random.Generator, resamples: int) -> Tensor:
    """Redraw as many samples, ``resamples`` times, and return their counts, one set per row."""
    total = int(counts.sum())
    return torch.from_numpy(random.multinomial(total, counts / total, size=resamples)).double()


def image_weights(number: int, random: np.random.Generator, resamples: int) -> Tensor:
    """How often each of a number of images is drawn."""
    return multinomial(np.ones(number, dtype=np.int64), random, resamples)


def _table(row: Tensor, column: Tensor, columns: int) -> Tensor:
    rows = int(row.max()) + 1
    return torch.bincount(row * columns + column, minlength=rows * columns).view(rows, columns).double()


def evaluate_resamples(
    function: Metric,
    samples: Samples,
    ignore_index: int,
    random: np.random.Generator,
    resamples: int,
    *,
    progress: bool,
) -> np.ndarray:
    """Evaluate a metric on resampled samples or images."""
    some = samples.kept.flatten(1).any(dim=1) if samples.kept.dim() > 1 else samples.kept
    filled = some.nonzero().flatten()
    logits = samples.logits[filled]
    target = samples.target[filled].where(samples.kept[filled], ignore_index)
    values = []
    for _ in track(resamples, progress=progress):
        index = torch.from_numpy(random.integers(len(logits), size=len(logits))).to(logits.device)
        values.append(float(function(logits[index], target[index])))
    return np.array(values)


def track(resamples: int, *, progress: bool) -> Any:
    """Iterate over resamples, with a progress bar."""
    items = range(resamples)
    return require("rich.progress", "a progress bar").track(items, "resampling", transient=True) if progress else items


def image_numbers(samples: Samples) -> Tensor | None:
    """Number of the image that each kept pixel belongs to, counting only images that have one; None of plain samples."""
    if samples.kept.dim() == 1:
        return None
    numbers: Tensor = torch.unique(samples.kept.nonzero()[:, 0], return_inverse=True)[1]
    return numbers
