"""From runs to tables: mean and spread over seeds, before and after temperature scaling, and what is significant."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant import stats
from calibrant.audit import COLUMNS
from calibrant.audit import column as measure_column
from calibrant.extras import require
from calibrant.metrics import debiased_ece, sweep_ece
from calibrant.outcomes import Outcomes, top_label
from calibrant.posthoc import TemperatureScaling
from calibrant.predictions import open_predictions
from calibrant.stats.resampling import image_numbers
from calibrant.study.grid import Cell
from calibrant.tensors import check

if TYPE_CHECKING:
    from rich.table import Table

#: What is shown if nothing else is asked for, of what there is; the second and the fourth of segmented images only.
USUAL = ("accuracy", "mean_iou", "ece", "image_ece", "adaptive_ece", "nll")
#: Those that need the predictions again.
COSTLY = {"debiased_ece_30", "sweep_ece_width"}
#: Those that temperature scaling leaves as they are.
FIXED = ("accuracy", "error", "mean_iou", "shift_accuracy")


@dataclass(frozen=True)
class Summary:
    """One row: a method.

    Attributes:
        method: Its name.
        seeds: Its seeds.
        before: Values over seeds by measure.
        after: The same after temperature scaling.
        temperatures: One per seed.
        p_values: Of ECE and accuracy, against the first method, by paired bootstrap of all seeds' test samples
            (of segmented images, whole images with the pixels that were kept).
        differences: The first method's ECE minus this one's, with interval.
    """

    method: str
    seeds: Sequence[int]
    before: Mapping[str, Sequence[float]]
    after: Mapping[str, Sequence[float]]
    temperatures: Sequence[float]
    p_values: Mapping[str, float] = field(default_factory=dict)
    differences: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def mean(self, name: str, *, after: bool = False) -> float:
        """Mean over seeds."""
        return statistics.mean((self.after if after else self.before)[name])

    def spread(self, name: str, *, after: bool = False) -> float:
        """Standard deviation over seeds, NaN of one."""
        values = (self.after if after else self.before)[name]
        return statistics.stdev(values) if len(values) > 1 else float("nan")

    def interval(self, name: str, *, after: bool = False) -> tuple[float, float]:
        """95 % interval of the mean over seeds, by Student's t; NaN of one seed."""
        values = (self.after if after else self.before)[name]
        if len(values) < 2:
            return float("nan"), float("nan")
        half = _student(len(values) - 1) * self.spread(name, after=after) / len(values) ** 0.5
        return statistics.mean(values) - half, statistics.mean(values) + half

    def to_dict(self) -> dict[str, Any]:
        """In plain Python types."""
        return asdict(self)


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t distribution."""
    known = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
    return known[freedom - 1] if freedom <= len(known) else 1.96 + 2.4 / freedom


def summarise(
    cells: Sequence[Cell],
    done: Mapping[Any, Mapping[str, Any]],
    *,
    everything: bool = False,
    test: bool = True,
    more: Mapping[Any, Mapping[str, Mapping[str, float]]] | None = None,
) -> list[Summary]:
    """Rows from the finished cells of a study.

    Args:
        cells: All cells.
        done: Metrics of the finished ones by folder.
        everything: Also measures that need the predictions again, :data:`COSTLY`.
        test: Compare with the first method.
        more: Other measures by folder, before (``"test"``) and after temperature scaling (``"test_after_temperature"``).
    """
    methods: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.folder in done:
            methods.setdefault(cell.method, []).append(cell)
    rows, first = [], None
    for method, own in methods.items():
        own = sorted(own, key=lambda cell: cell.seed)  # noqa: PLW2901
        values: dict[str, dict[str, list[float]]] = {"test": {}, "test_after_temperature": {}}
        for cell in own:
            for part, found in values.items():
                own_more = {} if more is None else more[cell.folder][part]
                measured = _measures(cell, done[cell.folder], part, everything=everything)
                for name, value in {**measured, **own_more}.items():
                    found.setdefault(name, []).append(value)
        compared: tuple[dict[str, float], dict[str, dict[str, float]]] = ({}, {})
        if first is not None and test:
            compared = _compare(first, own)
        first = own if first is None else first
        rows.append(
            Summary(
                method,
                [cell.seed for cell in own],
                values["test"],
                values["test_after_temperature"],
                [done[cell.folder]["temperature"] for cell in own],
                *compared,
            )
        )
    return rows


def _measures(cell: Cell, metrics: Mapping[str, Any], part: str, *, everything: bool) -> dict[str, float]:
    found = {name: float(metrics[part][name]) for name in COLUMNS if name in metrics[part]}
    found["error"] = 1 - found["accuracy"]
    if "image_ece" not in found:
        found.pop("mean_iou", None)  # which says something of segmented images only
    if everything and "image_ece" not in found:  # of segmented images, the file has but some of the pixels
        logits, target = open_predictions(cell.folder).load()
        if part == "test_after_temperature":
            scaling = TemperatureScaling()
            scaling.num_classes, scaling.temperature_ = logits.shape[1], torch.tensor(float(metrics["temperature"]))
            logits = scaling.transform(logits)
        found["debiased_ece_30"] = float(debiased_ece(logits, target, num_bins=30))
        found["sweep_ece_width"] = float(sweep_ece(logits, target, binning="width"))
    return found


def _compare(first: Sequence[Cell], other: Sequence[Cell]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Paired bootstrap over the test samples (or segmented images) of the seeds that both have."""
    seeds = {cell.seed: cell for cell in first}
    pairs = [(seeds[cell.seed], cell) for cell in other if cell.seed in seeds]
    if not pairs:
        return {}, {}
    parts: list[list[Outcomes]] = [[], []]
    images: list[Tensor] = []
    for pair in pairs:
        loaded = [open_predictions(cell.folder).load() for cell in pair]
        if not torch.equal(loaded[0][1], loaded[1][1]):
            return {}, {}
        batches = [check(logits, target) for logits, target in loaded]
        for side, batch in zip(parts, batches, strict=True):
            side.append(top_label(batch))
        numbers = image_numbers(batches[0])
        if numbers is not None:
            images.append(numbers + (1 + images[-1].max() if images else 0))
    a, b = (Outcomes(torch.cat([o.confidence for o in side]), torch.cat([o.correct for o in side])) for side in parts)
    found = stats.compare_outcomes(a, b, images=torch.cat(images) if images else None)
    differences = {name: {"difference": c.difference, "low": c.low, "high": c.high} for name, c in found.items()}
    return {name: c.p_value for name, c in found.items()}, differences


