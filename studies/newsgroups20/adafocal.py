"""What does AdaFocal need on 20 Newsgroups? A cheap stand-in for GPool-CNN, so that every question gets three seeds.

python studies/newsgroups20/adafocal.py DATA_FOLDER studies/newsgroups20/adafocal.csv

The articles of the recipe and its split, as bags of the 2,000 most frequent words; one hidden layer of 128, as at the end of
GPool-CNN, Adam 1e-3, batches of 128. Like GPool-CNN, it fits its training articles within a few epochs.
"""

import csv
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.data.texts import Texts
from calibrant.functional import accuracy, ece, nll
from calibrant.losses import AdaFocal, AdaptiveLoss, CrossEntropy
from calibrant.posthoc import TemperatureScaling
from calibrant.recipes import Recipe

SEEDS, WORDS = 3, 2000
#: What differs from 50 epochs, no dropout, one update per epoch, 15 bins, the paper's rule.
VARIANTS: dict[str, dict[str, Any]] = {
    "ce": {"loss": "ce"},
    "ce, dropout 0.3": {"loss": "ce", "dropout": 0.3},
    "adafocal": {},
    "20 epochs": {"epochs": 20},
    "100 epochs": {"epochs": 100},
    "dropout 0.3": {"dropout": 0.3},
    "dropout 0.3, 20 epochs": {"dropout": 0.3, "epochs": 20},
    "4 updates per epoch": {"updates": 4},
    "4 updates per epoch, 20 epochs": {"updates": 4, "epochs": 20},
    "5 bins": {"num_bins": 5},
    "inverse": {"inverse": True},
    "4 times the validation articles": {"validation": 4},
    "dropout 0.3, 4 updates per epoch": {"dropout": 0.3, "updates": 4},
    "dropout 0.3, inverse": {"dropout": 0.3, "inverse": True},
}


def counted(texts: Texts) -> Tensor:
    """Log-counts of the 2,000 most frequent words in each article."""
    counts = torch.zeros(len(texts), WORDS)
    article = torch.arange(len(texts)).repeat_interleave(texts.lengths)
    word = texts.tokens.long() - 1  # 0 is padding
    counts.index_put_((article[word < WORDS], word[word < WORDS]), torch.ones(()), accumulate=True)
    return counts.log1p()


def train(
    data: dict[str, tuple[Tensor, Tensor]],
    seed: int,
    *,
    loss: str = "adafocal",
    epochs: int = 50,
    dropout: float = 0.0,
    updates: int = 1,
    validation: int = 1,
    **options: Any,
) -> dict[str, float]:
    """Train one network and measure it on the test articles."""
    torch.manual_seed(seed)
    (x, y), (held_x, held_y), (test_x, test_y) = data["train"], data["validation"], data["test"]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    more, rest = order.split([(validation - 1) * len(held_x), len(x) - (validation - 1) * len(held_x)])
    held_x, held_y, x, y = torch.cat([held_x, x[more]]), torch.cat([held_y, y[more]]), x[rest], y[rest]
    inputs, classes = x.shape[1], int(y.max()) + 1
    model = nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Dropout(dropout), nn.Linear(128, classes))
    criterion = AdaFocal(**options) if loss == "adafocal" else CrossEntropy()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for _ in range(epochs):
        batches = torch.randperm(len(x)).split(128)
        for some in range(updates):
            model.train()
            for batch in batches[some::updates]:
                optimizer.zero_grad()
                criterion(model(x[batch]), y[batch]).backward()
                optimizer.step()
            if isinstance(criterion, AdaptiveLoss):
                model.eval()
                with torch.no_grad():
                    criterion.observe(model(held_x), held_y)
                criterion.adapt()
    model.eval()
    with torch.no_grad():
        fitted, held, logits = model(x), model(held_x), model(test_x)
    scaling = TemperatureScaling().fit(held, held_y)
    found = {
        "train accuracy": accuracy(fitted, y),
        "accuracy": accuracy(logits, test_y),
        "ece": ece(logits, test_y),
        "nll": nll(logits, test_y),
        "T": scaling.temperature_,
        "ece, T": ece(scaling.transform(logits), test_y),
    }
    if isinstance(criterion, AdaFocal):
        found |= {"smallest gamma": criterion.gammas.min(), "largest gamma": criterion.gammas.max()}
    return {name: float(f"{float(value):.5g}") for name, value in found.items()}


def main() -> None:
    """Run all variants, write the file."""
    root, file = sys.argv[1:]
    torch.set_num_threads(1)
    source = Recipe.load("newsgroups20", **{"data.root": root}).load_data()
    parts = {name: source.part(name) for name in ("train", "validation", "test")}
    data = {name: (counted(part), part.y) for name, part in parts.items()}
    rows = []
    for name, options in VARIANTS.items():
        for seed in range(SEEDS):
            rows.append({"variant": name, "seed": seed, **train(data, seed, **options)})
            sys.stderr.write(f"{rows[-1]}\n")
    with Path(file).open("w", newline="") as opened:
        writer = csv.DictWriter(opened, list(max(rows, key=len)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
