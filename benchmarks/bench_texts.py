"""Cost of training on texts: batches of similar length against padding to 1,000 words, and what the running maximum takes.

    python benchmarks/bench_texts.py [--json benchmarks/texts.json] [--repeats 5]

Lengths are drawn from a log-normal with the median (148 words) and mean (216) of 20 Newsgroups, cut at 1,000; the network is
GPoolCNN with frozen vectors, batches of 128. A turn trains on every sixteenth batch of an epoch in order of
length, a fair sample.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from calibrant.data import DataSet, Feed, Texts
from calibrant.models import GPoolCNN, gpool_cnn
from calibrant.train.batches import Batches
from measuring import arguments, environment, turns

TEXTS, BATCH, WORDS, EVERY = 14_229, 128, 20_000, 16
LIMITS = {"padded to 1,000 / of similar length": 3.0, "share of the running maximum": 0.35}


def data() -> DataSet:
    random = torch.Generator().manual_seed(0)
    spread = math.sqrt(2 * math.log(216 / 148))
    lengths = (148 * (spread * torch.randn(TEXTS, generator=random)).exp()).round().clamp(1, 1000).long()
    starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    tokens = torch.randint(1, WORDS, (int(starts[-1]),), generator=random, dtype=torch.int32)
    part = Texts(tokens, starts, torch.randint(20, (TEXTS,), generator=random))
    return DataSet("texts", [str(k) for k in range(20)], part, part, part)


def some(batches: Batches, *, trim: bool) -> Iterator[tuple[Tensor, Tensor]]:
    part: Any = batches.part
    indices = [own for own, _ in batches.indices()]
    order = indices if not trim else sorted(indices, key=lambda own: int(part.lengths[own].max()))
    for own in order[EVERY // 2 :: EVERY]:
        yield part.padded(own, padding=GPoolCNN.padding_words if trim else None), part.y[own]


def epoch(network: nn.Module, batches: Batches, *, trim: bool) -> float:
    """Seconds of an epoch, from some of its batches."""
    count, start = 0, time.perf_counter()
    for x, y in some(batches, trim=trim):
        network.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        count += 1
    return (time.perf_counter() - start) * len(batches) / count


def main() -> None:
    options = arguments(__doc__, "texts.json", 3)
    torch.manual_seed(0)
    whole = data()
    network = GPoolCNN(20, vectors=torch.randn(WORDS, 100))
    batches = Batches(whole.train, BATCH, Feed(train=True))
    ours = gpool_cnn.running_maximum

    def with_maximum(maximum: Callable[[Tensor], Tensor], *, trim: bool = True) -> float:
        gpool_cnn.running_maximum = maximum
        try:
            return epoch(network, batches, trim=trim)
        finally:
            gpool_cnn.running_maximum = ours

    steps = {
        "of similar length": lambda: with_maximum(ours),
        "of similar length, max_pool1d": lambda: with_maximum(lambda x: nn.functional.max_pool1d(x, 5, 1)),
        "of similar length, no maximum": lambda: with_maximum(lambda x: x[..., 4:]),
        "padded to 1,000": lambda: with_maximum(ours, trim=False),
    }
    middle = turns(steps, options.repeats)
    ratios = {
        "padded to 1,000 / of similar length": middle["padded to 1,000"] / middle["of similar length"],
        "share of the running maximum": 1 - middle["of similar length, no maximum"] / middle["of similar length"],
    }
    table = Table("batches", "seconds per epoch", title=f"{TEXTS:,} texts, batches of {BATCH}")
    for name, seconds in middle.items():
        table.add_row(name, f"{seconds:.1f}")
    console = Console()
    console.print(table)
    for name, ratio in ratios.items():
        console.print(f"{name}: {ratio:.2f} (limit {LIMITS[name]})")
    content = {"environment": environment(), "seconds_per_epoch": middle, "ratios": ratios, "limits": LIMITS}
    options.json.write_text(json.dumps(content, indent=1) + "\n")
    print(f"written to {options.json}")


if __name__ == "__main__":
    main()
