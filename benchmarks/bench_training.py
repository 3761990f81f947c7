"""Cost of an epoch in the engine, as a multiple of a bare PyTorch loop on the same tensors and network.

    python benchmarks/bench_training.py [--json benchmarks/training.json] [--repeats 5]

Both train on 28 x 28 images in batches of 128 with the small CNN and look at the validation images once per epoch; the bare
loop computes their accuracy. In the engine, CALS-ALM is compared with cross-entropy, and `cals-auto` with CALS-ALM.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from calibrant.data import DataSet, Images
from calibrant.models import SmallCNN
from calibrant.recipes import LossChoice, Optimizer, Recipe
from calibrant.runs import RunFolder
from calibrant.train.engine import Keeper, Module
from calibrant.train.fit import make_trainer
from calibrant.train.preparing import prepare
from measuring import arguments, environment, turns

SAMPLES, HELD, BATCH, EPOCHS = 8000, 1000, 128, 3
LIMITS = {"engine, ce": 1.15, "engine, cals-alm, against ce": 1.10, "engine, cals-auto, against cals-alm": 1.10}


def data() -> DataSet:
    torch.manual_seed(0)
    parts = [Images(torch.rand(n, 1, 28, 28), torch.randint(10, (n,))) for n in (SAMPLES, HELD, HELD)]
    return DataSet("noise", [str(k) for k in range(10)], *parts)


def bare(whole: DataSet) -> float:
    """Seconds per epoch of a plain loop."""
    torch.manual_seed(0)
    network, loss = SmallCNN(10), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    start = time.perf_counter()
    for _ in range(EPOCHS):
        network.train()
        for batch in torch.randperm(SAMPLES).split(BATCH):
            optimizer.zero_grad()
            loss(network(whole.train.x[batch]), whole.train.y[batch]).backward()  # type: ignore[union-attr]
            optimizer.step()
        network.eval()
        with torch.no_grad():
            for x, y in zip(whole.validation.x.split(512), whole.validation.y.split(512), strict=True):  # type: ignore[union-attr]
                float((network(x).argmax(1) == y).double().mean())
    return (time.perf_counter() - start) / EPOCHS


def engine(whole: DataSet, loss: str) -> float:
    """Seconds per epoch of calibrant.train, checkpoints, history and metrics included."""
    recipe = Recipe(loss=LossChoice(loss), optimizer=Optimizer("adam", lr=1e-3), epochs=EPOCHS, batch_size=BATCH)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(folder)
        run.write_recipe(recipe)
        prepared = prepare(recipe, given={"data": whole})
        module = Module(recipe, prepared.network, prepared.loss, prepared.data)
        trainer = make_trainer(recipe, [Keeper(run, "last")], Path(folder))
        start = time.perf_counter()
        trainer.fit(module)
        return (time.perf_counter() - start) / EPOCHS


def main() -> None:
    options = arguments(__doc__, "training.json", 5)
    whole = data()
    steps: dict[str, Any] = {
        "bare loop": lambda: bare(whole),
        "engine, ce": lambda: engine(whole, "ce"),
        "engine, cals-alm": lambda: engine(whole, "cals-alm"),
        "engine, cals-auto": lambda: engine(whole, "cals-auto"),
    }
    best = turns(steps, options.repeats)
    ratios = {
        "engine, ce": best["engine, ce"] / best["bare loop"],
        "engine, cals-alm, against ce": best["engine, cals-alm"] / best["engine, ce"],
        "engine, cals-auto, against cals-alm": best["engine, cals-auto"] / best["engine, cals-alm"],
    }
    table = Table("step", "seconds per epoch", "ratio", "at most", title=f"{SAMPLES} images 28 x 28, batches of {BATCH}")
    table.add_row("bare loop", f"{best['bare loop']:.3f}", "1.00", "")
    for name, ratio in ratios.items():
        colour = "[red]" if ratio > LIMITS[name] else ""
        table.add_row(name, f"{best[name.split(', against')[0]]:.3f}", f"{colour}{ratio:.2f}", f"{LIMITS[name]:.2f}")
    Console().print(table)
    result = {"environment": environment(), "seconds_per_epoch": best, "ratios": ratios, "limits": LIMITS}
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {options.json}")


if __name__ == "__main__":
    main()
