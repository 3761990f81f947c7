"""A self-contained HTML page on a study, runs, or audited predictions; it works offline."""

import json
import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant import __version__
from calibrant.audit import Audit
from calibrant.extras import require
from calibrant.files import replacing
from calibrant.report.collect import Collected, Reported, collect, content
from calibrant.report.figures import write_figures
from calibrant.report.papers import Missing, write_paper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calibrant.posthoc.temperature import Criterion


class Report:
    """A report, computed once and written as a page, as figures, or both.

    Args:
        sources: The folder of a study or a search, run folders, prediction files, or audits.
        temperature: What the temperatures of runs minimise, ``"nll"`` or ``"ece"``; their own criterion if not given.
    """

    def __init__(self, *sources: Reported, temperature: "Criterion | None" = None) -> None:
        self.found: Collected = collect(sources, temperature)
        self.place = next((str(source) for source in sources if not isinstance(source, Audit)), "runs/study")

    @cached_property
    def content(self) -> dict[str, Any]:
        """Everything the page shows, as plain Python types."""
        return content(self.found)

    def __repr__(self) -> str:
        return f"Report({self.found.title!r}: {', '.join(self.found.methods)})"

    def html(self) -> str:
        """The page."""
        jinja2 = require("jinja2", "a report")
        plotly = require("plotly.offline", "a report").get_plotlyjs()
        environment = jinja2.Environment(loader=jinja2.PackageLoader("calibrant.report"), autoescape=True)
        # Inside <script>, only "<" can end the data; as a JSON escape it cannot.
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
        """Write the page as .html; ``force`` overwrites an existing file."""
        with replacing(path, force=force) as temporary:
            temporary.write_text(self.html(), encoding="utf-8")

    def write_figures(self, folder: str | Path, *, force: bool = False) -> list[Path]:
        """Write every figure there is data for, as .pdf and .png, and return their paths."""
        return write_figures(Path(folder), self.found, self.content, force=force)

    def write_paper(self, folder: str | Path, paper: str, *, force: bool = False) -> tuple[list[Path], list[Missing]]:
        """Write the numbered figures (.pdf, .png) and tables (.md) of a paper.

        Args:
            folder: Output folder.
            paper: ``"cals"`` or ``"adafocal"``.
            force: Overwrite existing files.

        Returns:
            The files written, and the figures and tables for which these runs lack data, with commands that produce it.
        """
        return write_paper(Path(folder), self.found, paper, self.place, force=force)


def write_report(path: str | Path, sources: "Sequence[str | Path | Audit]", *, force: bool = False) -> None:
    """Write a page.

    Args:
        path: The .html file to write.
        sources: A study folder, run folders, prediction files, or audits.
        force: Overwrite an existing file.
    """
    Report(*sources).write(path, force=force)


def _rounded(value: Any) -> Any:
    """Rounded to six digits, with null for NaN, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
