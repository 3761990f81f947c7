"""``calibrant tune``: choose hyper-parameters without looking at the test set."""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from calibrant.cli.compare import parse_resources
from calibrant.cli.console import Parser, err, error, out, wrote
from calibrant.cli.fields import parse

if TYPE_CHECKING:
    from rich.table import Table

    from calibrant.study import Job, Tuning

EXAMPLE = """\
Divides the validation set in two: adaptive losses, checkpoint selection and temperature scaling use one part, trials are
scored on the other. Final runs then use the best options, the whole validation set and all seeds, and are evaluated on the
test set once. The recipe's own options are the first trial, if they are in the search space. Running the same command again
resumes an interrupted search; with more --trials it continues a finished one. Recipe fields are overridden as in calibrant
train.

example:
  calibrant tune digits-lt --loss mbls --space loss.margin=2..20 loss.weight=log:0.01..1 --trials 8 --epochs 20 --out tuned
  calibrant train tuned/best.yaml --seed 7 --out runs/again

search space:
  loss.margin=2..20                 from 2 to 20; integers only, if the field requires them
  loss.weight=log:0.01..1           the same on a logarithmic scale
  cals-alm.penalty=phr,p2,p3        one of these; any field of the recipe, such as optimizer.lr, can be searched
"""


def parser() -> Parser:
    """Options of the command; recipe fields are parsed separately."""
    options = Parser(description="Choose hyper-parameters on validation data only.\n\n" + EXAMPLE)
    options.add_argument("recipe", metavar="RECIPE", help="Name of a built-in recipe, or a .yaml file.")
    options.option("--space", nargs="+", metavar="FIELD=VALUES", default=[], help="What to search; see above.")
    options.option("--trials", type=int, help="How many trials; 16 if not given, or all combinations of a grid.")
    options.option("--by", metavar="NAME", default="nll", help="The metric that ranks trials (see calibrant list metrics).")
    options.option(
        "--seeds",
        nargs="+",
        type=int,
        default=[3],
        help="Seeds of the final runs. One number: how many seeds. Several numbers: the seeds themselves.",
    )
    options.option("--repeats", type=int, default=1, help="Seeds per trial; its score is the mean over them.")
    options.option("--share", type=float, default=0.5, help="Fraction of the validation set that trials are scored on.")
    options.option("--sampler", default="tpe", help="tpe, random, or grid for all combinations of lists and whole numbers.")
    options.option(
        "--pruner",
        default="none",
        help="How to stop unpromising trials early: none, median or hyperband. Networks become overconfident late in "
        "training, so early scores say little.",
    )
    options.option("--out", metavar="FOLDER", help="Folder of the search; runs/RECIPE-LOSS-tuning if not given.")
    options.study_options()
    return options


def run(config: Any, fields: list[str]) -> None:
    """Search, train the best options, and show both tables."""
    from calibrant.study import StudyTable, Tuning

    tuning = Tuning(
        config.recipe,
        space=parse_space(config.space),
        seeds=config.seeds[0] if len(config.seeds) == 1 else config.seeds,
        **{name: config[name] for name in ("trials", "by", "repeats", "share", "sampler", "pruner", "out", "allow_code")},
        **parse(fields),
    )
    live = not config.quiet and err.is_terminal
    resources = parse_resources(config.resources)

    def tell(job: "Job") -> None:
        if not config.quiet and not live:
            err.print(tuning.line(job), markup=False)

    with _live(tuning) if live else contextlib.nullcontext():
        options = {"jobs": config.jobs, "threads": config.threads, "launcher": config.launcher}
        result = tuning.run(resources=resources, force=config.force, tell=tell, **options)
    assert tuning.study is not None  # noqa: S101
    for state, what in ((tuning.state, "search"), (tuning.study.state, "best options")):
        for folder, problem in state.failed.items():
            if state is tuning.study.state or folder in state.passing:
                error(f"{what}, {folder.name} failed: {problem}")
    show_trials(result)
    for remark in _remarks(tuning, result):
        out.print(remark, markup=False)
    out.print(result.winner, markup=False)
    out.print("on the test set, with the whole validation set:", markup=False)
    for part in StudyTable(tuning.summary()).narrow(4 if out.width >= 130 else 2 if out.width >= 80 else 1):
        out.print(part)
    wrote(tuning.folder.recipe)
    wrote(tuning.folder.figure)
    wrote(tuning.folder)
    if config.report:
        wrote(tuning.report())
    sys.stdout.flush()


def _remarks(tuning: "Tuning", result: Any) -> Iterator[str]:
    """What a table of trials does not say by itself."""
    every = tuning.proposals.combinations
    if every and len(result.trials) >= len(every) < tuning.trials:
        yield f"all {len(every)} combinations have been tried"
    elif every and tuning.sampler == "grid" and len(result.trials) < len(every):
        yield f"{len(every)} combinations in all; pass a larger --trials to continue"
    if len(result.trials) > 1 and len({trial.score for trial in result.trials if trial.state == "done"}) == 1:
        yield "all trials have the same score: these options had no effect on it"


def parse_space(texts: list[str]) -> dict[str, str]:
    """``["loss.margin=2..20"]`` as fields and their values."""
    from calibrant.errors import InputError

    found: dict[str, str] = {}
    for text in texts:
        field, equals, values = text.partition("=")
        if not equals or not field or not values:
            raise InputError(f"--space takes FIELD=VALUES, such as loss.margin=2..20; got {text!r}")
        if field in found:
            raise InputError(f"--space names {field} twice")
        found[field.removeprefix("--")] = values
    return found


def show_trials(result: Any) -> None:
    """Print the table of trials, best first."""
    from calibrant.audit.tables import add_row, plain_table

    columns, rows = result.cells()
    out.print(result.title, markup=False)
    table = plain_table("", columns[0], columns[1:])
    for row in rows:
        add_row(table, *row)
    out.print(table)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def _live(tuning: "Tuning") -> Iterator[None]:
    """A live table of the best trials so far and those that run."""
    from rich.live import Live

    start, ended = time.time(), list[int]()  # trials that had ended before
    with Live(get_renderable=lambda: _progress(tuning, start, ended), console=err, refresh_per_second=1, transient=True):
        yield


def _progress(tuning: "Tuning", start: float, before: list[int]) -> "Table":
    from calibrant.audit.tables import add_row, plain_table

    record = tuning.measure
    table = plain_table("", "trial", [d.field for d in tuning.space] + [record.label, ""])
    result = tuning.result_so_far()
    for trial in result.ranked()[:5] if result else []:
        options = [_text(trial.options.get(d.field, "")) for d in tuning.space]
        add_row(table, str(trial.number), *options, f"{record.scale * trial.score:.4g}", trial.state)
    for folder in list(tuning.state.started):
        options = [tuning.options_of.get(folder, {}).get(d.field, "") for d in tuning.space]
        add_row(table, folder.name, *options, "", f"epoch {folder.epochs_done()} of {tuning.recipe.epochs}")
    ended, seconds = len(result.trials) if result else 0, time.time() - start
    if result and not before:
        before.append(ended)
    done = ended - before[0] if before else 0
    left = f", about {seconds / done * (tuning.trials - ended) / 60:.0f} min left" if done and ended < tuning.trials else ""
    table.caption = f"{ended} of {tuning.trials} trials, {seconds:.0f} s{left}"
    return table
