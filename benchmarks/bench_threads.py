"""What threads and processes do to small networks, alone and beside a process that keeps a core busy.

python benchmarks/bench_threads.py [--json benchmarks/threads.json] [--repeats 3] [--epochs 30]

Runs are of the recipe digits-lt, in processes of their own. Of a run, the seconds of its epochs count, without what starting
and measuring takes; of a study of four runs, everything. Figures are multiples of one thread alone.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from calibrant.runs import RunFolder
from measuring import arguments, environment

#: Ways to train one network: threads, None for what is chosen without a word, and what threads do that wait.
WAYS = {
    "as it is": (None, "PASSIVE"),
    "all cores, waiting threads sleep": (os.cpu_count(), "PASSIVE"),
    "all cores, waiting threads spin": (os.cpu_count(), "ACTIVE"),
}
STUDIES = {"four runs, as it is": [], "four runs, one after the other": ["--jobs", "1"]}


@contextmanager
def busy(number: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def calibrant(folder: Path, *options: str, waiting: str = "PASSIVE") -> None:
    """Run a command, with nothing said about threads."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_", "KMP_", "GOMP_"))}
    if waiting == "ACTIVE":
        own |= {"OMP_WAIT_POLICY": "ACTIVE", "KMP_BLOCKTIME": "200", "GOMP_SPINCOUNT": "30000000000"}
    command = [sys.executable, "-m", "calibrant", *options, "--quiet", "--out", str(folder)]
    subprocess.run(command, check=True, capture_output=True, env=own)  # noqa: S603


def of_run(folder: Path, epochs: int, threads: int | None, waiting: str) -> float:
    """Seconds of the epochs of one run."""
    more = [] if threads is None else ["--threads", str(threads)]
    calibrant(folder, "train", "digits-lt", "--epochs", str(epochs), *more, waiting=waiting)
    return sum(row["seconds"] or 0.0 for row in RunFolder(folder).history())


def of_study(folder: Path, epochs: int, more: list[str]) -> float:
    """Seconds of a study of four runs, everything included."""
    start = time.perf_counter()
    calibrant(folder, "compare", "digits-lt", "--losses", "ce", "mbls", "--seeds", "2", "--epochs", str(epochs), *more)
    return time.perf_counter() - start


def main() -> None:
    options = arguments(__doc__, "threads.json", 3, epochs=30)
    seconds: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        for turn, (name, others) in product(range(options.repeats), (("alone", 0), ("beside a busy process", 1))):
            for number, way in enumerate((*WAYS, *STUDIES)):
                folder = Path(place) / f"{turn}-{others}-{number}"
                with busy(others):
                    if way in WAYS:
                        found = of_run(folder, options.epochs, *WAYS[way])
                    else:
                        found = of_study(folder, options.epochs, STUDIES[way])
                seconds.setdefault(way, {}).setdefault(name, []).append(found)
    medians = {way: {name: statistics.median(values) for name, values in own.items()} for way, own in seconds.items()}
    table = Table("digits-lt", "alone, s", "ratio", "beside a busy process, s", "ratio")
    ratios: dict[str, dict[str, float]] = {}
    for group in (WAYS, STUDIES):
        unit = medians[next(iter(group))]["alone"]
        for way in group:
            ratios[way] = {name: value / unit for name, value in medians[way].items()}
            cells = [text for name in medians[way] for text in (f"{medians[way][name]:.1f}", f"{ratios[way][name]:.2f}")]
            table.add_row(way, *cells)
    Console().print(table)
    content = {"environment": environment(), "epochs": options.epochs, "seconds": medians, "ratios": ratios}
    options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
