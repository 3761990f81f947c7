"""How benchmarks measure: time as medians over turns, memory as the peak of what is allocated."""

import argparse
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler, which tells the memory, is chatty

import torch
from rich.progress import track

Step = Callable[[], object]


def peak_memory(run: Step) -> int:
    """Largest number of bytes that are allocated at once while ``run`` runs."""
    run()
    with torch.profiler.profile(profile_memory=True) as profile:
        run()
    now = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def medians(steps: dict[str, Step], repeats: int, what: str) -> dict[str, float]:
    """Median seconds of each step; they take turns in random order, for one leaves the allocator and caches to the next."""
    for run in steps.values():
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    shuffle = random.Random(0).shuffle
    for _ in track(range(repeats), what, transient=True):
        shuffle(names)
        for name in names:
            start = time.perf_counter()
            steps[name]()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def arguments(about: str | None, file: str, repeats: int, **numbers: int) -> argparse.Namespace:
    """Options that benchmarks share: where results go, and how often to measure; and ``numbers`` of their own."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / file, help="where the results go")
    for name, value in {"repeats": repeats, **numbers}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    torch.set_num_threads(2)
    return parser.parse_args()


def turns(steps: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Median of the seconds that steps themselves tell, in turns; the first turn warms up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeats + 1):
        for name, run in steps.items():
            seconds = run()
            if turn:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def environment() -> dict[str, object]:
    """What the figures depend on."""
    return {"torch": torch.__version__, "python": platform.python_version(), "threads": torch.get_num_threads()}
