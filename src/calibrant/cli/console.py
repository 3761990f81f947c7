"""What the commands share: parser, tables, progress, messages."""

import argparse
import contextlib
import functools
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from jsonargparse import ArgumentParser, DefaultHelpFormatter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from calibrant.cli.usage import explain

if TYPE_CHECKING:
    from calibrant.evaluation import TrainedNetwork
    from calibrant.runs import RunFolder


class _Console(Console):
    """A console that survives a closed pipe, as in ``calibrant evaluate ... | head``: the command still finishes."""

    def on_broken_pipe(self) -> None:
        """Send the rest of the output to the null device."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Names of files and classes are printed verbatim: no :emoji: and no [markup]
out = _Console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=False, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

#: Maximum length of a message before its middle is cut; foreign files may hold names of any length.
LONG = 1500
#: Library arguments, as its messages name them, and the matching flags.
FLAGS = {
    'kind="logits"': "--logits",
    'kind="probs"': "--probs",
    "allow_code": "--allow-code",
    "ignore_index": "--ignore-index",
    "labels_are": "--labels-are",
    "num_bins": "--num-bins",
    "calibrator": "--method",
}


def as_flags(message: str) -> str:
    """Turn Python arguments in backticks, such as `force=True`, into flags."""

    def flag(match: re.Match[str]) -> str:
        name, equals, value = match.group(1).partition("=")
        text = FLAGS.get(match.group(1)) or FLAGS.get(name) or f"--{name}"
        if not equals or value == "True" or match.group(1) in FLAGS:
            return text
        return f"{text} {'false' if value == 'False' else value.strip(chr(34))}"

    return re.sub(r"`([a-z_.]+(?:=[^`]*)?)`", flag, message)


class _Help(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Wraps descriptions, keeps the line breaks of examples, and hides defaults that say nothing."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip("\n").split("\n\n")
        shown = [
            p if re.search(r"^ ", p, re.MULTILINE) else textwrap.fill(" ".join(p.split()), width, break_on_hyphens=False)
            for p in paragraphs
        ]
        return textwrap.indent("\n\n".join(shown), indent) + "\n"

    def _expand_help(self, action: argparse.Action) -> str:
        text = str(super()._expand_help(action))
        for nothing in (" (default: null)", " (default: False)", " (default: [])", " (required)", ", default: null"):
            text = text.replace(nothing, "")
        return text


class Parser(ArgumentParser):
    """A parser that accepts options with dashes or underscores."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, formatter_class=_Help, allow_abbrev=False, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print one sentence instead of the usage of all options."""
        error(explain(message, getattr(ex, "subcommand_parser", None) or self))
        self.exit(2)
        raise AssertionError  # it has exited

    def option(self, *names: str, **kwargs: Any) -> None:
        """Add an option by its names with dashes."""
        underscored = ["--" + name.removeprefix("--").replace("-", "_") for name in names]
        self.add_argument(*dict.fromkeys([*names, *underscored]), **kwargs)

    def reading_options(self) -> None:
        """Options for reading prediction files."""
        self.option("--logits", action="store_true", help="The scores are logits (or log-probabilities).")
        self.option("--probs", action="store_true", help="The scores are probabilities.")
        self.option("--scores", metavar="NAME", help="Name of the array of scores in an .npz.")
        self.option(
            "--columns",
            nargs="+",
            metavar="NAME",
            help="Columns with the scores, in the order of the classes, or patterns such as 'prob_*'.",
        )
        self.option(
            "--label", metavar="NAME", help="Column or array of true classes; for an .npy, the file that holds them."
        )
        self.option("--labels-are", metavar="WHAT", help="How to read ambiguous labels: names or numbers.")
        self.option("--positive", metavar="LABEL", help="The label of the positive class, if there is a single score.")
        self.option("--normalise", "--normalize", action="store_true", help="Divide each row of probabilities by its sum.")
        self.option("--ignore-index", type=int, default=-100, help="Label of samples or pixels to ignore.")

    def measuring_options(self) -> None:
        """Options for measuring."""
        self.option("--num-bins", type=int, default=15, help="Number of bins for the binned errors.")
        self.option("--resamples", type=int, default=1000, help="Resamples per interval.")
        self.option("--seed", type=int, default=0, help="Seed for resampling.")
        self.option("--figure", metavar="FILE", help="Write reliability diagrams to a .png, .pdf or .svg.")

    def run_options(self) -> None:
        """Options of commands that reuse the network of a run."""
        self.option("--data.root", metavar="FOLDER", help="Data folder; the run's if not given.")
        self.option("--force", action="store_true", help="Redo finished work.")
        self.option(
            "--allow-code", action="store_true", help="Allow the run's recipe to import code from outside calibrant."
        )

    def training_options(self) -> None:
        """Options for training."""
        self.option("--quiet", action="store_true", help="Hide progress output.")
        self.option("--force", action="store_true", help="Start over, discarding an existing run.")
        self.option("--threads", type=int, help="Threads per run. If not given, small networks use one.")
        self.option("--allow-code", action="store_true", help="Allow the recipe to import code from outside calibrant.")

    def study_options(self) -> None:
        """Options for training many runs."""
        self.option(
            "--jobs",
            type=int,
            help="Runs trained in parallel; they share the CPU cores. By default, one per core on a CPU, or fewer to fit "
            "into half of the memory; one at a time on a GPU.",
        )
        self.option("--launcher", default="local", help="local, or ray for a Ray cluster.")
        self.option("--resources", nargs="+", metavar="NAME=NUMBER", default=[], help="Ray resources per run: gpu=1 cpu=4.")
        self.option("--report", action="store_true", help="Also write report.html.")
        self.training_options()


