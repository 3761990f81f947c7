"""Cost of the metrics, as a multiple of ``torch.softmax(logits, 1).max(1)`` on the same logits in the same run.

    python benchmarks/bench_metrics.py [--json benchmarks/metrics.json] [--repeats 7]

Memory is the peak of what is allocated beyond the logits, in MB. Beside them torchmetrics' calibration error, and at the end
what it makes of 2^25 equal confidences; the bootstrap of 1,000 resamples is timed by itself.
"""

import json
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error
from torchmetrics.functional.classification.calibration_error import _binning_bucketize

from calibrant import functional as cal, metrics, stats
from measuring import Step, arguments, environment, medians, peak_memory

SHAPES = [(100_000, 1000), (50_000, 100)]
#: The most that a metric may cost, by name and shape.
LIMITS = {
    ("ece", SHAPES[0]): 0.7,
    ("ece", SHAPES[1]): 1.5,
    ("classwise_ece", SHAPES[0]): 6.0,
    ("classwise_ece", SHAPES[1]): 6.0,
    ("Panel", SHAPES[0]): 10.0,
    ("Panel", SHAPES[1]): 10.0,
}
MEMORY_LIMIT = 64.0
BOOTSTRAP_LIMIT = 2.0


def panel(logits: Tensor, target: Tensor) -> dict[str, float]:
    measured = metrics.Panel(logits.shape[1])
    measured.update(logits, target)
    result: metrics.PanelResult = measured.compute()
    return result.values()


def steps_for(logits: Tensor, target: Tensor) -> dict[str, Step]:
    functions = [cal.ece, cal.adaptive_ece, cal.debiased_ece, cal.sweep_ece, cal.smooth_ece, cal.classwise_ece]
    functions += [cal.nll, cal.brier_score, cal.accuracy]
    return {
        "softmax().max()": lambda: torch.softmax(logits, 1).max(1),
        **{f.__name__: (lambda f=f: f(logits, target)) for f in functions},
        "Panel": lambda: panel(logits, target),
        "torchmetrics, ECE": lambda: multiclass_calibration_error(logits, target, logits.shape[1], n_bins=15),
    }


def measure(shape: tuple[int, int], repeats: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    logits, target = 3 * torch.randn(shape), torch.randint(shape[1], shape[:1])
    steps = steps_for(logits, target)
    seconds = medians(steps, repeats, f"{shape}")
    base = seconds["softmax().max()"]
    return [
        {
            "shape": list(shape),
            "metric": name,
            "milliseconds": 1e3 * seconds[name],
            "ratio": seconds[name] / base,
            "limit": LIMITS.get((name, shape)),
            "megabytes": peak_memory(run) / 1e6,
        }
        for name, run in steps.items()
    ]


def show(rows: list[dict[str, Any]]) -> None:
    for shape in SHAPES:
        table = Table("metric", "ms", "x softmax().max()", "at most", "MB beyond the logits", title=f"logits {shape}")
        for row in (row for row in rows if tuple(row["shape"]) == shape):
            limit = row["limit"]
            ours = row["metric"] not in ("softmax().max()", "torchmetrics, ECE")
            slow = "[red]" if limit is not None and row["ratio"] > limit else ""
            big = "[red]" if ours and row["megabytes"] > MEMORY_LIMIT else ""
            numbers = (f"{row['milliseconds']:.1f}", f"{slow}{row['ratio']:.2f}")
            table.add_row(row["metric"], *numbers, "" if limit is None else f"{limit:.1f}", f"{big}{row['megabytes']:.1f}")
        Console().print(table)


def time_bootstrap() -> dict[str, float]:
    """Seconds for 1,000 resamples of N = 100,000, K = 100."""
    torch.manual_seed(0)
    logits = 2 * torch.randn(100_000, 100)
    target = torch.distributions.Categorical(logits=0.8 * logits).sample()
    seconds = {}
    for name in ("ece", "mce", "adaptive_ece", "debiased_ece", "sweep_ece", "accuracy", "nll"):
        start = time.perf_counter()
        stats.bootstrap(name, logits, target, resamples=1000)
        seconds[name] = time.perf_counter() - start
    return seconds


def equal_confidences() -> dict[str, float]:
    """ECE of 2^25 predictions of confidence 0.95, of which a quarter is wrong: 0.2."""
    metric = metrics.ECE()
    logits = cal.from_probs(torch.tensor([[0.05, 0.95]])).expand(2**22, 2)
    target = torch.ones(2**22, dtype=torch.int64)
    target[: 2**20] = 0
    for _ in range(8):
        metric.update(logits, target)
    confidence, correct = torch.full((2**25,), 0.95), target.repeat(8).float()
    accuracy, mean, share = _binning_bucketize(confidence, correct, torch.linspace(0, 1, 16))
    return {
        "true": 0.2,
        "calibrant": float(metric.compute()),
        "torchmetrics": float(((accuracy - mean).abs() * share).sum()),
    }


def main() -> None:
    options = arguments(__doc__, "metrics.json", 7)
    rows = [row for shape in SHAPES for row in measure(shape, options.repeats)]
    show(rows)
    bootstrap = time_bootstrap()
    table = Table(
        "metric", "seconds", title=f"bootstrap, 1,000 resamples of (100,000, 100); binned at most {BOOTSTRAP_LIMIT}"
    )
    for name, seconds in bootstrap.items():
        table.add_row(name, f"{seconds:.2f}")
    Console().print(table)
    equal = equal_confidences()
    print(
        f"ECE of 2^25 equal confidences, 0.2 in truth: calibrant {equal['calibrant']:.4f}, "
        f"torchmetrics {equal['torchmetrics']:.4f}"
    )
    result = {"environment": environment(), "rows": rows, "bootstrap_seconds": bootstrap, "equal_confidences": equal}
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {options.json}")


if __name__ == "__main__":
    main()
