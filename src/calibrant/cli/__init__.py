"""The command line: ``calibrant COMMAND ...``."""

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from calibrant import __version__
from calibrant.errors import InputError
from calibrant.extras import require

#: Every command, its module under ``calibrant.cli``, and what it does.
COMMANDS = {
    "train": "train a classifier from a recipe; the same command again resumes",
    "compare": "train several losses with several seeds and print the table",
    "evaluate": "audit files of predictions: accuracy, proper scores, calibration errors with intervals",
    "calibrate": "fit post-hoc calibrators on validation predictions and measure them on test predictions",
    "apply": "calibrate a file of predictions with a saved calibrator",
    "ood": "tell unknown data from known by the uncertainty of runs: AUROC, FPR95, AUPR",
    "shift": "measure runs on corrupted test images: accuracy and ECE against severity",
    "report": "write a self-contained page of a study, of runs, or of files of predictions",
    "list": "show recipes, losses, calibrators, metrics, models, data sets and corruptions",
}
#: Those that take fields of a recipe.
RECIPES = ("train", "compare")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 fine, 2 bad usage or input, 130 interrupted."""
    try:
        require("jsonargparse", "the command line")
        require("rich", "the command line")
    except ModuleNotFoundError as error:
        print(f"calibrant: {error}", file=sys.stderr)  # noqa: T201
        return 2
    from calibrant.cli.console import Parser

    parser = Parser(prog="calibrant", description="Train networks whose confidence means what it says, and prove it.")
    parser.add_argument(
        "--version", action="version", version=f"calibrant {__version__}", help="Print the version and exit."
    )
    subcommands = parser.add_subcommands(required=True, dest="command")
    for name, purpose in COMMANDS.items():
        subcommands.add_subcommand(name, _module(name).parser(), help=purpose)
    own, fields = split_fields(list(sys.argv[1:] if arguments is None else arguments))
    config = parser.parse_args(own)
    return _run(config, fields)


def _module(command: str) -> Any:
    return import_module(f"calibrant.cli.{'listing' if command == 'list' else command}")


def split_fields(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The command's own arguments, and the fields of a recipe that train and compare take besides."""
    from calibrant.cli.fields import split

    if not arguments or arguments[0] not in RECIPES:
        return arguments, []
    parser = _module(arguments[0]).parser()
    known = {name for action in parser._actions for name in action.option_strings}  # noqa: SLF001
    own, fields = split(arguments[1:], known)
    return [arguments[0], *own], fields


def _run(config: object, fields: list[str]) -> int:
    from calibrant.cli.console import error, warn

    command = config.command  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = warn
            more = [fields] if command in RECIPES else []
            _module(command).run(config[command], *more)  # type: ignore[index]
    except (InputError, OSError, ModuleNotFoundError) as problem:
        if isinstance(problem, BrokenPipeError):  # as in calibrant evaluate ... | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        error(str(problem))
        return 2
    except KeyboardInterrupt:
        error("interrupted")
        return 128 + signal.SIGINT
    return 0
