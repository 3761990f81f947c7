"""Out-of-distribution detection with a finished run: does it doubt what it was not trained on?"""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from calibrant import data, stats
from calibrant.data.base import locate
from calibrant.metrics import ood_aupr, ood_fpr95
from calibrant.metrics.ood import Score
from calibrant.predictions import Chunk, open_predictions, read_json, replacing, write_npz
from calibrant.train.fit import Run
from calibrant.train.trained import Trained

SCORES: Final[tuple[Score, ...]] = ("entropy", "max_prob", "energy")


def results(folder: Path) -> dict[str, Any]:
    """What was found so far, by name of the unknown data."""
    return read_json(folder / "ood.json")


def detect(
    folder: Path,
    name: str,
    *,
    load: Callable[[Path], Trained],
    root: str | None = None,
    limit: int | None = None,
    download: bool = False,
    force: bool = False,
    advance: Callable[[int, int], Any] = lambda samples, total: None,  # noqa: ARG005
) -> dict[str, Any]:
    """Predict unknown data with a run's network, unless that is done, and measure how well it tells them from its test.

    Args:
        folder: The run.
        name: The unknown data, see :func:`calibrant.data.unknown`.
        load: Makes the network of a run, if it is needed.
        root: Folder of all data.
        limit: At most so many unknown samples.
        download: Let torchvision download what is missing.
        force: Predict again.
        advance: Told how many samples were predicted, and how many there are.

    Returns:
        For each score, before and after temperature scaling: AUROC with its interval, FPR95, AUPR.
    """
    known = results(folder)
    file = predictions_file(folder, name)
    source = _fingerprint(name, root or Run.load(folder).recipe["data"].get("root"))
    wanted = {"name": name, "limit": limit, "source": source}
    if not force and file.exists() and all(known.get(name, {}).get(key) == value for key, value in wanted.items()):
        found: dict[str, Any] = known[name]
        return found
    trained = load(folder)
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
    content = {**wanted, "samples": len(unknown), **measure(folder, unknown, trained.temperature)}
    with replacing(folder / "ood.json", force=True) as temporary:
        temporary.write_text(json.dumps({**known, name: content}, indent=1))
    return content


def _fingerprint(name: str, root: str | None) -> str:
    """Where unknown data comes from, and of files a checksum of names, sizes and times."""
    place = locate(name, root)
    if place is None:
        return str(data.data_root(root).resolve())
    paths = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    state = "".join(f"{path.relative_to(place)} {path.stat().st_size} {path.stat().st_mtime_ns}\n" for path in paths)
    return f"{place.resolve()} {zlib.crc32(state.encode()):08x}"


def predictions_file(folder: Path, name: str) -> Path:
    """Where the logits of unknown data are kept."""
    short = "".join(c if c.isalnum() or c in "-_." else "_" for c in name.removesuffix(".npz")).strip("._")
    unlike = "" if short == name.replace(":", "_") else f"-{zlib.crc32(name.encode()):08x}"  # a/b is not a_b
    return folder / "predictions" / f"ood-{short}{unlike}.npz"


def pair(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    """Logits of a run's test part, and of the unknown data."""
    known, _ = open_predictions(folder).load()
    unknown = torch.cat([chunk.logits for chunk in open_predictions(predictions_file(folder, name)).chunks()])
    return known, unknown


def measure(folder: Path, unknown: Tensor, temperature: float) -> dict[str, Any]:
    """AUROC, FPR95 and AUPR of all scores, before and after temperature scaling."""
    known, _ = open_predictions(folder).load()
    found: dict[str, Any] = {"temperature": temperature}
    for part, t in (("before", 1.0), ("after", temperature)):
        found[part] = {}
        for score in SCORES:
            pair = known / t, unknown / t
            interval = stats.auroc_interval(*pair, score)
            found[part][score] = {
                "auroc": interval.value,
                "low": interval.low,
                "high": interval.high,
                "fpr95": float(ood_fpr95(*pair, score)),
                "aupr": float(ood_aupr(*pair, score)),
            }
    return found
