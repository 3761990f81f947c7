"""``calibrant leaderboard``: methods over several data sets."""

from pathlib import Path
from typing import Any

from calibrant.cli.console import Parser, out, wrote

EXAMPLE = """\
Prints mean ranks by ECE, NLL and accuracy, with intervals, and the results on each data set. Cross-entropy with temperature
scaling is ranked as a separate method, ce + T.

example:
  calibrant compare digits --losses ce ls --seeds 2 --epochs 20 --out runs/even
  calibrant compare digits-lt --losses ce ls --seeds 2 --epochs 20 --out runs/tailed
  calibrant leaderboard digits=runs/even digits-lt=runs/tailed
"""


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Rank methods over several studies.\n\n" + EXAMPLE)
    options.add_argument(
        "studies",
        nargs="+",
        metavar="[NAME=]STUDY",
        help="Study folders or their runs.csv files, each optionally with a name for its data set.",
    )
    options.option("--out", metavar="FILE", help="Write the tables to an .md file.")
    options.option(
        "--into",
        metavar="FILE",
        help="Replace the leaderboard inside a document, between its start and end markers.",
    )
    options.option("--force", action="store_true", help="Replace the file of --out if it exists.")
    options.option("--top", type=int, metavar="N", help="Show mean ranks only, of the top N methods.")
    return options


def run(config: Any) -> None:
    """Rank, and show or write the tables."""
    from calibrant.checks import whole
    from calibrant.errors import InputError, input_errors
    from calibrant.files import refuse_existing, write_text
    from calibrant.study import Leaderboard

    with input_errors():
        whole("`top`", 1 if config.top is None else config.top, 1)
    named: dict[str, str] = {}
    for text in config.studies:
        name, equals, place = text.partition("=")
        source = place if equals and not Path(text).exists() else text
        own = name if source == place and equals else (Path(text).parent if text.endswith(".csv") else Path(text)).name
        if own in named:
            raise InputError(f"two studies are named {own}; pass NAME=FOLDER")
        named[own] = source
    board = Leaderboard.read(named)
    if config.out:
        refuse_existing(config.out, force=config.force)
        write_text(config.out, board.markdown(config.top))
        wrote(config.out)
    if config.into:
        board.write_into(config.into, config.top)
        wrote(config.into)
    if not config.out and not config.into:
        out.print(board.markdown(config.top), markup=False, soft_wrap=True)
