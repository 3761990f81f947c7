"""What starting costs: whole processes, as multiples of ``python -c "import torch"`` in the same run, byte code warm.

python benchmarks/bench_start.py [--json benchmarks/start.json] [--repeats 9]

``calibrant evaluate`` audits 2,000 samples of 10 classes.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from measuring import arguments, environment, medians

LIMITS = {
    "import calibrant.functional": 1.10,
    "calibrant evaluate": 1.6,
    "calibrant --help": 0.3,
    "calibrant list losses": 0.3,
}


def commands(folder: Path) -> dict[str, list[str]]:
    """Every process that is timed."""
    random = np.random.default_rng(0)
    logits = 3 * random.normal(size=(2000, 10))
    file = folder / "predictions.npz"
    np.savez(file, logits=logits, target=(logits + 2 * random.gumbel(size=logits.shape)).argmax(1))
    python, calibrant = [sys.executable, "-c"], [sys.executable, "-m", "calibrant"]
    return {
        "import torch": [*python, "import torch"],
        "import calibrant.functional": [*python, "import calibrant.functional"],
        "calibrant evaluate": [*calibrant, "evaluate", str(file)],
        "calibrant --help": [*calibrant, "--help"],
        "calibrant list losses": [*calibrant, "list", "losses"],
    }


def main() -> None:
    options = arguments(__doc__, "start.json", 9)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        steps = {
            name: (lambda command=command: subprocess.run(command, check=True, capture_output=True))  # noqa: S603
            for name, command in commands(Path(folder)).items()
        }
        seconds = medians(steps, options.repeats, "starting")
    ratios = {name: seconds[name] / seconds["import torch"] for name in LIMITS}
    table = Table("process", "seconds", "x import torch", "limit")
    table.add_row("import torch", f"{seconds['import torch']:.2f}", "1", "")
    for name, ratio in ratios.items():
        table.add_row(name, f"{seconds[name]:.2f}", f"{ratio:.2f}", f"{LIMITS[name]:.2f}")
    Console().print(table)
    content = {"environment": environment(), "seconds": seconds, "ratios": ratios, "limits": LIMITS}
    options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
