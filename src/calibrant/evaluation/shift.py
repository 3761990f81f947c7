"""Corrupted test images: how the accuracy and calibration of a finished run change with severity."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import stats
from calibrant.data import CORRUPTIONS, SEVERITIES, Images, Part, corrupt, data_root
from calibrant.errors import InputError, MissingDataError, input_errors, lookup
from calibrant.evaluation.network import TrainedNetwork
from calibrant.evaluation.ood import Loader
from calibrant.metrics import Panel, PanelResult
from calibrant.metrics.table import ranked
from calibrant.plots import ShiftCurves
from calibrant.recipes import Recipe
from calibrant.runs import STAGES, RunFolder, ShiftRecord, ShiftResult, Stage

#: Published sets of corrupted test images, by the data set they belong to.
PUBLISHED = {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C"}


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
    published = _published(folder.recipe(), root)
    names = list(corruptions or (_names(published) if published else CORRUPTIONS))
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


def _published(recipe: Recipe, root: str | None) -> Path | None:
    name = PUBLISHED.get(recipe.data.name)
    folder = None if name is None else data_root(root or recipe.data.root) / name
    return folder if folder is not None and (folder / "labels.npy").exists() else None


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.npy") if path.stem != "labels")


def _corrupted(
    trained: TrainedNetwork, name: str, severity: int, seed: int, published: Path | None
) -> tuple[Part, Callable[[Tensor], Tensor] | None]:
    """The test images, and what to do with each batch of them."""
    test = trained.data.test
    test.refuse("shift")
    if not severity:
        return test, None
    if published is not None:
        return _from_file(published, name, severity), None
    lookup(name, CORRUPTIONS, "corruption")
    # The same noise for all runs of a study: it depends only on seed, corruption, severity and batch size.
    random = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name} {severity}".encode()))
    return test, lambda x: corrupt(x, name, severity, random)


def _from_file(folder: Path, name: str, severity: int) -> Images:
    """One severity's fifth of a published file, which holds the severities one after another."""
    path = folder / f"{name}.npy"
    if not path.exists():
        raise InputError(f"{name!r} is not among the published files of {folder}; choose from {', '.join(_names(folder))}")
    try:
        x = np.load(path, mmap_mode="r", allow_pickle=False)
        labels = np.load(folder / "labels.npy", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise MissingDataError(f"{path} cannot be read ({error})") from error
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[-1] != 3 or labels.shape != (len(x),) or len(x) % len(SEVERITIES):
        raise MissingDataError(
            f"{path} must hold uint8 images (5 N, H, W, 3) with a label each; it holds {x.dtype} {x.shape}, "
            f"with {labels.size} labels"
        )
    size = len(x) // len(SEVERITIES)
    own = slice((severity - 1) * size, severity * size)
    return Images(torch.from_numpy(np.array(x[own])).movedim(-1, 1), torch.from_numpy(labels[own].astype(np.int64)))


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
