"""Auditing predictions: every measure in one pass over a file, with intervals and a test."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant import inputs, stats
from calibrant.audit.record import Audit, ClassRow, GroupRow, KeptSamples, PairedComparison, ReliabilityBins
from calibrant.errors import InputError
from calibrant.inputs import Given
from calibrant.metrics.estimators import calibration_error
from calibrant.metrics.panel import Panel, PanelResult, class_groups
from calibrant.metrics.scores import negative_log_likelihood, of_samples
from calibrant.metrics.table import MEASURES
from calibrant.outcomes import Outcomes, judged
from calibrant.predictions import Predictions, open_predictions


def audit(
    source: Predictions | str | Path,
    name: str | None = None,
    *,
    transform: Callable[[Tensor], Tensor] | None = None,
    counts: Sequence[int] | None = None,
    num_bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    keep: bool = False,
    advance: Callable[[int], Any] = lambda rows: None,  # noqa: ARG005
) -> Audit:
    """Audit predictions in one pass, a few rows at a time.

    Args:
        source: A file of predictions, or what :func:`calibrant.predictions.open_predictions` returns.
        name: Name shown in tables; the file's name if not given.
        transform: Applied to logits first, such as a calibrator.
        counts: Training samples of each class, for head, medium and tail.
        num_bins: Number of bins for the binned errors.
        resamples: Number of resamples per interval.
        seed: Seed of the resampling.
        keep: Keep 13 bytes per sample, for :func:`compare`.
        advance: Called with the number of rows read, for a progress bar.

    Example:
        >>> import os, tempfile
        >>> import numpy
        >>> from calibrant.audit import audit
        >>> path = os.path.join(tempfile.mkdtemp(), "predictions.npz")
        >>> numpy.savez(path, logits=[[4.0, 0.0]] * 80, target=[0] * 60 + [1] * 20)
        >>> found = audit(path)
        >>> found.samples, round(found["ece"], 3), found.intervals["accuracy"]
        (80, 0.232, 0.750 [0.645, 0.832])
    """
    file = source if isinstance(source, Predictions) else open_predictions(source)
    file.require_target()
    counts = counts if counts is not None else file.train_counts
    groups = {} if counts is None or file.shape else class_groups(counts)  # defined by sample counts, not pixels
    # a file gives logits of all classes, whatever it holds
    given: Given = {"ignore_index": file.ignore_index, "probs": False, "task": "binary" if file.single else "multiclass"}
    panel = Panel(file.num_classes, num_bins=num_bins, groups=groups, **given)
    images = stats.ImageBins(num_bins=num_bins) if file.shape else None
    kept: list[KeptSamples] = []
    for chunk in file.chunks():
        assert chunk.target is not None  # noqa: S101
        logits = chunk.logits if transform is None else transform(chunk.logits)
        panel.update(logits, chunk.target)
        if images is not None:
            images.update(logits, chunk.target, **given)
        elif keep:
            kept.append(_keep(logits, chunk.target, given))
        advance(len(chunk.logits))
    result: PanelResult = panel.compute()
    if not result.samples:
        raise InputError(f"{file.path}: every sample has the ignored label {file.ignore_index}; there is nothing to measure")
    common = {"resamples": resamples, "seed": seed}
    if images is not None:
        intervals, test = images.intervals(**common), None
    else:
        intervals, test = stats.panel_intervals(result, **common), stats.panel_test(result, **common)
    classes = [file.name_of(k) for k in range(file.num_classes)]
    found = from_panel(result, name or file.path.stem, str(file.path), classes, intervals, test)
    found = replace(found, event=classes[1]) if file.single else found
    return replace(found, kept=_joined(kept)) if kept else found


def from_panel(
    result: PanelResult,
    name: str,
    source: str,
    classes: Sequence[str],
    intervals: dict[str, stats.Interval],
    test: stats.CalibrationTest | None,
) -> Audit:
    """The audit of what a panel measured."""
    dense = "image_ece" in intervals
    values = result.values(dense=dense)
    if dense:
        values["image_ece"] = intervals["image_ece"].value
    confidence, accuracy = result.bins.means()
    errors = calibration_error(result.class_bins).tolist()
    rows = [
        ClassRow(**group._asdict(), name=own, classwise_ece=error)
        for group, own, error in zip(result.classes, classes, errors, strict=True)
    ]
    return Audit(
        name=name,
        source=source,
        samples=result.samples,
        num_bins=result.num_bins,
        values=values,
        intervals=intervals,
        how={key: result.how(MEASURES[key]) for key in values if MEASURES[key].how},
        bins=ReliabilityBins(result.bins.counts.tolist(), confidence.tolist(), accuracy.tolist()),
        classes=rows,
        groups={group: GroupRow(**row._asdict()) for group, row in result.groups.items()},
        test=test,
    )


def _keep(logits: Tensor, target: Tensor, given: Given) -> KeptSamples:
    samples = inputs.for_measuring(logits, target, **given)
    outcomes = judged(samples)
    nll = of_samples(negative_log_likelihood, samples).float()
    return KeptSamples(target.int(), Outcomes(outcomes.confidence.float(), outcomes.correct), nll)


def _joined(kept: Sequence[KeptSamples]) -> KeptSamples:
    confidence, correct = (torch.cat(parts) for parts in zip(*(own.outcomes for own in kept), strict=True))
    labels, nll = (torch.cat(parts) for parts in zip(*((own.labels, own.nll) for own in kept), strict=True))
    return KeptSamples(labels, Outcomes(confidence, correct), nll)


def compare(first: Audit, second: Audit, *, num_bins: int = 15, resamples: int = 1000, seed: int = 0) -> PairedComparison:
    """Paired comparison of two audits that kept their samples."""
    if first.kept is None or second.kept is None:
        return PairedComparison(first.name, second.name, {})
    a, b = first.kept, second.kept
    if not torch.equal(a.labels, b.labels):
        raise InputError(
            f"{first.source} and {second.source} have different labels, but a paired comparison needs the same samples "
            "in the same order; evaluate the files one at a time"
        )
    options: Any = {"num_bins": num_bins, "resamples": resamples, "seed": seed}
    measures = stats.compare_outcomes(a.outcomes, b.outcomes, of_events=bool(first.event), **options)
    return PairedComparison(first.name, second.name, {**measures, "nll": stats.compare_means(a.nll, b.nll)})


def short_names(paths: Sequence[Path]) -> list[str]:
    """The shortest suffix of each path that distinguishes it from the others."""
    parts = [path.with_suffix("").parts for path in paths]
    for depth in range(1, max(len(p) for p in parts) + 1):
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{path.stem} ({i + 1})" for i, path in enumerate(paths)]
