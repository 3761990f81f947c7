"""The command line: ``calibrant COMMAND ...``."""

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from calibrant import __version__
from calibrant.extras import require

#: Every command, its module under ``calibrant.cli``, and what it does.
COMMANDS = {
    "evaluate": "audit files of predictions: accuracy, proper scores, calibration errors with intervals",
    "calibrate": "fit post-hoc calibrators on validation predictions and measure them on test predictions",
    "apply": "calibrate a file of predictions with a saved calibrator",
}


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
        subcommands.add_subcommand(name, import_module(f"calibrant.cli.{name}").parser(), help=purpose)
    config = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    return _run(config)


def _run(config: object) -> int:
    from calibrant.cli.console import error, warn
    from calibrant.predictions import InputError

    command = config.command  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = warn
            import_module(f"calibrant.cli.{command}").run(config[command])  # type: ignore[index]
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
