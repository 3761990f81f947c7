"""``calibrant compare``: methods x seeds, and the table that comes out."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, err, error, out, wrote
from calibrant.cli.train import guarded, read_recipe, refuse

if TYPE_CHECKING:
    from calibrant.study import Cell

EXAMPLE = """\
Trains every method with every seed, each in a run folder of its own, and prints mean and standard deviation over seeds,
before and after temperature scaling. Finished runs are kept and interrupted ones go on when the same command is called
again; fields of the recipe are overridden as in calibrant train.

example:
  calibrant compare digits-lt --losses ce mbls cals-alm --seeds 2 --epochs 3 --out runs/example
"""


def parser() -> Parser:
    """Options of the command; fields of the recipe are parsed by themselves."""
    options = Parser(description="Compare losses.\n\n" + EXAMPLE)
    options.add_argument("recipe", metavar="RECIPE", help="Name of a shipped recipe, or a .yaml.")
    options.option("--losses", nargs="+", metavar="KEY", default=["ce", "cals-alm"], help="Losses to compare.")
    options.option("--seeds", nargs="+", type=int, default=[3], help="Number of seeds, or several seeds by number.")
    options.option("--out", metavar="FOLDER", help="Where the study goes; runs/RECIPE if not given.")
    options.option("--quiet", action="store_true", help="No progress bars.")
    options.option("--force", action="store_true", help="Train everything again.")
    options.option("--allow-code", action="store_true", help="Let the recipe name code outside calibrant.")
    return options


def run(config: Any, fields: list[str]) -> None:
    """Train what is missing, and show the table."""
    from calibrant import study
    from calibrant.predictions import InputError, replacing

    recipe = read_recipe(config.recipe, fields)
    recipe.name = recipe.name if recipe.name != "run" else Path(config.recipe).stem
    seeds = list(range(config.seeds[0])) if len(config.seeds) == 1 else config.seeds
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError("--seeds must be a number of at least 1, or several different seeds")
    folder = Path(config.out) if config.out else Path("runs") / recipe.name
    grid = study.cells(recipe, list(dict.fromkeys(config.losses)), seeds, folder)
    for cell in grid:
        refuse(cell.recipe, allow_code=config.allow_code)
    runs: dict[str, list[Any]] = {cell.method: [] for cell in grid}
    failed: list[tuple[Cell, str]] = []
    for number, cell in enumerate(grid):
        if not config.quiet:
            err.print(f"{cell.method}, seed {cell.seed} ({number + 1} of {len(grid)})", style="dim")
        done = _train(cell, config, failed)
        if done is not None:
            runs[cell.method].append(done)
    rows = study.summarise(runs)
    if not rows:
        raise InputError(f"no run of {folder} came to an end")
    test = next(iter(next(iter(filter(None, runs.values())))))["test"]
    title = (
        f"{recipe.name}: {test['samples']:,} test samples, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}, "
        f"{recipe.epochs} epochs, {recipe.num_bins} bins"
    )
    out.print(study.table_rich(rows, title))
    for name, text in (("table.md", study.table_markdown(rows, title)), ("table.csv", study.table_csv(rows))):
        with replacing(folder / name, force=True) as temporary:
            temporary.write_text(text)
    wrote(folder)
    for cell, problem in failed:
        error(f"{cell.method}, seed {cell.seed} failed: {problem}")
    sys.stdout.flush()


def _train(cell: "Cell", config: Any, failed: "list[tuple[Cell, str]]") -> dict[str, Any] | None:
    """Metrics of a cell; one that fails does not stop the others."""
    from calibrant.data import MissingDataError
    from calibrant.predictions import InputError

    try:
        done = guarded(cell.recipe, cell.folder, force=config.force, quiet=config.quiet, allow_code=config.allow_code)
    except MissingDataError:
        raise
    except InputError as problem:
        failed.append((cell, str(problem)))
        return None
    return None if done is None else done.metrics
