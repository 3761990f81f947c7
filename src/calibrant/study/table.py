"""From runs to a table: mean and spread over seeds, before and after temperature scaling."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calibrant.extras import require
from calibrant.metrics.panel import MEASURES

if TYPE_CHECKING:
    from rich.table import Table

#: Measures of the table, and which way is better.
COLUMNS = {"accuracy": max, "ece": min, "adaptive_ece": min, "nll": min}


@dataclass(frozen=True)
class Summary:
    """One row: a method.

    Attributes:
        method: Its name.
        seeds: Number of runs.
        before: Values over seeds by measure.
        after: The same after temperature scaling.
        temperatures: One per seed.
    """

    method: str
    seeds: int
    before: Mapping[str, Sequence[float]]
    after: Mapping[str, Sequence[float]]
    temperatures: Sequence[float]


def summarise(runs: Mapping[str, Sequence[Mapping[str, Any]]], columns: Sequence[str] = tuple(COLUMNS)) -> list[Summary]:
    """Rows from the metrics of each method's runs."""
    return [
        Summary(
            method,
            len(metrics),
            {name: [run["test"][name] for run in metrics] for name in columns},
            {name: [run["test_after_temperature"][name] for run in metrics] for name in columns},
            [run["temperature"] for run in metrics],
        )
        for method, metrics in runs.items()
        if metrics
    ]


def _cell(values: Sequence[float], name: str, sign: str = "±") -> str:
    scale, digits = (100, 2) if MEASURES[name][0] == "percent" else (1, 3)
    text = f"{scale * statistics.mean(values):.{digits}f}"
    return text if len(values) < 2 else f"{text} {sign} {scale * statistics.stdev(values):.{digits}f}"


def _titles() -> list[str]:
    units = {name: ", %" if MEASURES[name][0] == "percent" else "" for name in COLUMNS}
    short = {"negative log-likelihood": "NLL"}
    names = {name: short.get(MEASURES[name][1], MEASURES[name][1]) for name in COLUMNS}
    before = [f"{names[name]}{units[name]}" for name in COLUMNS]
    return [*before, "T", *(f"{names[name]}{units[name]}, after T" for name in COLUMNS if name != "accuracy")]


def _values(row: Summary) -> list[str]:
    temperature = f"{statistics.mean(row.temperatures):.2f}"
    after = [_cell(row.after[name], name) for name in COLUMNS if name != "accuracy"]
    return [*(_cell(row.before[name], name) for name in COLUMNS), temperature, *after]


def _marks(rows: Sequence[Summary]) -> list[list[int]]:
    """For each cell: 1 if it is the best of its column, 2 if second, else 0."""
    keys = [("before", name) for name in COLUMNS] + [("", "")] + [("after", name) for name in COLUMNS if name != "accuracy"]
    marks = [[0] * len(keys) for _ in rows]
    for column, (when, name) in enumerate(keys):
        if not when or len(rows) < 2:
            continue
        sign = -1 if COLUMNS[name] is max else 1
        order = sorted(range(len(rows)), key=lambda i: sign * statistics.mean(getattr(rows[i], when)[name]))
        marks[order[0]][column] = 1
        if len(rows) > 2:
            marks[order[1]][column] = 2
    return marks


def table_rich(rows: Sequence[Summary], title: str) -> "Table":
    """For the terminal: best bold, second underlined."""
    module = require("rich.table", "tables in the terminal")
    table: Table = module.Table(title=title, title_justify="left", box=require("rich.box", "tables").SIMPLE_HEAD)
    table.add_column("method", no_wrap=True)
    for name in _titles():
        table.add_column(name, justify="right")
    styles = {0: "{}", 1: "[bold]{}[/bold]", 2: "[underline]{}[/underline]"}
    for row, marks in zip(rows, _marks(rows), strict=True):
        table.add_row(row.method, *(styles[mark].format(text) for text, mark in zip(_values(row), marks, strict=True)))
    return table


def table_markdown(rows: Sequence[Summary], title: str) -> str:
    """For a README: best bold, second in italics."""
    styles = {0: "{}", 1: "**{}**", 2: "*{}*"}
    lines = [title, "", "| method | " + " | ".join(_titles()) + " |", "|---" * (1 + len(_titles())) + "|"]
    for row, marks in zip(rows, _marks(rows), strict=True):
        cells = [styles[mark].format(text) for text, mark in zip(_values(row), marks, strict=True)]
        lines.append(f"| {row.method} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def table_csv(rows: Sequence[Summary]) -> str:
    """For a spreadsheet: mean and standard deviation in columns of their own, fractions."""
    text = io.StringIO()
    writer = csv.writer(text)
    names = [(when, name) for when in ("before", "after") for name in COLUMNS]
    header = [
        f"{name}{'' if when == 'before' else '_after_temperature'}_{what}"
        for when, name in names
        for what in ("mean", "std")
    ]
    writer.writerow(["method", "seeds", *header, "temperature_mean"])
    for row in rows:
        cells: list[float | str] = []
        for when, name in names:
            values = getattr(row, when)[name]
            cells += [statistics.mean(values), statistics.stdev(values) if len(values) > 1 else ""]
        writer.writerow([row.method, row.seeds, *cells, statistics.mean(row.temperatures)])
    return text.getvalue()
