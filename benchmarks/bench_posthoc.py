"""Cost of fitting calibrators, in passes of ``torch.logsumexp`` over the same validation logits.

python benchmarks/bench_posthoc.py [--json benchmarks/posthoc.json] [--repeats 5]

Those with a weight for each class, or each pair of classes, are fitted once: they take up to some minutes.
"""

import json
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from calibrant import posthoc
from measuring import arguments, environment, medians, peak_memory

SHAPE = (50_000, 1000)
LIMIT = 25.0
SLOW = {"svs": posthoc.StructuredVectorScaling, "sms": posthoc.StructuredMatrixScaling}


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    options = arguments(__doc__, "posthoc.json", 5)
    torch.manual_seed(0)
    logits = 3 * torch.randn(SHAPE)
    target = torch.distributions.Categorical(logits=logits / 1.7).sample()
    steps: dict[str, Callable[[], object]] = {
        "logsumexp": lambda: torch.logsumexp(logits, 1),
        "temperature": lambda: posthoc.TemperatureScaling().fit(logits, target),
    }
    seconds = medians(steps, options.repeats, f"{SHAPE}")
    memory = {"temperature": peak_memory(steps["temperature"]) / 1e6}
    few = slice(5000)  # beyond a chunk, more samples take no more memory, and the profiler keeps every allocation
    for name, calibrator in SLOW.items():
        seconds[name] = seconds_of(lambda calibrator=calibrator: calibrator().fit(logits, target))
        memory[name] = peak_memory(lambda calibrator=calibrator: calibrator().fit(logits[few], target[few])) / 1e6
    table = Table("step", "ms", "x logsumexp", "at most", "x temperature", "MB beyond the logits", title=f"logits {SHAPE}")
    for name, value in seconds.items():
        ratio = value / seconds["logsumexp"]
        colour = "[red]" if name == "temperature" and ratio > LIMIT else ""
        beyond = f"{value / seconds['temperature']:.1f}" if name != "logsumexp" else ""
        most, own = f"{LIMIT:.0f}" if name == "temperature" else "", memory.get(name)
        table.add_row(name, f"{1e3 * value:.0f}", f"{colour}{ratio:.1f}", most, beyond, "" if own is None else f"{own:.0f}")
    Console().print(table)
    temperature = float(posthoc.TemperatureScaling().fit(logits, target).temperature_)
    result = {
        "environment": environment(),
        "shape": SHAPE,
        "milliseconds": {name: 1e3 * value for name, value in seconds.items()},
        "ratio": seconds["temperature"] / seconds["logsumexp"],
        "limit": LIMIT,
        "times_temperature": {name: seconds[name] / seconds["temperature"] for name in SLOW},
        "megabytes": memory,
        "temperature": temperature,
    }
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"temperature {temperature:.4f} (1.7 in truth); written to {options.json}")


if __name__ == "__main__":
    main()
