"""The command line: ``calibrant COMMAND ...``."""

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from calibrant import __version__
from calibrant.errors import InputError, Terminated
from calibrant.extras import require
from calibrant.processes import WAITING, keep_freed_memory

#: Every command and what it does.
COMMANDS = {
    "train": "train a classifier from a recipe, or resume an interrupted run",
    "compare": "train several losses with several seeds and tabulate the results",
    "tune": "choose hyper-parameters on validation data, then evaluate the best ones on the test set once",
    "leaderboard": "rank methods over several studies, with intervals",
    "evaluate": "audit prediction files: accuracy, proper scores and calibration errors, with intervals",
    "calibrate": "fit post-hoc calibrators on validation predictions and evaluate them on test predictions",
    "apply": "calibrate a prediction file with a saved calibrator",
    "ood": "measure how well runs detect out-of-distribution data: AUROC, FPR95, AUPR",
    "shift": "evaluate runs on corrupted test images: accuracy and ECE by severity",
    "report": "write a self-contained HTML page about a study, runs or prediction files",
    "card": "write a model card section for Hugging Face: accuracy, ECE, debiased ECE, NLL and a reliability diagram",
    "list": "list recipes, losses, calibrators, metrics, models, data sets and corruptions",
}
#: The first lines of the help.
ABOUT = """\
Train networks whose confidence means what it says, and prove it.

first steps:
  calibrant list recipes
  calibrant train digits-lt --loss cals-alm --epochs 20 --out runs/first
  calibrant evaluate runs/first
"""
#: Commands that also take recipe fields.
RECIPES = ("train", "compare", "tune")
#: Commands that can be resumed, and what is printed when they are stopped.
RESUMED = ("train", "compare", "tune", "ood", "shift")
RESUMED_BY = "; run the same command again to resume"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0 success, 2 bad usage, bad input or out of time, 130 interrupted, 143 terminated.
    """
    for name, value in WAITING.items():  # before torch is imported
        os.environ.setdefault(name, value)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and given[:1] and given[0] in RECIPES:  # a process of our own, which trains
        keep_freed_memory()
    try:
        with _terminating():
            return _main(given)
    except (KeyboardInterrupt, Terminated) as stopped:
        with _deaf():
            resumed = RESUMED_BY if given[:1] and given[0] in RESUMED else ""
            without = ", without --force" if resumed and "--force" in given else ""
            print(f"calibrant: interrupted{resumed}{without}", file=sys.stderr)  # noqa: T201
        return 128 + (signal.SIGTERM if isinstance(stopped, Terminated) else signal.SIGINT)


@contextlib.contextmanager
def _terminating() -> Iterator[None]:
    """Let SIGTERM end the command like Ctrl-C, so that it cleans up."""

    def stop(*_: object) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Ignore a second Ctrl-C while the first is being handled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _main(given: list[str]) -> int:
    try:
        require("jsonargparse", "the command line")
        require("rich", "the command line")
    except ModuleNotFoundError as missing:
        print(f"calibrant: {missing}", file=sys.stderr)  # noqa: T201
        return 2
    from calibrant.cli.console import Parser, error

    parser = Parser(prog="calibrant", description=ABOUT)
    parser.add_argument(
        "--version", action="version", version=f"calibrant {__version__}", help="Print the version and exit."
    )
    details = 'Run "calibrant COMMAND --help" for details.'
    subcommands = parser.add_subcommands(required=True, dest="command", description=details)
    for name, purpose in COMMANDS.items():
        subcommands.add_subcommand(name, _module(name).parser(), help=purpose)
    own, fields = split_fields(given)
    if (problem := _mistaken(own, fields)) is not None:
        error(problem)
        return 2
    config = parser.parse_args(own)
    return _run(config, fields)


def _module(command: str) -> Any:
    return import_module(f"calibrant.cli.{'listing' if command == 'list' else command}")


def split_fields(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Separate the command's own arguments from the recipe fields that train, compare and tune also take."""
    from calibrant.cli.fields import split

    if not arguments or arguments[0] not in RECIPES:
        return arguments, []
    parser = _module(arguments[0]).parser()
    known = {name for action in parser._actions for name in action.option_strings}  # noqa: SLF001
    own, fields = split(arguments[1:], known)
    return [arguments[0], *own], fields


def _mistaken(own: list[str], fields: list[str]) -> str | None:
    """What is wrong with the arguments that parsing would not tell: lists given twice, and misspelt options."""
    from calibrant.cli.usage import misspelt, repeated

    if not own or own[0] not in COMMANDS:
        return None
    actions = _module(own[0]).parser()._actions  # noqa: SLF001
    return repeated(own[1:], actions) or misspelt(own[0], fields, actions)


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
    return 0
