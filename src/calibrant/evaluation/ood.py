"""Out-of-distribution detection with a finished run: is it less confident on data unlike its training data?"""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant import data, stats
from calibrant.data.places import locate
from calibrant.data.published import Published
from calibrant.errors import input_errors
from calibrant.evaluation.network import TrainedNetwork
from calibrant.metrics import ood_aupr, ood_fpr95
from calibrant.metrics.ood import SCORES
from calibrant.plots import ROC
from calibrant.predictions import Chunk, open_predictions, write_npz
from calibrant.runs import Detection, OODResult, RunFolder

#: Loads the network of a run when it is needed.
Loader = Callable[[RunFolder], TrainedNetwork]


def detect(
    folder: str | Path | RunFolder,
    name: str,
    *,
    load: Loader = TrainedNetwork.load,
    root: str | None = None,
    limit: int | None = None,
    download: bool = False,
    force: bool = False,
    advance: Callable[[int, int], Any] = lambda samples, total: None,  # noqa: ARG005
) -> OODResult:
    """Predict OOD data with a run's network, unless already done, and measure how well it separates them from its test part.

    Args:
        folder: The run.
        name: The OOD data, see :func:`calibrant.data.unknown`.
        load: Loads the network of a run when it is needed.
        root: Data folder.
        limit: Maximum number of OOD samples.
        download: Let torchvision download missing data.
        force: Predict again.
        advance: Called with the number of samples just predicted and the total, for a progress bar.

    Returns:
        For each score, before and after temperature scaling: AUROC with its interval, FPR95, AUPR.
    """
    folder = RunFolder(folder)
    folder.require_finished()
    known, file = folder.ood(), folder.ood_predictions(name)
    own = folder.recipe().data
    source = _fingerprint(name, own.name, root or own.root)
    before = known.get(name)
    if not force and file.exists() and before is not None and (before.limit, before.source) == (limit, source):
        return before
    with folder.claimed():
        trained = load(folder)
        with input_errors():
            part = data.unknown(
                name,
                trained.data,
                root=root or trained.recipe.data.root,
                size=trained.recipe.data.size,
                limit=limit,
                download=download,
            )
        parts = []
        for logits, _ in trained.batches(part):
            parts.append(logits)
            advance(len(logits), len(part))
        unknown = torch.cat(parts)
        write_npz(file, [Chunk(0, unknown, None)], len(unknown), classes=trained.data.classes, force=True)
        scaled = {stage: measure(folder, unknown, t) for stage, t in (("before", 1.0), ("after", trained.temperature))}
        result = OODResult(name, limit, source, len(unknown), trained.temperature, **scaled)
        folder.write_ood({**folder.ood(), name: result})
        return result


def _fingerprint(name: str, known: str, root: str | None) -> str:
    """Where OOD data comes from and, for files, a checksum of names, sizes and times."""
    with input_errors():
        published = Published.find(name, known, root)
    place = locate(name, root) if published is None else published.path
    if place is None:
        return str(data.data_root(root).resolve())
    paths = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    state = "".join(f"{path.relative_to(place)} {path.stat().st_size} {path.stat().st_mtime_ns}\n" for path in paths)
    return f"{place.resolve()} {zlib.crc32(state.encode()):08x}"


def pair(folder: str | Path | RunFolder, name: str) -> tuple[Tensor, Tensor]:
    """Logits of a run's test part and of the OOD data."""
    folder = RunFolder(folder)
    known, _ = folder.open().read_all()
    unknown = torch.cat([chunk.logits for chunk in open_predictions(folder.ood_predictions(name)).chunks()])
    return known, unknown


def measure(folder: RunFolder, unknown: Tensor, temperature: float) -> dict[str, Detection]:
    """AUROC, FPR95 and AUPR of all scores at a temperature."""
    known, _ = folder.open().read_all()
    both = known / temperature, unknown / temperature
    found: dict[str, Detection] = {}
    for score in SCORES:
        interval = stats.auroc_interval(*both, score=score)
        fpr95, aupr = (float(metric(*both, score=score)) for metric in (ood_fpr95, ood_aupr))
        found[score] = Detection(interval.value, interval.low, interval.high, fpr95, aupr)
    return found


def curves(folder: str | Path | RunFolder, name: str) -> ROC:
    """ROC curves of a run for each score, and for entropy after temperature scaling."""
    folder = RunFolder(folder)
    known, unknown = pair(folder, name)
    temperature = folder.result().temperature
    pairs = {score.replace("_", " "): (known, unknown) for score in SCORES}
    pairs["entropy after temperature"] = known / temperature, unknown / temperature
    return ROC.from_logits(pairs, scores=[*SCORES, "entropy"], title=f"test against {name}")
