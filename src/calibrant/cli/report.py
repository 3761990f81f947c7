"""``calibrant report``: a page to send to a colleague."""

from pathlib import Path
from typing import Any

from calibrant.cli.console import Parser, out, protect_runs, wrote

EXAMPLE = """\
Writes one self-contained .html page about a study, runs or prediction files. It opens from disk and needs no internet
connection. An existing report is replaced.

example:
  calibrant compare digits-lt --losses ce cals-alm --seeds 1 --epochs 20 --out runs/small
  calibrant report runs/small --figures figures
  calibrant report runs/small --figures figures --paper adafocal
"""


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Write a report.\n\n" + EXAMPLE)
    options.add_argument("sources", nargs="+", metavar="SOURCE", help="A study folder, run folders, or prediction files.")
    options.option(
        "--out",
        "--output",
        metavar="FILE",
        help="The page to write; by default report.html in the first folder given, or in the current folder for prediction "
        "files.",
    )
    options.option(
        "--temperature",
        metavar="CRITERION",
        help="What the temperature minimises on the validation predictions: nll or ece; the runs' own if not given.",
    )
    options.option("--figures", metavar="FOLDER", help="Also write the figures, as .pdf and .png.")
    options.option(
        "--paper",
        metavar="PAPER",
        help="cals or adafocal: with --figures, write this paper's numbered figures and tables instead, and list "
        "what the remaining ones need.",
    )
    return options


def run(config: Any) -> None:
    """Write the page and the figures."""
    from calibrant.errors import InputError, lookup
    from calibrant.report import Report
    from calibrant.report.papers import ITEMS

    if config.paper and not config.figures:
        raise InputError("--paper needs a folder for the figures: --figures FOLDER")
    if config.paper:
        lookup(config.paper, ITEMS, "--paper")
    first = Path(config.sources[0])
    output = Path(config.out) if config.out else (first if first.is_dir() else Path()) / "report.html"
    protect_runs(str(output))
    report = Report(*config.sources, temperature=config.temperature)
    report.write(output, force=True)
    wrote(output)
    if config.paper:
        written, missing = report.write_paper(config.figures, config.paper, force=True)
        for path in written:
            wrote(path)
        for one in missing:
            out.print(f"{one.item.number} ({one.item.title}) needs {one.item.needs}:", markup=False, highlight=False)
            out.print(f"  {one.command}", markup=False, highlight=False, soft_wrap=True)
    elif config.figures:
        for path in report.write_figures(config.figures, force=True):
            wrote(path)