# Tables


@dataclass(frozen=True)
class _Column:
    title: str
    name: str
    after: bool = False

    def text(self, row: Summary, sign: str) -> str:
        if self.name == "temperature":
            return f"{statistics.mean(row.temperatures):.2f}"
        if self.name == "p":
            p = row.p_values.get("ece")
            return "" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"
        scale, digits = (100, 2) if measure_column(self.name)[1] else (1, 3)
        text = f"{scale * row.mean(self.name, after=self.after):.{digits}f}"
        spread = row.spread(self.name, after=self.after)
        return text if spread != spread else f"{text} {sign} {scale * spread:.{digits}f}"  # noqa: PLR0124 - NaN of one seed


def _columns(rows: Sequence[Summary], metrics: Sequence[str]) -> list[_Column]:
    """Columns of those measures that all rows have."""

    def title(name: str) -> str:
        text, in_percent, _ = measure_column(name)
        return text + (", %" if in_percent else "")

    metrics = [name for name in metrics if all(name in row.before for row in rows)]
    before = [_Column(title(name), name) for name in metrics]
    after = [_Column(f"{title(name)}, post T", name, after=True) for name in metrics if name not in FIXED]
    tested = [_Column("p (ECE)", "p")] if any(row.p_values for row in rows) else []
    return [*before, _Column("T", "temperature"), *after, *tested]


