"""A page of one or several audits."""

import io
from collections.abc import Sequence
from pathlib import Path

from calibrant import __version__
from calibrant.audit import SHOWN, Audit, PairedComparison, figure
from calibrant.extras import require
from calibrant.metrics.panel import MEASURES


def write_audit(path: Path, audits: Sequence[Audit], comparisons: Sequence[PairedComparison] = ()) -> None:
    """Write a page with verdicts, table, reliability diagrams and classes; it needs nothing from the network."""
    jinja2 = require("jinja2", "a report")
    environment = jinja2.Environment(loader=jinja2.PackageLoader("calibrant.report"), autoescape=True)
    drawing = io.StringIO()
    figure(audits).savefig(drawing, format="svg", metadata={"Date": None})
    svg = drawing.getvalue()
    page = environment.get_template("audit.html").render(
        audits=audits,
        comparisons=[comparison for comparison in comparisons if comparison.measures],
        measures=[(name, *MEASURES[name]) for name in SHOWN],
        drawing=svg[svg.index("<svg") :],
        version=__version__,
    )
    path.write_text(page, encoding="utf-8")
