"""``calibrant compare``: train methods x options x seeds and tabulate the results."""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, err, error, networks, out, progress, wrote
from calibrant.cli.fields import parse

if TYPE_CHECKING:
    from rich.table import Table

    from calibrant.study import Job, Study

EXAMPLE = """\
Trains every loss with every seed, each in its own run folder, and prints the mean and standard deviation over seeds, before
and after temperature scaling. Running the same command again keeps finished runs and resumes interrupted ones. Recipe fields
are overridden as in calibrant train.

example:
  calibrant compare digits-lt --losses ce mbls cals-alm --seeds 2 --epochs 20 --out runs/example
  calibrant compare digits-lt --losses ce fl mbls --set fl.gamma=3,5 mbls.margin=5,10 --seeds 1 --epochs 20 --out runs/grid
  calibrant compare digits-lt --losses ce adafocal --seeds 1 --epochs 20 --ood noise --out runs/beyond
"""
LOSSES = ["ce", "cals-alm"]


def parser() -> Parser:
    """Options of the command; recipe fields are parsed separately."""
    options = Parser(description="Compare losses.\n\n" + EXAMPLE)
    options.add_argument("recipe", metavar="RECIPE", help="Name of a built-in recipe, or a .yaml file.")
    options.option("--losses", nargs="+", metavar="KEY", default=LOSSES, help="Losses (see calibrant list losses), or all.")
    options.option(
        "--seeds",
        nargs="+",
        type=int,
        default=[3],
        help="One number: how many seeds. Several numbers: the seeds themselves.",
    )
    options.option(
        "--set",
        nargs="+",
        metavar="FIELD=VALUES",
        default=[],
        help="Fields to sweep: an option of one loss, such as fl.gamma=3,5; one that several losses share, such as "
        "loss.margin=5,10; or any other field, such as optimizer.lr=0.1,0.01.",
    )
    options.option(
        "--metrics", nargs="+", metavar="NAME", default=[], help="Table columns (see calibrant list metrics), or all."
    )
    options.option(
        "--ood", nargs="+", metavar="NAME", default=[], help="Out-of-distribution data to detect; see calibrant ood."
    )
    options.option("--shift", action="store_true", help="Also evaluate on corrupted test images; see calibrant shift.")
    options.option(
        "--validation",
        nargs="+",
        metavar="KIND",
        default=[],
        help="Validation sets to compare: clean, shifted (corrupted images), small (a tenth), noisy (a fifth of the labels "
        "wrong).",
    )
    options.option(
        "--posthoc", nargs="+", metavar="METHOD", default=["temperature"], help="Calibrators to fit after training."
    )
    options.option("--out", metavar="FOLDER", help="Study folder; runs/RECIPE if not given.")
    options.study_options()
    return options


def run(config: Any, fields: list[str]) -> None:
    """Train the missing runs and show the table."""
    from calibrant.errors import InputError

    study = make_study(config, fields)
    study.metrics([key for key in config.metrics if ":" not in key])
    posthoc = [] if config.posthoc == ["temperature"] else study.check_posthoc(config.posthoc)
    resources = parse_resources(config.resources)
    study.check_beyond(ood=config.ood, shift=config.shift)
    live = not config.quiet and err.is_terminal

    def tell(job: "Job") -> None:
        if not config.quiet and not live:
            err.print(study.line(job), markup=False)

    with _live(study) if live else contextlib.nullcontext():
        options = {"jobs": config.jobs, "threads": config.threads, "launcher": config.launcher}
        study.run(resources=resources, force=config.force, tell=tell, **options)
    for job in study.jobs:
        if job.folder in study.state.failed:
            error(f"{job.method}, seed {job.seed} failed: {study.state.failed[job.folder]}")
    problem = None
    try:
        if config.ood or config.shift:
            load = networks(study.recipe.data.root, allow_code=config.allow_code)
            with progress("OOD and corrupted data", len(study.finished)) as advance:
                study.measure_beyond(ood=config.ood, shift=config.shift, load=load, advance=advance)
    except (InputError, OSError) as found:  # still show the table
        problem = found
        study.more.clear()
    if posthoc:
        study.measure_posthoc(posthoc)
    result = study.save(config.metrics)
    _show(study, result)
    wrote(study.folder)
    if config.report:
        wrote(study.report())
    sys.stdout.flush()
    if problem is not None:
        raise problem