def _marks(rows: Sequence[Summary], columns: Sequence[_Column]) -> list[list[int]]:
    """For each cell: 1 if it is the best of its column, 2 if second, else 0."""
    marks = [[0] * len(columns) for _ in rows]
    for k, column in enumerate(columns):
        if column.name in ("temperature", "p") or len(rows) < 2:
            continue
        sign = -1 if measure_column(column.name)[2] else 1
        means = [sign * row.mean(column.name, after=column.after) for row in rows]
        order = sorted(range(len(rows)), key=means.__getitem__)
        marks[order[0]][k] = 1
        if len(rows) > 2:
            marks[order[1]][k] = 2
    return marks


def _cells(rows: Sequence[Summary], metrics: Sequence[str], styles: Mapping[int, str], sign: str) -> list[list[str]]:
    columns = _columns(rows, metrics)
    marks = _marks(rows, columns)
    return [
        [styles[mark].format(column.text(row, sign)) for column, mark in zip(columns, own, strict=True)]
        for row, own in zip(rows, marks, strict=True)
    ]


def table_rich(rows: Sequence[Summary], title: str, metrics: Sequence[str] = USUAL) -> "Table":
    """For the terminal: best bold, second underlined."""
    module, escape = require("rich.table", "tables in the terminal"), require("rich.markup", "tables").escape
    table: Table = module.Table(title=title, title_justify="left", box=require("rich.box", "tables").SIMPLE_HEAD)
    table.add_column("method", no_wrap=True)
    for column in _columns(rows, metrics):
        table.add_column(column.title, justify="right")
    styles = {0: "{}", 1: "[bold]{}[/bold]", 2: "[underline]{}[/underline]"}
    for row, cells in zip(rows, _cells(rows, metrics, styles, "±"), strict=True):
        table.add_row(escape(row.method), *cells)
    return table


def table_markdown(rows: Sequence[Summary], title: str, metrics: Sequence[str] = USUAL) -> str:
    """For a README: best bold, second in italics."""
    columns = [column.title for column in _columns(rows, metrics)]
    lines = [title, "", "| method | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    styles = {0: "{}", 1: "**{}**", 2: "*{}*"}
    for row, cells in zip(rows, _cells(rows, metrics, styles, "±"), strict=True):
        lines.append(f"| {row.method} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def table_latex(rows: Sequence[Summary], title: str, metrics: Sequence[str] = USUAL) -> str:
    """For a paper, with the package booktabs: best bold, second underlined."""
    columns = _columns(rows, metrics)
    styles = {0: "{}", 1: "\\textbf{{{}}}", 2: "\\underline{{{}}}"}
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_tex(title)}}}",
        "\\begin{tabular}{l" + "r" * len(columns) + "}",
        "\\toprule",
        " & ".join(["method", *(_tex(column.title) for column in columns)]) + " \\\\",
        "\\midrule",
    ]
    for row, cells in zip(rows, _cells(rows, metrics, styles, "$\\pm$"), strict=True):
        lines.append(" & ".join([_tex(row.method), *(cell.replace("<", "$<$") for cell in cells)]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"]) + "\n"


def _tex(text: str) -> str:
    for character in "\\&%$#_{}":
        text = text.replace(character, "\\textbackslash " if character == "\\" else "\\" + character)
    return text


def table_csv(rows: Sequence[Summary]) -> str:
    """For a spreadsheet: everything, in fractions, with mean, standard deviation and interval in columns of their own."""
    text = io.StringIO()
    writer = csv.writer(text)
    names = [(name, after) for after in (False, True) for name in (rows[0].before if rows else [])]
    header = [f"{name}{'_after_temperature' if after else ''}" for name, after in names]
    parts = ("mean", "std", "low", "high")
    writer.writerow(
        ["method", "seeds", *(f"{h}_{part}" for h in header for part in parts), "temperature", "p_ece", "p_accuracy"]
    )
    for row in rows:
        cells: list[float | str] = []
        for name, after in names:
            cells += [row.mean(name, after=after), row.spread(name, after=after), *row.interval(name, after=after)]
        p = [row.p_values.get(name, "") for name in ("ece", "accuracy")]
        writer.writerow([row.method, len(row.seeds), *cells, statistics.mean(row.temperatures), *p])
    return text.getvalue()
