"""The pages of our studies say what their files say."""

import csv
import re
import statistics
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "studies"
#: Columns of their tables: the measure, and what it is multiplied by.
COLUMNS = {
    "accuracy, %": ("accuracy", 100),
    "mIoU, %": ("mean_iou", 100),
    "ECE, %": ("ece", 100),
    "ECE per image, %": ("image_ece", 100),
    "AdaECE, %": ("adaptive_ece", 100),
    "classwise ECE, %": ("classwise_ece", 100),
    "NLL": ("nll", 1),
    "T": ("temperature", 1),
    "ECE after T, %": ("ece_after_temperature", 100),
    "NLL after T": ("nll_after_temperature", 1),
}
PAGES = [path.parent.name for path in sorted(STUDIES.glob("*/runs.csv"))]


def rows(text: str) -> list[dict[str, str]]:
    """Rows of the first table whose first column is the method."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| method |"))
    head, *rest = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:] if line)
    body = rest[1 : next((i for i, row in enumerate(rest) if len(row) != len(head)), len(rest))]
    return [dict(zip(head, row, strict=True)) for row in body]


@pytest.mark.parametrize("name", PAGES)
def test_numbers_of_the_page_are_those_of_the_runs(name: str) -> None:
    with (STUDIES / name / "runs.csv").open() as file:
        runs = list(csv.DictReader(file))
    found = rows((STUDIES / name / "README.md").read_text())
    checked = 0
    for row in found:
        method = row["method"].replace("`", "").removesuffix(" (ours)")
        own = [run for run in runs if run["method"] == method]
        assert own, method
        for column, (key, unit) in COLUMNS.items():
            if shown := re.match(r"\**(-?[\d.]+)", row.get(column, "")):
                mean = unit * statistics.mean(float(run[key]) for run in own)
                step = 10.0 ** -len(shown[1].partition(".")[2])
                assert abs(float(shown[1]) - mean) <= step / 2 + 1e-4, (method, column, shown[1], mean)
                checked += 1
    assert checked >= 3 * len(found)
    assert {row["method"].replace("`", "").removesuffix(" (ours)") for row in found} == {run["method"] for run in runs}


def test_the_pages_are_some() -> None:
    assert len(PAGES) >= 3


def test_errors_of_cifar10_are_those_measured() -> None:
    with (STUDIES / "cifar10/measures.csv").open() as file:
        measured = {
            run["method"]: {key: value for key, value in run.items() if key != "method"} for run in csv.DictReader(file)
        }
    text = (STUDIES / "cifar10/README.md").read_text()
    checked = 0
    for line in text.partition("## All errors")[2].splitlines():
        method, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        own = measured.get(method.removesuffix(" (ours)"))
        for pair in cells if own else []:
            for shown in pair.split(", "):
                digits = len(shown.partition(".")[2])
                assert any(f"{100 * float(value):.{digits}f}" == shown for value in own.values()), (method, shown)
                checked += 1
    assert checked == 2 * 13 * (7 + 6)


@pytest.mark.parametrize(("title", "measure"), [("ECE in %, T", "ece"), ("NLL:", "nll")])
def test_self_tuning_losses_are_compared_on_every_data_set(title: str, measure: str) -> None:
    unit, digits = (100, 1) if measure == "ece" else (1, 3)
    text = (STUDIES / "auto/README.md").read_text().partition(f"\n{title}")[2]
    lines = text.partition("\n|")[2].partition("\n\n")[0].splitlines()
    head, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert {row[0] for row in body} == set(PAGES)
    for name, *cells in body:
        with (STUDIES / name / "runs.csv").open() as file:
            runs = list(csv.DictReader(file))
        values: dict[tuple[str, str], list[float]] = {}
        for run in runs:
            for key in (measure, "temperature", f"{measure}_after_temperature"):
                values.setdefault((run["method"], key), []).append(float(run[key]))
        means = {key: statistics.mean(own) for key, own in values.items()}
        best = min((method for method, key in means if key == measure), key=lambda method: means[method, measure])
        shown = dict(zip(head[1:], cells, strict=True))
        assert shown.pop("lowest as trained") == f"{unit * means[best, measure]:.{digits}f} ({best})", name
        if measure == "ece":
            assert shown.pop("seeds") == str(len({run["seed"] for run in runs}))
        else:
            assert shown.pop("ce + T") == f"{means['ce', 'nll_after_temperature']:.3f}"
        for method, cell in shown.items():
            temperature = f" ({means[method, 'temperature']:.2f})" if measure == "ece" else ""
            assert cell == f"{unit * means[method, measure]:.{digits}f}{temperature}", (name, method)


def test_groups_of_long_tailed_cifar10_are_those_measured() -> None:
    with (STUDIES / "cifar10-lt/groups.csv").open() as file:
        measured = list(csv.DictReader(file))

    def cell(method: str, calibrator: str, group: str, key: str, unit: int = 100, digits: int = 1) -> str:
        wanted = {"method": method, "calibrator": calibrator, "group": group}
        values = [unit * float(row[key]) for row in measured if wanted.items() <= row.items()]
        return f"{statistics.mean(values):.{digits}f}"

    groups = ("head", "medium", "tail")
    _, first, second = (STUDIES / "cifar10-lt/README.md").read_text().split("\n| loss |")
    shown = [{line.split(" | ")[0].strip("| "): line for line in part.splitlines()} for part in (first, second)]
    methods = {row["method"] for row in measured}
    assert len(methods) >= 8
    for method in methods:
        as_trained, scaled = (part[f"{method} (ours)" if method.endswith("-auto") else method] for part in shown)
        accuracies = ", ".join(cell(method, "none", group, "accuracy") for group in groups)
        pairs = [", ".join(cell(method, how, group, "ece") for how in ("none", "temperature")) for group in groups]
        assert as_trained.endswith(f"| {accuracies} | {' | '.join(pairs)} |"), method
        accuracies = ", ".join(cell(method, "vector", group, "accuracy") for group in groups)
        errors = ", ".join(cell(method, "vector", group, "ece") for group in groups)
        whole = [cell(method, "vector", "all", *what) for what in (("accuracy",), ("ece",), ("classwise_ece", 100, 2))]
        nll = cell(method, "vector", "all", "nll", 1, 3)
        assert re.sub(r" ± [\d.]+", "", scaled).endswith(
            f"| {whole[0]} | {accuracies} | {whole[1]} | {errors} | {whole[2]} | {nll} |"
        ), method


def test_what_adafocal_needs_is_what_was_measured() -> None:
    with (STUDIES / "newsgroups20/adafocal.csv").open() as file:
        runs = list(csv.DictReader(file))
    variants = list(dict.fromkeys(run["variant"] for run in runs))
    text = (STUDIES / "newsgroups20/README.md").read_text().partition("| variant |")[2]
    shown = [line.strip("| ").split(" | ")[1:] for line in text.splitlines()[2:] if line.startswith("|")]
    columns = (("accuracy", 100), ("ece", 100), ("nll", 1), ("T", 1), ("ece, T", 100))
    for variant, cells in zip(variants, shown, strict=True):
        for (key, unit), cell in zip(columns, cells, strict=True):
            values = [unit * float(run[key]) for run in runs if run["variant"] == variant]
            digits = len(cell.partition(" ")[0].partition(".")[2])
            assert cell == f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}", (variant, key)
