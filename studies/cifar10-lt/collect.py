"""Accuracy and calibration of frequent and rare classes, for every run of a study.

python studies/cifar10-lt/collect.py runs/cifar10-lt studies/cifar10-lt/groups.csv

Head, medium and tail are the three most frequent classes, the next four, and the three rarest; a test image belongs to the
group of its true class. The gap is mean confidence minus accuracy: positive if the network is overconfident. Everything is
measured as trained, with a temperature, and with vector scaling (a factor and an offset per class), both fitted to the
validation images, vector scaling also to only 200 of them.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from calibrant import posthoc
from calibrant.functional import accuracy, classwise_ece, ece, nll
from calibrant.runs import Run

GROUPS = {"all": slice(None), "head": slice(0, 3), "medium": slice(3, 7), "tail": slice(7, 10)}
CALIBRATORS = ("none", "temperature", "vector", "vector, 200 images")


def measures(run: Run) -> Iterator[dict[str, str | float]]:
    """Rows of the file."""
    validation, predictions = (run.folder.open(part) for part in ("validation", "test"))
    logits, target = predictions.read_all()
    frequent_first = torch.tensor(predictions.train_counts).argsort(descending=True)
    held, held_target = validation.read_all()
    shuffled = torch.randperm(len(held), generator=torch.Generator().manual_seed(0))
    for name in CALIBRATORS:
        key, _, few = name.partition(", ")
        fitted = shuffled[:200] if few else shuffled
        calibrated = logits if key == "none" else posthoc.create(key).fit(held[fitted], held_target[fitted])(logits).detach()
        for group, which in GROUPS.items():
            own = torch.isin(target, frequent_first[which])
            x, y = calibrated[own], target[own]
            right = float(accuracy(x, y))
            row: dict[str, str | float] = {"method": run.result.loss, "seed": str(run.result.seed), "calibrator": name}
            row |= {"group": group, "accuracy": right, "ece": float(ece(x, y))}
            row |= {"gap": float(x.softmax(1).amax(1).mean()) - right, "nll": float(nll(x, y))}
            row["classwise_ece"] = float(classwise_ece(x, y)) if group == "all" else ""
            yield {key: value if isinstance(value, str) else float(f"{value:.5g}") for key, value in row.items()}


def main() -> None:
    """Read the runs, write the file."""
    folder, file = Path(sys.argv[1]), Path(sys.argv[2])
    rows = [row for run in sorted(folder.glob("*-seed*")) for row in measures(Run.load(run))]
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
