"""Audits as tables for the terminal, and as a figure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from calibrant.audit.record import Audit, PairedComparison, p_text
from calibrant.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas
    from rich.table import Table

#: More audits than this get a row each instead of a column.
MOST = 6


def tables(audits: Sequence[Audit], comparisons: Sequence[PairedComparison] = (), *, worst: int = 5) -> "list[Table]":
    """What the terminal shows: measures, class groups, the worst classes of the first audit, and paired differences."""
    found = [measures_table(audits)]
    if any(audit.groups for audit in audits):
        found.append(_group_table(audits))
    if worst > 0:
        found += [_class_table(audit, worst) for audit in audits[:1]]
    filled = [comparison for comparison in comparisons if comparison.measures]
    if filled:
        found.append(_comparison_table(filled))
    return found


def plain_table(title: str, first: str, columns: Sequence[str]) -> "Table":
    """An empty table in the package's style; markup in names is escaped."""
    module, escape = require("rich.table", "tables in the terminal"), require("rich.markup", "tables").escape
    table: Table = module.Table(title=escape(title), title_justify="left", box=require("rich.box", "tables").SIMPLE_HEAD)
    table.add_column(escape(first), no_wrap=True)
    for column in columns:
        table.add_column(escape(column), justify="right")
    return table


def add_row(table: "Table", *entries: str) -> None:
    """Add a row of plain text."""
    escape: Any = require("rich.markup", "tables").escape
    table.add_row(*map(escape, entries))


def measures_table(audits: Sequence[Audit], *, title: str = "", headings: Sequence[str] = (), rank: int = 3) -> "Table":
    """One column per audit; for a single audit, also how each measure was computed."""
    first, several = audits[0], len(audits) > 1
    if len(audits) > MOST:
        return _overview(audits, headings)
    level = next(iter(first.intervals.values())).level
    title = title or f"{first.samples:,} samples, {len(first.classes)} classes; {100 * level:.0f}% intervals in brackets"
    headings = headings or [audit.name for audit in audits]
    table = plain_table(title, "measure", [*headings, *([] if several else ["how"])])
    for column in table.columns[1 : 1 + len(audits)]:
        column.no_wrap = True
    if not several:
        table.columns[-1].justify = "left"
        table.columns[-1].style = "dim"
    for record in first.shown(rank):
        how = [] if several else [first.how.get(record.key, "")]
        add_row(table, first.label(record), *(audit.text(record) for audit in audits), *how)
    if rank >= 3:
        tests = ["-" if audit.test is None else f"p {p_text(audit.test.p_value)}" for audit in audits]
        add_row(table, "test of perfect calibration", *tests, *([] if several else ["consistency resampling"]))
    return table


def _overview(audits: Sequence[Audit], headings: Sequence[str]) -> "Table":
    """One row per audit, without intervals."""
    first = audits[0]
    records = first.shown(2)
    table = plain_table(f"{first.samples:,} samples, {len(first.classes)} classes", "", [record.label for record in records])
    for name, audit in zip(headings or [audit.name for audit in audits], audits, strict=True):
        add_row(table, name, *(record.text(audit[record.key]) for record in records))
    return table


def _group_table(audits: Sequence[Audit]) -> "Table":
    audits = [audit for audit in audits if audit.groups]
    columns = [f"{audit.name}: {what}" for audit in audits for what in ("accuracy", "ECE")]
    table = plain_table("By number of training samples, %", "classes", columns)
    for group, row in audits[0].groups.items():
        rows = [audit.groups[group] for audit in audits]
        entries = [text for own in rows for text in (f"{100 * own.accuracy:.2f}", f"{100 * own.ece:.2f}")]
        add_row(table, f"{group} ({row.samples:,} samples)", *(entry if row.samples else "-" for entry in entries))
    return table


def _class_table(audit: Audit, worst: int) -> "Table":
    order = sorted(audit.classes, key=lambda row: -row.classwise_ece)[:worst]
    title = f"Worst-calibrated classes of {audit.name}, %"
    table = plain_table(title, "class", ["samples", "recall", "mean confidence", "classwise ECE"])
    for row in order:
        found = ["-", "-"] if not row.samples else [f"{100 * row.accuracy:.2f}", f"{100 * row.confidence:.2f}"]
        add_row(table, row.name, f"{row.samples:,}", *found, f"{100 * row.classwise_ece:.2f}")
    return table


def _comparison_table(comparisons: Sequence[PairedComparison]) -> "Table":
    table = plain_table("Paired differences on the same samples", "", ["measure", "difference", "interval", "p"])
    for comparison in comparisons:
        for i, row in enumerate(comparison.rows()):
            add_row(table, f"{comparison.first} - {comparison.second}" if i == 0 else "", *row)
    return table


def figure(audits: Sequence[Audit]) -> "Canvas":
    """Reliability diagrams side by side."""
    from calibrant.plots import ReliabilityDiagram  # noqa: PLC0415 - matplotlib is slow to import

    # Pixels are not independent: their interval is that of the ECE over images.
    intervals = [a.intervals["ece"] if a.dense else None for a in audits]
    diagrams = [
        ReliabilityDiagram.from_bins(a.bins.statistics(), ece, a.name, event=a.event)
        for a, ece in zip(audits, intervals, strict=True)
    ]
    return ReliabilityDiagram.side_by_side(diagrams)
