"""One page of a study, of runs, or of audited predictions: everything in it, nothing from the network."""

import json
import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant import __version__
from calibrant.extras import require
from calibrant.files import replacing
from calibrant.report.collect import Collected, collect, content
from calibrant.report.figures import write_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calibrant.audit import Audit
    from calibrant.runs import RunFolder, StudyFolder


class Report:
    """A report, measured once and written as a page, as figures, or both.

    Args:
        sources: A study folder, run folders, files of predictions, or audits.
    """

    def __init__(self, *sources: "str | Path | Audit | RunFolder | StudyFolder") -> None:
        self.found: Collected = collect(sources)

    @cached_property
    def content(self) -> dict[str, Any]:
        """Everything the page shows, in plain Python types."""
        return content(self.found)

    def __repr__(self) -> str:
        return f"Report({self.found.title!r}: {', '.join(self.found.methods)})"

    def html(self) -> str:
        """The page."""
        jinja2 = require("jinja2", "a report")
        plotly = require("plotly.offline", "a report").get_plotlyjs()
        environment = jinja2.Environment(loader=jinja2.PackageLoader("calibrant.report"), autoescape=True)
        # Inside <script> only "<" can end the data: written as an escape of JSON, nothing in it can.
        data = json.dumps(_rounded(self.content)).replace("<", "\\u003c")
        page: str = environment.get_template("report.html").render(
            title=self.content["title"],
            headline=self.content["headline"],
            sections=self.content["sections"],
            data=data,
            plotly=plotly,
            version=__version__,
        )
        return page

    def write(self, path: str | Path, *, force: bool = False) -> None:
        """Write the page, an .html; ``force`` replaces what is there."""
        with replacing(path, force=force) as temporary:
            temporary.write_text(self.html(), encoding="utf-8")

    def write_figures(self, folder: str | Path, *, force: bool = False) -> list[Path]:
        """Write every figure that there is data for, each as .pdf and .png, and return their names."""
        return write_figures(Path(folder), self.content, force=force)


def write_report(path: str | Path, sources: "Sequence[str | Path | Audit]", *, force: bool = False) -> None:
    """Write a page.

    Args:
        path: Where to, an .html.
        sources: A study folder, run folders, files of predictions, or audits.
        force: Replace what is there.
    """
    Report(*sources).write(path, force=force)


def _rounded(value: Any) -> Any:
    """Six digits will do, and JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
