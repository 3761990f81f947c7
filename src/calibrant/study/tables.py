"""A study as a table: for the terminal, notebooks, READMEs, papers and spreadsheets."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from calibrant.audit.tables import plain_table
from calibrant.extras import require
from calibrant.metrics.panel import html_table, markdown_table
from calibrant.metrics.table import measure, ranked
from calibrant.runs import STAGES, Stage, StudyResult, Summary
from calibrant.runs.results import other_criterion

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Column:
    """A column: a measure before or after temperature scaling, the temperature, or the difference from the first method.

    Attributes:
        title: Its heading.
        key: Key of the measure, ``"temperature"`` or ``"difference"``.
        stage: Before or after temperature scaling; ``"other"`` is after temperature scaling by the other criterion.
    """

    title: str
    key: str
    stage: Stage | Literal["other"] = "before"

    def text(self, row: Summary, sign: str = "±") -> str:
        """The entry of a method; ``sign`` stands between mean and standard deviation."""
        if self.key == "temperature":
            return f"{statistics.mean(row.temperatures):.2f}"
        if self.key == "difference":
            return _difference(row)
        record = measure(self.key)
        digits = 2 if record.percent else 3
        values = self.values(row)
        text = record.text(statistics.mean(values), digits=digits)
        return f"{text} {sign} {record.text(statistics.stdev(values), digits=digits)}" if len(values) > 1 else text

    def values(self, row: Summary) -> list[float]:
        """Values of a method over seeds."""
        return row.others[self.key] if self.stage == "other" else row.values(self.key, self.stage)


def _difference(row: Summary) -> str:
    """Difference in ECE from the first method, in points, and its p-value."""
    p, difference = row.p_values.get("ece"), row.difference("ece")
    if p is None:
        return ""
    shown = "<0.001" if p < 0.001 else f"{p:.3f}"
    return shown if difference is None else f"{_points(difference)} ({shown})"


def _points(difference: float) -> str:
    """A difference in percentage points; zero is 0, not -0."""
    text = f"{100 * difference:+.2f}"
    return "0.00" if float(text) == 0 else text


#: Decimals within which means count as equal.
SAME = 6


class StudyTable:
    """Methods x measures: mean and standard deviation over seeds, best and second marked.

    Args:
        result: The result of the study.
        metrics: Keys of the measures to show; those of the study if not given.
    """

    def __init__(self, result: StudyResult, metrics: Sequence[str] | None = None) -> None:
        self.title, self.note, self.rows, self.jobs = result.title, result.note, result.summaries, result.jobs
        wanted = result.metrics if metrics is None else metrics
        self.metrics = [key for key in wanted if all(key in row.before for row in self.rows)]
        self.criterion, self.wide = result.criterion, True

    def columns(self) -> list[Column]:
        """Metrics, temperature, the metrics that it changes after scaling, and differences if there are any.

        Wide tables also have the ECE after temperature scaling by the other criterion.
        """
        records = [measure(key) for key in self.metrics]
        before = [Column(record.label, record.key) for record in records]
        after = [Column(f"{record.label}, post T", record.key, "after") for record in records if record.scaled]
        if self.wide and "ece" in self.metrics and all("ece" in row.others for row in self.rows):
            after.append(Column(f"ECE, %, T by {other_criterion(self.criterion).upper()}", "ece", "other"))
        tested = [Column("ΔECE, % (p)", "difference")] if any(row.p_values for row in self.rows) else []
        return [*before, Column("T", "temperature"), *after, *tested]

    def _marks(self) -> list[list[int]]:
        """For each entry: 1 if it is the best of its column, 2 if second, else 0; ties share a rank."""
        columns = self.columns()
        marks = [[0] * len(columns) for _ in self.rows]
        for k, column in enumerate(columns):
            if column.key in ("temperature", "difference") or len(self.rows) < 2:
                continue
            sign = -1 if measure(column.key).higher else 1
            means = [round(sign * statistics.mean(column.values(row)), SAME) for row in self.rows]
            best, *others = sorted(set(means))
            for own, mean in zip(marks, means, strict=True):
                second = len(self.rows) > 2 and others and mean == others[0]
                own[k] = (1 if others else 0) if mean == best else 2 if second else 0
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
            part.title, part.rows, part.jobs = self.title, self.rows, self.jobs
            part.note = self.note if start + most >= len(self.metrics) else ""  # below the last one
            part.criterion, part.wide = self.criterion, False
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
        styles = {0: "{}", 1: "**{}**", 2: "*{}*"}
        rows = [[row.method, *entries] for row, entries in zip(self.rows, self.entries(styles), strict=True)]
        table = markdown_table(["method", *(column.title for column in self.columns())], rows)
        return "\n\n".join(filter(None, [self.title, table, self.note])) + "\n"

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
        """For a spreadsheet: all metrics, as fractions, with mean, standard deviation and interval in separate columns.

        Differences are those from the first method.
        """
        text = io.StringIO()
        rows = [self._record(row) for row in self.rows]
        writer = csv.DictWriter(text, list(rows[0]) if rows else ["method"])
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def runs(self) -> str:
        """One line per run, as .csv: the main metrics before and after temperature scaling, as fractions; none if it failed.

        This is what :class:`calibrant.study.Leaderboard` reads.
        """
        text = io.StringIO()
        keys = [r.key for r in ranked(2, dense=True) if all(r.key in row.before for row in self.rows)]
        writer = csv.writer(text)
        writer.writerow(["method", "seed", "temperature", *keys, *(f"{key}_after_temperature" for key in keys)])
        for row in self.rows:
            for i, seed in enumerate(row.seeds):
                values = [row.values(key, stage)[i] for stage in STAGES for key in keys]
                writer.writerow([row.method, seed, *(f"{value:.6g}" for value in (row.temperatures[i], *values))])
        for job in self.jobs:
            if job.state == "failed":
                writer.writerow([job.method, job.seed, *[""] * (1 + 2 * len(keys))])
        return text.getvalue()

    def _record(self, row: Summary) -> dict[str, float | str]:
        found: dict[str, float | str] = {"method": row.method, "seeds": len(row.seeds)}
        for stage in STAGES:
            for key in self.rows[0].before:
                name = f"{key}_after_temperature" if stage == "after" else key
                low, high = row.interval(key, stage)
                found |= {f"{name}_mean": row.mean(key, stage), f"{name}_std": row.spread(key, stage)}
                found |= {f"{name}_low": low, f"{name}_high": high}
        found |= {"temperature": statistics.mean(row.temperatures), "temperature_by": self.criterion}
        other = other_criterion(self.criterion)
        for name, values in (("temperature", row.other_temperatures), ("ece_after_temperature", row.others.get("ece", []))):
            found[f"{name}_by_{other}"] = statistics.mean(values) if values else ""
        for key in ("ece", "nll", "accuracy"):
            opposite = row.differences.get(key)
            for name, end in (("", "difference"), ("_low", "high"), ("_high", "low")):
                found[f"difference_{key}{name}"] = -opposite[end] if opposite else ""
            found[f"p_{key}"] = row.p_values.get(key, "")
        return found


def _tex(text: str) -> str:
    for character in "\\&%$#_{}":
        text = text.replace(character, "\\textbackslash " if character == "\\" else "\\" + character)
    return text.replace("Δ", "$\\Delta$")
