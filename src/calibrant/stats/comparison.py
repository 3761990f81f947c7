"""Comparison of two models on the same samples."""

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import inputs
from calibrant.inputs import Array
from calibrant.metrics import calibration
from calibrant.metrics.table import MEASURES
from calibrant.outcomes import Outcomes
from calibrant.stats.intervals import around, normal_quantile
from calibrant.stats.resampling import (
    ENTRIES,
    Counts,
    Means,
    Metric,
    counts_on_bins,
    evaluate_resamples,
    known,
    multinomial,
    resampled,
    resolve,
    track,
)
from calibrant.tensors import Task

#: Differences up to this are rounding errors, however small their variance.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Comparison:
    """Difference of a measure between two models on the same samples, a - b.

    Attributes:
        a: The measure of the first model.
        b: The measure of the second.
        difference: a - b.
        low: Lower end of its interval.
        high: Upper end.
        p_value: Two-sided, of no difference.
        level: Confidence level.
        resamples: Number of resamples, 0 if there were none.
    """

    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    level: float = 0.95
    resamples: int = 0

    def __str__(self) -> str:
        return f"{self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}], p = {self.p_value:.3g}"

    def to_dict(self) -> dict[str, Any]:
        """As plain Python types."""
        return asdict(self)


def compare(
    metric: Metric | str,
    a: Array,
    b: Array,
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
) -> Comparison:
    """Compare a metric of two models on the same samples, by a paired bootstrap.

    Both models are evaluated on the same resamples, so common variation cancels. The p-value is that of no
    difference: how often the resampled difference deviates from its mean by at least the measured difference.

    Args:
        metric: As in :func:`bootstrap`.
        a: Logits of the first model, ``(N, K)`` or ``(N, K, *spatial)``.
        b: Logits of the second; the number of classes may differ.
        target: Labels, ``(N,)`` or ``(N, *spatial)``.
        resamples: Number of resamples.
        level: Confidence level.
        seed: Seed of the resampling.
        ignore_index: Label of samples or pixels to ignore.
        probs: Whether these are probabilities; see :class:`calibrant.inputs.Given`.
        task: ``"binary"`` or ``"multilabel"`` for events; see :class:`calibrant.inputs.Given`.
        progress: Show a progress bar.
        **options: Passed on to ``metric``.
    """
    function, record = resolve(metric, resamples, level)
    both = [inputs.for_measuring(logits, target, ignore_index, probs=probs, task=task) for logits in (a, b)]
    evaluate = partial(function, ignore_index=ignore_index, **options, **known(function, both[0]))
    values = [float(evaluate(samples.logits, samples.labels(ignore_index))) for samples in both]
    random = np.random.default_rng(seed)
    if record is not None:
        sources = [resampled(record, samples, options) for samples in both]
        return paired(values, draw_together(sources, random, resamples, progress=progress), level)
    state = random.bit_generator.state
    draws = []
    for samples in both:
        random.bit_generator.state = state  # the same resamples for both
        draws.append(evaluate_resamples(evaluate, samples, ignore_index, random, resamples, progress=progress))
    return paired(values, draws, level)


def paired(values: list[float], draws: list[np.ndarray], level: float) -> Comparison:
    """Interval and p-value of the difference of two measured values, from their paired resamples."""
    differences = draws[0] - draws[1]
    difference, resamples = values[0] - values[1], len(differences)
    low, high = around(difference, differences, level)
    as_far = int((np.abs(differences - differences.mean()) >= abs(difference)).sum())
    p_value = 1.0 if abs(difference) <= ROUNDING else (1 + as_far) / (1 + resamples)
    return Comparison(values[0], values[1], difference, low, high, p_value, level, resamples)


def compare_outcomes(
    a: Outcomes,
    b: Outcomes,
    *,
    images: Tensor | None = None,
    of_events: bool = False,
    num_bins: int = 15,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Comparison]:
    """:func:`compare` of ECE and accuracy, from the outcomes of the same samples under two models.

    With ``images``, the index of the image that each pixel belongs to, whole images are resampled. With ``of_events``, these
    are outcomes of events, and accuracy is that of the more probable class.
    """
    result = {}
    for record in (MEASURES["ece"], MEASURES["accuracy"]):
        measure = partial(record.evaluate, num_bins=num_bins)
        both = [own.of_predicted_class() if of_events and record.on == "predicted" else own for own in (a, b)]
        sources: list[Counts | Means] = [counts_on_bins(outcomes, measure, num_bins, images) for outcomes in both]
        values = [float(measure(calibration.width_bins(outcomes, num_bins))) for outcomes in both]
        draws = draw_together(sources, np.random.default_rng(seed), resamples, progress=False)
        result[record.key] = paired(values, draws, level)
    return result


def compare_means(a: Array, b: Array, *, level: float = 0.95) -> Comparison:
    """Difference of the means of two scores of the same samples, such as their NLL, by the paired standard error."""
    a, b = inputs.as_tensor(a, "a"), inputs.as_tensor(b, "b")
    difference = a.double() - b.double()
    size = len(difference)
    mean, error = float(difference.mean()), float(difference.std()) / math.sqrt(size) if size > 1 else math.inf
    half = normal_quantile(level) * error
    rounded = abs(mean) <= ROUNDING
    p_value = float(rounded) if rounded or error == 0 else math.erfc(abs(mean) / error / math.sqrt(2))
    values = float(a.double().mean()), float(b.double().mean())
    return Comparison(*values, mean, mean - half, mean + half, p_value, level, 0)


def draw_together(
    sources: list[Counts | Means], random: np.random.Generator, resamples: int, *, progress: bool
) -> list[np.ndarray]:
    """Values of both models on the same resamples."""
    first, second = sources
    if first.images is not None:
        state = random.bit_generator.state
        values = []
        for source in sources:
            random.bit_generator.state = state
            values.append(source.draw(random, resamples))
        return values
    if isinstance(first, Means) or isinstance(second, Means):
        return _means_together(first, second, random, resamples)
    pairs, pair = torch.unique(first.kind * second.kinds + second.kind, return_inverse=True)
    if len(pairs) <= 4 * ENTRIES:  # few distinct pairs of outcomes: draw their counts
        counts = multinomial(np.bincount(pair.numpy(), minlength=len(pairs)), random, resamples)
        sides = [(first, pairs // second.kinds), (second, pairs % second.kinds)]
        return [
            source.measure(counts.new_zeros(resamples, source.kinds).index_add_(1, kind, counts)).numpy()
            for source, kind in sides
        ]
    size = len(first.kind)
    tables = [torch.zeros(resamples, source.kinds, dtype=torch.float64) for source in (first, second)]
    for i in track(resamples, progress=progress):
        index = torch.from_numpy(random.integers(size, size=size))
        for source, table in zip((first, second), tables, strict=True):
            table[i] = torch.bincount(source.kind[index], minlength=source.kinds)
    return [source.measure(table).numpy() for source, table in zip((first, second), tables, strict=True)]


def _means_together(
    first: Counts | Means, second: Counts | Means, random: np.random.Generator, resamples: int
) -> list[np.ndarray]:
    assert isinstance(first, Means)  # noqa: S101
    assert isinstance(second, Means)  # noqa: S101
    both = np.stack([first.scores.numpy(), second.scores.numpy()])
    size = both.shape[1]
    draws = np.array([both[:, random.integers(size, size=size)].mean(axis=1) for _ in range(resamples)])
    return [draws[:, 0], draws[:, 1]]
