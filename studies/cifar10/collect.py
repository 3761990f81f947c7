"""Gather what runs measured beyond runs.csv: the six errors of AdaFocal's tables, OOD detection and corrupted images.

python studies/cifar10/collect.py runs/cifar10 studies/cifar10/measures.csv
"""

import csv
import json
import sys
from pathlib import Path

ERRORS = ("ece", "adaptive_ece", "classwise_ece", "debiased_ece", "debiased_ece_30", "sweep_ece_width", "sweep_ece")


def measures(run: Path) -> dict[str, str | float]:
    """A row of the file."""
    result = json.loads((run / "metrics.json").read_text())
    row: dict[str, str | float] = {"method": result["loss"], "seed": str(result["seed"]), "T": result["temperature"]}
    for key in ERRORS:
        row[key] = result["test"][key]
        row[f"{key}, T"] = result["test_after_temperature"][key]
    for name, found in json.loads((run / "ood.json").read_text()).items():
        row[f"AUROC, {name}"] = found["before"]["entropy"]["auroc"]
        row[f"AUROC, {name}, T"] = found["after"]["entropy"]["auroc"]
    for found in json.loads((run / "shift.json").read_text())["results"]:
        if found["severity"]:
            name = f"{found['corruption']}:{found['severity']}"
            row[f"accuracy, {name}"] = found["before"]["accuracy"]
            row[f"ece, {name}"] = found["before"]["ece"]
            row[f"ece, {name}, T"] = found["after"]["ece"]
    return {key: value if isinstance(value, str) else float(f"{value:.5g}") for key, value in row.items()}


def main() -> None:
    """Read the runs, write the file."""
    study, file = Path(sys.argv[1]), Path(sys.argv[2])
    rows = [measures(run.parent) for run in sorted(study.glob("*/shift.json"))]
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
