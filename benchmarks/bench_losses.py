"""Cost of every loss, as a multiple of ``torch.nn.functional.cross_entropy`` on the same logits in the same run.

    python benchmarks/bench_losses.py [--json benchmarks/losses.json] [--repeats 25] [--only cals-alm mbls]

Time is forward + backward, the median over repeats in which all losses take turns, so that what else the machine does falls
on all of them. Memory is the peak of what is allocated during forward + backward, beyond the logits, as a multiple of them.

Then, for adaptive losses, what observing the logits once and adapting takes, as a multiple of CALS-ALM's.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from calibrant.losses import METHODS, create
from measuring import Step, environment, medians, peak_memory

SHAPES = [(1024, 1000), (4, 21, 256, 256)]
OBSERVING = "observe + adapt"
#: The most that a loss may cost, by (key, mode).
LIMITS = {
    ("mbls", "eager"): 3.0,
    ("mbls", "compiled"): 2.0,
    ("cals-alm", "eager"): 3.0,
    ("cals-alm", "compiled"): 2.0,
    ("flsd", "eager"): 3.0,
    ("adafocal", "eager"): 3.0,
    ("mmce", "eager"): 8.0,
    **{(key, "eager"): 3.0 for key in ("dfl", "bsce", "acls", "mdca", "dca", "logitnorm", "nacl")},
    ("crac", "eager"): 5.0,  # windows, and a penalty for each class and region
    ("soft-avuc", "eager"): 5.0,  # entropies beside the cross-entropy
    ("avuc", "eager"): 6.0,  # entropies and confidences
    ("esd", "eager"): 8.0,  # a sort
    ("sbece", "eager"): 8.0,  # 15 bins for each sample
}
MEMORY_LIMIT = 4.0
#: Those with a limit for every shape; the others' holds for pixels.
SEEDS = ("mbls", "cals-alm", "flsd", "adafocal")


def step(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor) -> Step:
    def run() -> None:
        torch.autograd.grad(loss(logits, target), logits)  # leaves nothing behind that a later step would free

    return run


def measure(shape: tuple[int, ...], keys: list[str], repeats: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    logits = (5 * torch.randn(shape)).requires_grad_()
    target = torch.randint(shape[1], (shape[0], *shape[2:]))
    bytes_of_logits = logits.numel() * logits.element_size()
    losses = {key: create(key, num_classes=shape[1]) for key in keys if len(shape) > 2 or not METHODS[key].dense}
    steps = {
        "cross_entropy": step(functional.cross_entropy, logits, target),
        **{f"{key} eager": step(loss, logits, target) for key, loss in losses.items()},
        **{
            f"{key} compiled": step(torch.compile(loss, dynamic=False), logits, target)
            for key, loss in losses.items()
            if (key, "compiled") in LIMITS
        },
    }
    # A step of seconds needs no 25 repeats, and would make the others wait.
    slow = {name for name in steps if name.startswith("cpc") and math.prod(shape[:1] + shape[2:]) * shape[1] ** 2 > 1e8}
    seconds = medians({name: run for name, run in steps.items() if name not in slow}, repeats, f"{shape}")
    seconds |= medians({name: steps[name] for name in slow}, 1, f"{shape}, slow") if slow else {}
    base = seconds["cross_entropy"]
    base_memory = peak_memory(steps["cross_entropy"])
    rows = [{"loss": "cross_entropy", "mode": "eager", "milliseconds": 1e3 * base, "ratio": 1.0, "limit": None}]
    rows[0]["memory"] = base_memory / bytes_of_logits
    for name, run in list(steps.items())[1:]:
        key, mode = name.split()
        row = {"loss": key, "mode": mode, "milliseconds": 1e3 * seconds[name], "ratio": seconds[name] / base}
        row["limit"] = LIMITS.get((key, mode)) if key in SEEDS or len(shape) > 2 else None
        row["memory"] = peak_memory(run) / bytes_of_logits if mode == "eager" else None
        rows.append(row)
    return [{"shape": list(shape), **row} for row in rows]


def measure_observing(shape: tuple[int, ...], keys: list[str], repeats: int) -> list[dict[str, Any]]:
    """What observing a batch and adapting costs."""
    torch.manual_seed(0)
    logits, target = 5 * torch.randn(shape), torch.randint(shape[1], (shape[0], *shape[2:]))

    def step_of(key: str) -> Step:
        loss = create(key, num_classes=shape[1])

        def run() -> None:
            loss.observe(logits, target)  # type: ignore[operator]
            loss.adapt()  # type: ignore[operator]

        return run

    adaptive = {*(key for key in keys if METHODS[key].adaptive and (len(shape) > 2 or not METHODS[key].dense)), "cals-alm"}
    seconds = medians({key: step_of(key) for key in METHODS if key in adaptive}, repeats, f"{shape}, observing")
    base = seconds["cals-alm"]
    return [
        {"shape": list(shape), "loss": key, "mode": OBSERVING, "milliseconds": 1e3 * value, "ratio": value / base}
        | {"limit": LIMITS.get((key, OBSERVING)), "memory": None}
        for key, value in seconds.items()
    ]


def show(rows: list[dict[str, Any]]) -> None:
    for shape in SHAPES:
        columns = ("loss", "mode", "ms", "x cross_entropy, or x cals-alm", "at most", "memory, x logits")
        table = Table(*columns, title=f"logits {shape}")
        for row in rows:
            if tuple(row["shape"]) != shape:
                continue
            limit, memory = row["limit"], row["memory"]
            too_slow = limit is not None and row["ratio"] > limit
            most = METHODS[row["loss"]].memory if row["loss"] in METHODS else MEMORY_LIMIT
            too_big = memory is not None and memory > most
            table.add_row(
                row["loss"],
                row["mode"],
                f"{row['milliseconds']:.1f}",
                f"{'[red]' if too_slow else ''}{row['ratio']:.2f}",
                "" if limit is None else f"{limit:.1f}",
                "" if memory is None else f"{'[red]' if too_big else ''}{memory:.2f}",
            )
        Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", type=Path, help="where the results go; by default losses.json here, unless --only is given"
    )
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--only", nargs="*", choices=list(METHODS), metavar="LOSS", help="these only")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    keys = arguments.only or list(METHODS)
    rows = [row for shape in SHAPES for row in measure(shape, keys, arguments.repeats)]
    rows += [row for shape in SHAPES for row in measure_observing(shape, keys, arguments.repeats)]
    show(rows)
    path = arguments.json or (None if arguments.only else Path(__file__).parent / "losses.json")
    if path is None:
        return
    path.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
