"""Epochs per hour of studies on a CPU, against how they were trained before any of this was looked at.

python benchmarks/bench_epochs.py [--json benchmarks/epochs.json] [--repeats 3] [--epochs 3]

Before: one run at a time with all threads, channels first, freed memory returned to the system, optimizers not fused.
Each study has one run per core, of the recipe cifar10-lt-resnet32, of the same with ResNet-20, and of camvid-deeplabv3, on
random images of the recipes' sizes. The seconds of the epochs count, validation included, without the first, which warms up
and, with torch.compile, compiles.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from calibrant.runs import RunFolder
from measuring import arguments, environment

if TYPE_CHECKING:
    from collections.abc import Callable

CORES = os.cpu_count() or 1
CIFAR = ["cifar10-lt-resnet32", "--data.name", "npz", "--data.path", "cifar.npz", "--data.long_tail.ratio", "1"]
RECIPES = {
    "ResNet-20": [*CIFAR, "--model", "resnet20"],
    "ResNet-32": CIFAR,
    "DeepLabV3+": ["camvid-deeplabv3"],
}
#: A study as it was trained before.
BEFORE = """
import sys
from calibrant.cli.fields import parse
from calibrant.study import Study
from calibrant.train import engine

engine._can_be_fused = lambda parameters: False
recipe, seeds, folder, *fields = sys.argv[1:]
Study(recipe, losses=["ce"], seeds=int(seeds), out=folder, **parse(fields)).run(jobs=1, tell=lambda job: None)
"""
FIRST = ["--model.channels_last", "false"]
#: How a study is trained: from Python in the process itself, or by the command with so many jobs, and its fields.
WAYS: dict[str, tuple[int | None, list[str]]] = {
    "before": (None, FIRST),
    "one run at a time": (1, []),
    "as it is": (CORES, []),  # chosen without a word, but for studies that are shorter than starting processes
    "compiled": (CORES, ["--model.compile", "true"]),
    "bfloat16": (CORES, ["--trainer.precision", "bf16-mixed"]),  # faster only where the processor multiplies bfloat16
}
LIMIT = 1.5  # for the fastest


def cifar(folder: Path) -> None:
    random = np.random.default_rng(0)
    sizes = {"train": 1280 + 256, "test": 64}
    arrays = {f"{part}_x": random.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8) for part, n in sizes.items()}
    labels = {f"{part}_y": np.arange(n) % 10 for part, n in sizes.items()}
    np.savez(folder / "cifar.npz", **arrays, **labels)


def camvid(folder: Path) -> None:
    """Random images in the layout of PASCAL VOC."""
    random, root = np.random.default_rng(0), folder / "camvid"
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / name).mkdir(parents=True)
    (root / "classes.txt").write_text("".join(f"{k}\n" for k in range(11)))
    for part, count in (("train", 64), ("val", 16), ("test", 4)):
        for i in range(count):
            Image.fromarray(random.integers(0, 256, (180, 240, 3), dtype=np.uint8)).save(root / f"JPEGImages/{part}{i}.jpg")
            Image.fromarray(random.integers(0, 11, (180, 240), dtype=np.uint8)).save(
                root / f"SegmentationClass/{part}{i}.png"
            )
        names = "".join(f"{part}{i}\n" for i in range(count))
        (root / f"ImageSets/Segmentation/{part}.txt").write_text(names)


def seconds(data: Path, folder: Path, recipe: list[str], way: tuple[int | None, list[str]], epochs: int) -> float:
    """Seconds per epoch of a study, as if its epochs followed one another."""
    jobs, more = way
    fields = [*recipe[1:], *more, "--epochs", str(epochs), "--data.root", str(data)]
    if "npz" in recipe:
        fields += ["--data.validation", "256"]
    words = ["compare", recipe[0], "--losses", "ce", "--seeds", str(CORES), "--jobs", str(jobs), "--quiet"]
    command = ["-m", "calibrant", *words, "--out", str(folder), *fields]
    if jobs is None:
        command = ["-c", BEFORE, recipe[0], str(CORES), str(folder), *fields]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_", "KMP_", "GOMP_"))}
    subprocess.run([sys.executable, *command], check=True, capture_output=True, env=own)  # noqa: S603
    of_runs = []
    for seed in range(CORES):
        rows = [row["seconds"] or 0.0 for row in RunFolder(folder / f"ce-seed{seed}").history()]
        of_runs.append(sum(rows[1:]) / (epochs - 1))
    together: Callable[[list[float]], float] = max if jobs == CORES else sum
    return together(of_runs) / CORES


def main() -> None:
    options = arguments(__doc__, "epochs.json", 3, epochs=3)
    found: dict[str, dict[str, list[float]]] = {name: {way: [] for way in WAYS} for name in RECIPES}
    with tempfile.TemporaryDirectory() as place:
        data = Path(place)
        cifar(data)
        camvid(data)
        for turn in range(options.repeats):
            for i, (name, recipe) in enumerate(RECIPES.items()):
                for j, (way, more) in enumerate(WAYS.items()):
                    folder = data / f"study-{turn}-{i}-{j}"
                    found[name][way].append(seconds(data, folder, recipe, more, options.epochs))
    medians = {name: {way: statistics.median(own) for way, own in ways.items()} for name, ways in found.items()}
    base = next(iter(WAYS))
    ratios = {name: {way: ways[base] / ways[way] for way in WAYS} for name, ways in medians.items()}
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    bfloat16 = sorted({"avx512_bf16", "amx_bf16"} & set(flags.split()))
    title = f"{CORES} cores, {' and '.join(bfloat16) or 'no bfloat16'}"
    table = Table("seconds per epoch (ratio)", *WAYS, "at least", title=title)
    for name, ways in medians.items():
        colour = "[red]" if max(ratios[name].values()) < LIMIT else ""
        cells = [f"{ways[way]:.1f} ({ratios[name][way]:.2f})" for way in WAYS]
        table.add_row(f"{colour}{name}", *cells, f"{LIMIT:.1f}")
    Console().print(table)
    measured_on = {**environment(), "bfloat16": bfloat16}
    content = {"environment": measured_on, "seconds_per_epoch": medians, "ratios": ratios, "limit": LIMIT}
    options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