def open_file(path: str, config: Any, part: str = "test", *, labels: bool = True, **others: Any) -> Any:
    """Open predictions with the reading options, and print how they were understood, with ``labels`` also the labels."""
    from calibrant.errors import InputError
    from calibrant.predictions import open_predictions

    if config.logits and config.probs:
        raise InputError("scores are either logits or probabilities: pass --logits or --probs, not both")
    kind: Any = "logits" if config.logits else "probs" if config.probs else None
    names = ("scores", "columns", "label", "labels_are", "positive", "normalise", "ignore_index")
    file = open_predictions(path, kind=kind, part=part, **{**{name: config[name] for name in names}, **others})
    with progress(f"inspecting {file.path.name}", None):
        understood = file.understood(labels=labels)
    out.print(understood, markup=False, soft_wrap=True)
    return file


def check_measuring(config: Any, *files: str | None) -> None:
    """Refuse measuring options and names of output files that would fail only after all the work."""
    from calibrant.errors import InputError

    limits = {"num_bins": (1, 100_000), "resamples": (2, 100_000), "seed": (0, 2**63 - 1)}
    for name, (low, high) in limits.items():
        if not low <= config[name] <= high:
            raise InputError(f"`{name}` must be at least {low} and at most {high}, got {config[name]}")
    check_outputs(config, *files)


def check_outputs(config: Any, *files: str | None) -> None:
    """Refuse names of output files that would fail only after all the work."""
    from calibrant.errors import InputError

    if config.figure is not None and Path(config.figure).suffix.lower() not in (".png", ".pdf", ".svg"):
        raise InputError(f"`figure` must end in .png, .pdf or .svg, got {config.figure}")
    for path in (path for path in (*files, config.figure) if path is not None):
        if Path(path).is_dir():
            raise InputError(f"{path} is a folder; name a file in it")
    protect_runs(*files, config.figure)


def protect_runs(*paths: str | None) -> None:
    """Refuse to overwrite a file that belongs to a run."""
    from calibrant.errors import InputError
    from calibrant.runs import RunFolder

    for path in (path for path in paths if path is not None):
        place = Path(path).resolve()
        if RunFolder(place.parent).owns(place) or RunFolder(place.parent.parent).owns(place):
            raise InputError(f"{path} belongs to a run; choose another name")


@contextlib.contextmanager
def progress(what: str, total: int | None) -> Iterator[Any]:
    """A progress bar on standard error that disappears when done; yields a function that advances it."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps=1, total=total: bar.update(task, advance=steps, total=total)


def error(message: str) -> None:
    """Print an error on standard error."""
    text = message if len(message) < LONG else f"{message[: LONG // 2]} ... {message[-LONG // 2 :]}"
    err.print(f"calibrant: {as_flags(text)}", markup=False)


def warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning without its location in the code."""
    del filename, lineno, file, line
    if not issubclass(category, DeprecationWarning | FutureWarning):
        err.print(f"calibrant: warning: {as_flags(str(message))}", markup=False)


def percent(value: float) -> str:
    """A fraction in percent, as tables print it."""
    return f"{100 * value:.2f}"


def wrote(path: object) -> None:
    """Report a written file."""
    out.print(f"wrote {path}", markup=False)


def networks(root: str | None, *, allow_code: bool) -> "Callable[[RunFolder], TrainedNetwork]":
    """A function that loads the network of a run and caches the last one, which every data set asks for again."""
    from calibrant.evaluation import TrainedNetwork

    return functools.lru_cache(maxsize=1)(functools.partial(TrainedNetwork.load, root=root, allow_code=allow_code))
