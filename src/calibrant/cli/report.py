"""``calibrant report``: a page to send to a colleague."""

from pathlib import Path
from typing import Any

from calibrant.cli.console import Parser, protect_runs, wrote

EXAMPLE = """\
Writes one self-contained .html page about a study, runs or prediction files. It opens from disk and needs no internet
connection. An existing report is replaced.

example:
  calibrant compare digits-lt --losses ce cals-alm --seeds 1 --epochs 2 --out runs/small
  calibrant report runs/small --figures figures
"""


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Write a report.\n\n" + EXAMPLE)
    options.add_argument("sources", nargs="+", metavar="SOURCE", help="A study folder, run folders, or prediction files.")
    options.option(
        "--out", "--output", metavar="FILE", help="The page; by default report.html in the first folder, or here for files."
    )
    options.option("--figures", metavar="FOLDER", help="Also write the papers' figures, as .pdf and .png.")
    return options


def run(config: Any) -> None:
    """Write the page and the figures."""
    from calibrant.report import Report

    first = Path(config.sources[0])
    output = Path(config.out) if config.out else (first if first.is_dir() else Path()) / "report.html"
    protect_runs(str(output))
    report = Report(*config.sources)
    report.write(output, force=True)
    wrote(output)
    if config.figures:
        for path in report.write_figures(config.figures, force=True):
            wrote(path)
