"""Corrupted test images: how the accuracy and calibration of a finished run change with severity."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant import stats
from calibrant.data import CORRUPTIONS, SEVERITIES, Part, corrupt
from calibrant.data.published import published_images, published_names, published_set
from calibrant.errors import InputError, input_errors, lookup
from calibrant.evaluation.network import TrainedNetwork
from calibrant.evaluation.ood import Loader
from calibrant.metrics import Panel, PanelResult
from calibrant.metrics.table import ranked
from calibrant.plots import ShiftCurves
from calibrant.runs import STAGES, RunFolder, ShiftRecord, ShiftResult, Stage


def measure_shift(
    folder: str | Path | RunFolder,
    *,
    load: Loader = TrainedNetwork.load,
    corruptions: Sequence[str] | None = None,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
    root: str | None = None,
    force: bool = False,
    advance: Callable[[int, int], Any] = lambda done, total: None,  # noqa: ARG005
) -> ShiftResult:
    """Measure a run's network on its corrupted test images, and save results after each corruption and severity.

    Existing results are kept, so that the same call resumes after an interruption.

    Args:
        folder: The run.
        load: Loads the network of a run when it is needed.
        corruptions: Names; by default all of the published set if it is there, else all of :data:`CORRUPTIONS`.
        severities: Severities, from 1 to 5.
        seed: Seed of the corruptions.
        root: Data folder, in which published sets are looked for.
        force: Measure again.
        advance: Called with the number of measurements done and the total, for a progress bar.

    Returns:
        A record for each corruption and severity; severity 0 is the test images themselves.
    """
    folder = RunFolder(folder)
    folder.require_finished()
    for severity in severities:
        if severity not in SEVERITIES:
            raise InputError(f"`severities` must be from 1 to 5, got {severity}")
    own = folder.recipe().data
    published = published_set(own.name, root or own.root)
    names = list(corruptions or (published_names(published) if published else CORRUPTIONS))
    fresh = ShiftResult(seed, "generated" if published is None else "published")
    known = folder.shift() or fresh
    same = (known.seed, known.source) == (fresh.seed, fresh.source)
    if not same and not force:
        raise InputError(
            f"{folder.shift_file} holds results of {known.source} images, seed {known.seed}; pass `force=True` to "
            f"replace them with those of {fresh.source} images, seed {seed}"
        )
    known = known if same else fresh
    wanted = [("none", 0), *((name, severity) for name in names for severity in severities)]
    if force:
        known = replace(known, results=[record for record in known.results if record.key not in wanted])
    done = {record.key for record in known.results}
    missing = [key for key in wanted if key not in done]
    if not missing:
        return known.only(set(wanted))
    with folder.claimed():
        trained = load(folder)
        for number, (name, severity) in enumerate(missing, 1):
            with input_errors():
                part, change = _corrupted(trained, name, severity, seed, published)
                record = _measured(trained, trained.batches(part, change), name, severity)
            known = replace(known, results=[*known.results, record])
            folder.write_shift(known)
            advance(number, len(missing))
    return known.only(set(wanted))


def curves(results: dict[str, ShiftResult]) -> ShiftCurves:
    """Curves of several runs, or of a single run before and after temperature scaling."""
    lines: list[tuple[str, ShiftResult, Stage]] = [(name, result, "before") for name, result in results.items()]
    if len(lines) == 1:
        lines.append((f"{lines[0][0]}, after temperature", lines[0][1], "after"))
    accuracy, ece = ([list(r.by_severity(stage, key).values()) for _, r, stage in lines] for key in ("accuracy", "ece"))
    return ShiftCurves([name for name, _, _ in lines], lines[0][1].severities, accuracy, ece)


def _corrupted(
    trained: TrainedNetwork, name: str, severity: int, seed: int, published: Path | None
) -> tuple[Part, Callable[[Tensor], Tensor] | None]:
    """The test images, and what to do with each batch of them."""
    test = trained.data.test
    test.refuse("shift")
    if not severity:
        return test, None
    if published is not None:
        return published_images(published, name, severity), None
    lookup(name, CORRUPTIONS, "corruption")
    # The same noise for all runs of a study: it depends only on seed, corruption, severity and batch size.
    random = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name} {severity}".encode()))
    return test, lambda x: corrupt(x, name, severity, random)


def _measured(trained: TrainedNetwork, batches: Iterable[tuple[Tensor, Tensor]], name: str, severity: int) -> ShiftRecord:
    """Measures before and after scaling with the run's own temperature, in one pass."""
    data, num_bins = trained.data, trained.recipe.num_bins
    panels = [Panel(data.num_classes, num_bins=num_bins, ignore_index=data.ignore_index) for _ in STAGES]
    for logits, target in batches:
        for panel, temperature in zip(panels, (1.0, trained.temperature), strict=True):
            panel.update(logits / temperature, target)
    dense, found = data.test.dense, {}
    for stage, panel in zip(STAGES, panels, strict=True):
        result: PanelResult = panel.compute()
        found[stage] = {record.key: result[record.key] for record in ranked(2, dense=dense) if result.has(record)}
        if not dense:  # pixels of an image are not independent
            interval = stats.bins_interval(result.bins, resamples=200)
            found[stage] |= {"ece_low": interval.low, "ece_high": interval.high}
    return ShiftRecord(name, severity, result.samples, found["before"], found["after"])
