"""Corrupted test images: how accuracy and calibration of a finished run go down with severity."""

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import stats
from calibrant.data import CORRUPTIONS, SEVERITIES, Images, MissingDataError, Part, Texts, corrupt, data_root
from calibrant.metrics import CalibrationPanel, PanelResult
from calibrant.predictions import InputError, read_json, replacing
from calibrant.train.fit import Run
from calibrant.train.trained import Trained

#: Published sets of corrupted test images, by the data set they belong to.
PUBLISHED = {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C"}
MEASURES = ("accuracy", "ece", "adaptive_ece", "classwise_ece", "nll", "brier")


def results(folder: Path) -> dict[str, Any]:
    """What was found so far."""
    return read_json(folder / "shift.json")


def measure_shift(
    folder: Path,
    *,
    load: Callable[[Path], Trained],
    corruptions: Sequence[str] | None = None,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
    root: str | None = None,
    force: bool = False,
    advance: Callable[[int, int], Any] = lambda done, total: None,  # noqa: ARG005
) -> dict[str, Any]:
    """Measure a run's network on its corrupted test images, and write ``shift.json`` after each corruption and severity.

    What is there already is kept, so that the same call goes on where another was interrupted.

    Args:
        folder: The run.
        load: Makes the network of a run, if it is needed.
        corruptions: Which ones; all of the published set if that is there, else all of :data:`CORRUPTIONS`.
        severities: Which ones, from 1 to 5.
        seed: Of the noise.
        root: Folder of all data, where published sets are looked for.
        force: Measure again.
        advance: Told how many measurements of how many are done.

    Returns:
        ``results``: a list of records, severity 0 being the test images themselves.
    """
    recipe = Run.load(folder).recipe
    published = _published(recipe, root)
    names = list(corruptions or (_names(published) if published else CORRUPTIONS))
    known = results(folder)
    source = "generated" if published is None else "published"
    before = {"seed": known.get("seed"), "source": known.get("source")}
    if known and not force and before != {"seed": seed, "source": source}:
        raise InputError(
            f"{folder / 'shift.json'} holds results of {before['source']} images, seed {before['seed']}; say --force to "
            f"replace them by those of {source} images, seed {seed}"
        )
    wanted = [("none", 0), *((name, severity) for name in names for severity in severities)]
    if not known or before != {"seed": seed, "source": source}:
        known = {"seed": seed, "source": source, "results": []}
    if force:
        known["results"] = [r for r in known["results"] if (r["corruption"], r["severity"]) not in wanted]
    done = {(record["corruption"], record["severity"]) for record in known["results"]}
    missing = [pair for pair in wanted if pair not in done]
    trained = load(folder) if missing else None
    for number, (name, severity) in enumerate(missing, 1):
        assert trained is not None  # noqa: S101
        part, change = _corrupted(trained, name, severity, seed, published)
        record = {"corruption": name, "severity": severity, **_measured(trained, trained.batches(part, change))}
        known["results"].append(record)
        with replacing(folder / "shift.json", force=True) as temporary:
            temporary.write_text(json.dumps(known, indent=1))
        advance(number, len(missing))
    return {**known, "results": [r for r in known["results"] if (r["corruption"], r["severity"]) in set(wanted)]}


def by_severity(found: dict[str, Any], part: str, name: str) -> dict[int, float]:
    """A measure's mean over corruptions at each severity; ``part`` is before or after temperature scaling."""
    severities = sorted({record["severity"] for record in found["results"]})
    return {
        s: float(np.mean([record[part][name] for record in found["results"] if record["severity"] == s])) for s in severities
    }


def mean_of(found: dict[str, Any], part: str, name: str) -> float:
    """A measure's mean over all corruptions and severities, without the clean images."""
    return float(np.mean([record[part][name] for record in found["results"] if record["severity"]]))


def _published(recipe: dict[str, Any], root: str | None) -> Path | None:
    name = PUBLISHED.get(recipe["data"]["name"])
    folder = None if name is None else data_root(root or recipe["data"].get("root")) / name
    return folder if folder is not None and (folder / "labels.npy").exists() else None


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.npy") if path.stem != "labels")


def _corrupted(
    trained: Trained, name: str, severity: int, seed: int, published: Path | None
) -> tuple[Part, Callable[[Tensor], Tensor] | None]:
    """The test images, and what is done to each batch of them."""
    test = trained.data.test
    if isinstance(test, Texts):
        raise InputError("calibrant shift corrupts images; this run was trained on texts")
    if not severity:
        return test, None
    if published is not None:
        return _from_file(published, name, severity), None
    if name not in CORRUPTIONS:
        raise InputError(f"{name!r} is not a corruption; choose from {', '.join(CORRUPTIONS)}")
    # The same noise for all runs of a study: it follows from seed, corruption, severity and the size of the batches.
    random = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name} {severity}".encode()))
    return test, lambda x: corrupt(x, name, severity, random)


def _from_file(folder: Path, name: str, severity: int) -> Images:
    """A fifth of a published file, which holds the severities one after the other."""
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
            f"{path} must be uint8 images (5 N, H, W, 3) with a label each; it is {x.dtype} {x.shape}, "
            f"with {labels.size} labels"
        )
    size = len(x) // len(SEVERITIES)
    own = slice((severity - 1) * size, severity * size)
    return Images(torch.from_numpy(np.array(x[own])).movedim(-1, 1), torch.from_numpy(labels[own].astype(np.int64)))


def _measured(trained: Trained, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Measures before and after the run's own temperature, in one pass."""
    classes, bins, void = trained.data.num_classes, trained.recipe.num_bins, trained.data.ignore_index
    panels = [CalibrationPanel(classes, bins, ignore_index=void, sync_on_compute=False) for _ in range(2)]
    dense = False
    for logits, target in batches:
        dense = logits.dim() > 2
        for panel, temperature in zip(panels, (1.0, trained.temperature), strict=True):
            panel.update(logits / temperature, target)
    found = {}
    for part, panel in zip(("before", "after"), panels, strict=True):
        result: PanelResult = panel.compute()
        found[part] = {name: float(getattr(result, name)) for name in MEASURES}
        if not dense:  # pixels of an image are not independent
            interval = stats.bins_interval(result.bins, resamples=200)
            found[part] |= {"ece_low": interval.low, "ece_high": interval.high}
        else:
            found[part]["mean_iou"] = float(result.mean_iou)
    return {"samples": result.samples, **found}