def make_study(config: Any, fields: list[str]) -> "Study":
    """The study that the options ask for."""
    from calibrant.errors import InputError
    from calibrant.study import Study

    overrides = parse(fields)
    losses = config.losses
    for name in ("loss", "loss.name"):
        if name in overrides:
            if losses != LOSSES:
                raise InputError(f"--{name} and --losses both name losses; pass only --losses")
            losses = [str(overrides.pop(name))]
    varied = parse_varied(config.set)
    if config.validation:
        varied["data.validation_set"] = config.validation
    seeds = config.seeds[0] if len(config.seeds) == 1 else config.seeds
    return Study(
        config.recipe,
        losses=losses,
        seeds=seeds,
        varied=varied,
        out=config.out,
        allow_code=config.allow_code,
        **overrides,
    )


def parse_varied(texts: list[str]) -> dict[str, list[Any]]:
    """``["loss.margin=5,10"]`` as fields and their values."""
    from calibrant.errors import InputError
    from calibrant.recipes.fields import parse_value

    found = {}
    for text in texts:
        field, equals, values = text.partition("=")
        if not equals or not field or not all(values.split(",")):
            raise InputError(f"--set takes FIELD=VALUE,VALUE, such as loss.margin=5,10,15; got {text!r}")
        found[field.removeprefix("--")] = [parse_value(part) for part in values.split(",")]
    return found


def parse_resources(texts: list[str]) -> dict[str, float]:
    """``["gpu=1"]`` as names and numbers."""
    from calibrant.errors import InputError

    try:
        return {name: float(number) for name, number in (text.split("=") for text in texts)}
    except ValueError as problem:
        raise InputError(f"--resources takes NAME=NUMBER, such as gpu=1; got {' '.join(texts)}") from problem


def _show(study: "Study", result: Any) -> None:
    """Print the table, split if the terminal is narrow, and the ECE after other calibrators."""
    from calibrant.audit.tables import add_row, plain_table
    from calibrant.study import StudyTable
    from calibrant.study.summary import mean_text

    for part in StudyTable(result).narrow(4 if out.width >= 130 else 2 if out.width >= 80 else 1):
        out.print(part)
    if study.posthoc:
        keys = list(next(iter(study.posthoc.values())))
        table = plain_table("ECE after calibration, %", "method", keys)
        for name, row in study.posthoc.items():
            add_row(table, name, *(mean_text(row[key]) for key in keys))
        out.print(table)


@contextlib.contextmanager
def _live(study: "Study") -> Iterator[None]:
    """A live table of running jobs, their progress and the results so far."""
    from rich.live import Live

    start = time.time()
    with Live(get_renderable=lambda: _progress(study, start), console=err, refresh_per_second=1, transient=True):
        yield


def _progress(study: "Study", start: float) -> "Table":
    from calibrant.audit.tables import add_row, plain_table

    seeds = sorted({job.seed for job in study.jobs})
    table = plain_table("", "method", [f"seed {seed}" for seed in seeds])
    by_place = {(job.method, job.seed): job for job in study.jobs}
    total = done = 0
    for method in dict.fromkeys(job.method for job in study.jobs):
        texts = []
        for seed in seeds:
            job = by_place.get((method, seed))
            if job is None:
                texts.append("")
                continue
            total += job.recipe.epochs
            if job.folder in study.state.done or job.folder in study.state.failed:
                texts.append(study.outcome(job))
                done += job.recipe.epochs
            else:
                epochs = job.folder.epochs_done()
                done += epochs
                running = epochs or job.folder in study.state.started
                texts.append(f"epoch {epochs} of {job.recipe.epochs}" if running else "waiting")
        add_row(table, method, *texts)
    passed = time.time() - start
    left = passed * (total - done) / done if done else 0
    table.caption = f"{done} of {total} epochs, {passed:.0f} s" + (f", about {left:.0f} s left" if done else "")
    return table
