"""Accuracy and calibration error of frequent and rare classes, for every run of a study.

python studies/cifar10-lt/collect.py runs/cifar10-lt studies/cifar10-lt/groups.csv

Head, medium and tail are the three most frequent classes, the next four, and the three rarest. A test image belongs to the
group of its true class. The gap is mean confidence minus accuracy: positive if the network is overconfident.
"""

import csv
import sys
from pathlib import Path

import torch

from calibrant.functional import accuracy, ece
from calibrant.runs import Run

GROUPS = {"head": slice(0, 3), "medium": slice(3, 7), "tail": slice(7, 10)}


def measures(run: Run) -> dict[str, str | float]:
    """A row of the file."""
    result = run.result
    predictions = run.folder.open("test")
    logits, target = predictions.read_all()
    frequent_first = torch.tensor(predictions.train_counts).argsort(descending=True)
    row: dict[str, str | float] = {"method": result.loss, "seed": str(result.seed)}
    for name, which in GROUPS.items():
        own = torch.isin(target, frequent_first[which])
        for suffix, temperature in (("", 1.0), (", T", result.temperature)):
            scaled = logits[own] / temperature
            row[f"ece, {name}{suffix}"] = float(ece(scaled, target[own]))
            row[f"gap, {name}{suffix}"] = float(scaled.softmax(1).amax(1).mean()) - float(accuracy(scaled, target[own]))
        row[f"accuracy, {name}"] = float(accuracy(logits[own], target[own]))
    return {key: value if isinstance(value, str) else float(f"{value:.5g}") for key, value in row.items()}


def main() -> None:
    """Read the runs, write the file."""
    folder, file = Path(sys.argv[1]), Path(sys.argv[2])
    rows = [measures(Run.load(run)) for run in sorted(folder.glob("*-seed*"))]
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
