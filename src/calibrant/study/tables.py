"""A study as a table: for the terminal, notebooks, READMEs, papers and spreadsheets."""

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calibrant.audit.tables import plain_table
from calibrant.extras import require
from calibrant.metrics.panel import html_table
from calibrant.metrics.table import measure
from calibrant.runs import STAGES, Stage, StudyResult, Summary

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Column:
    """A column: a measure before or after temperature scaling, the temperature, or the p-value.

    Attributes:
        title: Its heading.
        key: Key of the measure, ``"temperature"`` or ``"p"``.
        stage: Before or after temperature scaling.
    """

    title: str
    key: str
    stage: Stage = "before"

    def text(self, row: Summary, sign: str = "±") -> str:
        """The entry of a method; ``sign`` stands between mean and standard deviation."""
        if self.key == "temperature":
            return f"{statistics.mean(row.temperatures):.2f}"
        if self.key == "p":
            p = row.p_values.get("ece")
            return "" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"
        record = measure(self.key)
        digits = 2 if record.percent else 3
        text = record.text(row.mean(self.key, self.stage), digits=digits)
        spread = row.spread(self.key, self.stage)
        return text if math.isnan(spread) else f"{text} {sign} {record.text(spread, digits=digits)}"


class StudyTable:
    """Methods x measures: mean and standard deviation over seeds, best and second marked.

    Args:
        result: The result of the study.
        metrics: Keys of the measures to show; those of the study if not given.
    """

    def __init__(self, result: StudyResult, metrics: Sequence[str] | None = None) -> None:
        self.title, self.note, self.rows = result.title, result.note, result.summaries
        wanted = result.metrics if metrics is None else metrics
        self.metrics = [key for key in wanted if all(key in row.before for row in self.rows)]

    def columns(self) -> list[Column]:
        """Measures, temperature, measures after it where it changes them, and p-values if there are any."""
        records = [measure(key) for key in self.metrics]
        before = [Column(record.label, record.key) for record in records]
        after = [Column(f"{record.label}, post T", record.key, "after") for record in records if record.scaled]
        tested = [Column("p (ECE)", "p")] if any(row.p_values for row in self.rows) else []
        return [*before, Column("T", "temperature"), *after, *tested]

    def _marks(self) -> list[list[int]]:
        """For each entry: 1 if it is the best of its column, 2 if second, else 0."""
        columns = self.columns()
        marks = [[0] * len(columns) for _ in self.rows]
        for k, column in enumerate(columns):
            if column.key in ("temperature", "p") or len(self.rows) < 2:
                continue
            sign = -1 if measure(column.key).higher else 1
            means = [sign * row.mean(column.key, column.stage) for row in self.rows]
            order = sorted(range(len(self.rows)), key=means.__getitem__)
            marks[order[0]][k] = 1
            if len(self.rows) > 2:
                marks[order[1]][k] = 2
        return marks

    def entries(self, styles: Mapping[int, str], sign: str = "±") -> list[list[str]]:
        """Texts of all rows; ``styles`` are formats of plain, best and second."""
        columns = self.columns()
        return [
            [styles[mark].format(column.text(row, sign)) for column, mark in zip(columns, own, strict=True)]
            for row, own in zip(self.rows, self._marks(), strict=True)
        ]

    def narrow(self, most: int) -> "list[StudyTable]":
        """Split into tables of at most ``most`` measures each."""
        parts = []
        for start in range(0, len(self.metrics), most):
            part = StudyTable.__new__(StudyTable)
            part.title, part.note, part.rows = self.title, self.note, self.rows
            part.metrics = self.metrics[start : start + most]
            parts.append(part)
        return parts

    def __rich__(self) -> "Table":
        """For the terminal: best bold, second underlined."""
        escape = require("rich.markup", "tables").escape
        table = plain_table(self.title, "method", [column.title for column in self.columns()])
        styles = {0: "{}", 1: "[bold]{}[/bold]", 2: "[underline]{}[/underline]"}
        for row, entries in zip(self.rows, self.entries(styles), strict=True):
            table.add_row(escape(row.method), *entries)
        table.caption, table.caption_justify = escape(self.note) or None, "left"
        return table

    def _repr_html_(self) -> str:
        rows = [[row.method, *own] for row, own in zip(self.rows, self.entries(dict.fromkeys(range(3), "{}")), strict=True)]
        return html_table(
            ["method", *(column.title for column in self.columns())], rows, f"{self.title}\n{self.note}".strip()
        )

    def __str__(self) -> str:
        return self.markdown()

    def markdown(self) -> str:
        """For a README: best bold, second in italics."""
        columns = [column.title for column in self.columns()]
        lines = [self.title, "", "| method | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
        styles = {0: "{}", 1: "**{}**", 2: "*{}*"}
        for row, entries in zip(self.rows, self.entries(styles), strict=True):
            lines.append(f"| {row.method} | " + " | ".join(entries) + " |")
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"

    def latex(self) -> str:
        """For a paper, with the package booktabs: best bold, second underlined."""
        columns = self.columns()
        styles = {0: "{}", 1: "\\textbf{{{}}}", 2: "\\underline{{{}}}"}
        lines = [
            "% needs \\usepackage{booktabs}",
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{_tex(f'{self.title}. {self.note}'.removesuffix('. '))}}}",
            "\\begin{tabular}{l" + "r" * len(columns) + "}",
            "\\toprule",
            " & ".join(["method", *(_tex(column.title) for column in columns)]) + " \\\\",
            "\\midrule",
        ]
        for row, entries in zip(self.rows, self.entries(styles, "$\\pm$"), strict=True):
            lines.append(" & ".join([_tex(row.method), *(entry.replace("<", "$<$") for entry in entries)]) + " \\\\")
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"]) + "\n"

    def csv(self) -> str:
        """For a spreadsheet: all measures, in fractions, with mean, standard deviation and interval in separate columns."""
        text = io.StringIO()
        writer = csv.writer(text)
        names = [(key, stage) for stage in STAGES for key in (self.rows[0].before if self.rows else [])]
        header = [f"{key}{'_after_temperature' if stage == 'after' else ''}" for key, stage in names]
        parts = ("mean", "std", "low", "high")
        writer.writerow(
            ["method", "seeds", *(f"{h}_{part}" for h in header for part in parts), "temperature", "p_ece", "p_accuracy"]
        )
        for row in self.rows:
            entries: list[float | str] = []
            for key, stage in names:
                entries += [row.mean(key, stage), row.spread(key, stage), *row.interval(key, stage)]
            p = [row.p_values.get(key, "") for key in ("ece", "accuracy")]
            writer.writerow([row.method, len(row.seeds), *entries, statistics.mean(row.temperatures), *p])
        return text.getvalue()


def _tex(text: str) -> str:
    for character in "\\&%$#_{}":
        text = text.replace(character, "\\textbackslash " if character == "\\" else "\\" + character)
    return text
