"""``calibrant compare``: methods x options x seeds, and the tables that come out."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, err, error, networks, out, progress, wrote
from calibrant.cli.train import read_recipe, refuse

if TYPE_CHECKING:
    from rich.table import Table

    from calibrant.study import Cell, State, Summary
    from calibrant.train import Recipe

EXAMPLE = """\
Trains every method with every seed, each in a run folder of its own, and prints mean and standard deviation over seeds,
before and after temperature scaling. Finished runs are kept and interrupted ones go on when the same command is called
again; fields of the recipe are overridden as in calibrant train.

example:
  calibrant compare digits-lt --losses ce mbls cals-alm --seeds 2 --epochs 3 --out runs/example
  calibrant compare digits-lt --losses cals-alm --set loss.margin=5,10 --seeds 1 --epochs 2 --out runs/grid
  calibrant compare digits-lt --losses ce adafocal --seeds 1 --epochs 2 --ood noise --out runs/beyond
"""


def parser() -> Parser:
    """Options of the command; fields of the recipe are parsed by themselves."""
    options = Parser(description="Compare losses.\n\n" + EXAMPLE)
    options.add_argument("recipe", metavar="RECIPE", help="Name of a shipped recipe, or a .yaml.")
    options.option("--losses", nargs="+", metavar="KEY", default=["ce", "cals-alm"], help="Losses to compare; all for all.")
    options.option("--seeds", nargs="+", type=int, default=[3], help="Number of seeds, or several seeds by number.")
    options.option(
        "--set", nargs="+", metavar="FIELD=VALUES", default=[], help="Fields to vary, such as loss.margin=5,10,15."
    )
    options.option(
        "--metrics", nargs="+", metavar="NAME", default=[], help="Columns of the table; all for the papers' whole family."
    )
    options.option("--ood", nargs="+", metavar="NAME", default=[], help="Also tell unknown data apart; see calibrant ood.")
    options.option("--shift", action="store_true", help="Also measure on corrupted test images; see calibrant shift.")
    options.option(
        "--validation",
        nargs="+",
        metavar="KIND",
        default=[],
        help="Validation sets: clean, shifted (corrupted), small (a tenth) or noisy (a fifth of the labels wrong).",
    )
    options.option("--posthoc", nargs="+", metavar="METHOD", default=["temperature"], help="Calibrators after training.")
    options.option("--out", metavar="FOLDER", help="Where the study goes; runs/RECIPE if not given.")
    options.option("--jobs", type=int, default=1, help="Runs trained at once, the cores divided among them.")
    options.option("--launcher", default="local", help="local, or ray for a Ray cluster.")
    options.option("--resources", nargs="+", metavar="NAME=NUMBER", default=[], help="What a run needs of Ray: gpu=1 cpu=4.")
    options.option("--report", action="store_true", help="Also write report.html.")
    options.training_options()
    return options


def run(config: Any, fields: list[str]) -> None:
    """Train what is missing, and show the table."""
    from calibrant import study
    from calibrant.predictions import InputError

    cells = _cells(config, fields)
    recipe = cells[0].recipe
    folder = cells[0].folder.parent
    metrics = _metrics(config.metrics)
    state = study.State()
    options = {"jobs": config.jobs, "launcher": config.launcher, "resources": _resources(config.resources)}
    _check_beyond(config, recipe)
    live = not config.quiet and err.is_terminal
    options |= {"tell": lambda cell: None if config.quiet or live else _tell(cell, cells, state)}
    with _live(cells, state) if live else contextlib.nullcontext():
        study.execute(cells, state, **options, force=config.force, allow_code=config.allow_code)
    for cell in cells:
        if cell.folder in state.failed:
            error(f"{cell.method}, seed {cell.seed} failed: {state.failed[cell.folder]}")
    if not state.done:
        raise InputError(f"no run of {folder} came to an end")
    problem = None
    try:
        more = _beyond(config, [cell for cell in cells if cell.folder in state.done])
    except (InputError, OSError) as found:  # the table is not lost for it
        problem, more = found, {}
    metrics += tuple(next(iter(more.values()))["test"]) if more else ()
    everything = not study.COSTLY.isdisjoint(metrics)
    rows = study.summarise(cells, state.done, everything=everything, more=more or None)
    missing = [name for name in metrics if name not in rows[0].before]
    if missing and config.metrics not in ([], ["all"]):
        raise InputError(f"--metrics {missing[0]}: these runs do not have it")
    metrics = tuple(name for name in metrics if name not in missing)
    title = _title(recipe, cells, state)
    for part in _parts(metrics, out.width):
        out.print(study.table_rich(rows, title, part))
    _write(folder, rows, title, metrics, cells, state)
    if config.posthoc != ["temperature"]:
        _posthoc(config.posthoc, cells, state, folder)
    wrote(folder)
    if config.report:
        from calibrant.report import write_report

        write_report(folder / "report.html", [folder], force=True)
        wrote(folder / "report.html")
    sys.stdout.flush()
    if problem is not None:
        raise problem


def _cells(config: Any, fields: list[str]) -> "list[Cell]":
    from calibrant import study
    from calibrant.losses import METHODS
    from calibrant.predictions import InputError

    seeds = list(range(config.seeds[0])) if len(config.seeds) == 1 else config.seeds
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError("--seeds must be a number of at least 1, or several different seeds")
    if config.jobs < 1 or config.launcher not in ("local", "ray"):
        raise InputError(f"--jobs must be at least 1 and --launcher local or ray; got {config.jobs} and {config.launcher}")
    try:
        varied = study.parse_options(config.set)
        varied += [("data.validation_set", config.validation)] if config.validation else []
    except ValueError as problem:
        raise InputError(str(problem)) from problem
    losses = list(METHODS) if config.losses == ["all"] else list(dict.fromkeys(config.losses))

    def read(more: list[str]) -> "Recipe":
        recipe = read_recipe(config.recipe, [*fields, *more])
        recipe.name = recipe.name if recipe.name != "run" else Path(config.recipe).stem
        refuse(recipe, allow_code=config.allow_code)
        return recipe

    name = read([]).name
    folder = Path(config.out) if config.out else Path("runs") / name
    return study.cells(read, losses, seeds, folder, varied)


def _metrics(wanted: list[str]) -> tuple[str, ...]:
    from calibrant.audit import COLUMNS
    from calibrant.predictions import InputError
    from calibrant.study import USUAL

    if not wanted:
        return USUAL
    if wanted == ["all"]:
        return tuple(COLUMNS)
    for name in wanted:
        if name not in COLUMNS:
            raise InputError(f"--metrics {name} is not known; choose from {', '.join(COLUMNS)}, or say all")
    return tuple(wanted)


def _check_beyond(config: Any, recipe: "Recipe") -> None:
    """Find out what --ood and --shift lack before hours of training, not after."""
    if not config.ood and not config.shift:
        return
    from calibrant import data
    from calibrant.predictions import InputError, input_errors

    with input_errors():
        own = recipe.load_data(allow_code=config.allow_code)
        if config.shift and isinstance(own.test, data.Texts):
            raise InputError("--shift corrupts images; this recipe is of texts")
        for name in config.ood:
            data.unknown(name, own, root=recipe.data.root, size=recipe.data.size, limit=1)


def _beyond(config: Any, cells: "list[Cell]") -> dict[Path, dict[str, dict[str, float]]]:
    """What --ood and --shift find, before and after temperature scaling; kept in the run folders."""
    from calibrant.predictions import input_errors
    from calibrant.study import ood, shift

    if not config.ood and not config.shift:
        return {}
    found: dict[Path, dict[str, dict[str, float]]] = {}
    root = cells[0].recipe.data.root
    load = networks(root, allow_code=config.allow_code)
    with progress("unknown and corrupted data", len(cells)) as advance:
        for cell in cells:
            own: dict[str, dict[str, float]] = {"test": {}, "test_after_temperature": {}}
            with input_errors():
                for name in config.ood:
                    result = ood.detect(cell.folder, name, load=load, root=root)
                    for part, values in zip(("before", "after"), own.values(), strict=True):
                        values[f"auroc:{name}"] = result[part]["entropy"]["auroc"]
                if config.shift:
                    result = shift.measure_shift(cell.folder, load=load, root=root)
                    for part, values in zip(("before", "after"), own.values(), strict=True):
                        values |= {f"shift_{name}": shift.mean_of(result, part, name) for name in ("accuracy", "ece")}
            found[cell.folder] = own
            advance()
    return found


def _parts(metrics: tuple[str, ...], width: int) -> list[tuple[str, ...]]:
    """Wide tables are printed a few measures at a time, as many as fit."""
    most = 4 if width >= 130 else 2 if width >= 80 else 1
    return [metrics[i : i + most] for i in range(0, len(metrics), most)]


def _resources(texts: list[str]) -> dict[str, float]:
    from calibrant.predictions import InputError

    try:
        return {name: float(value) for name, value in (text.split("=") for text in texts)}
    except ValueError as problem:
        raise InputError(f"--resources takes NAME=NUMBER, such as gpu=1; got {' '.join(texts)}") from problem


def _title(recipe: "Recipe", cells: "list[Cell]", state: "State") -> str:
    test = next(iter(state.done.values()))["test"]
    seeds = len({cell.seed for cell in cells})
    return (
        f"{recipe.name}: {test['samples']:,} test samples, {seeds} seed{'s' if seeds > 1 else ''}, "
        f"{recipe.epochs} epoch{'s' if recipe.epochs > 1 else ''}, {recipe.num_bins} bins"
    )


def _write(
    folder: Path, rows: "list[Summary]", title: str, metrics: tuple[str, ...], cells: "list[Cell]", state: "State"
) -> None:
    """Tables, the bar figure and study.json; made from the runs, so they are replaced."""
    from calibrant import study
    from calibrant.plots import MethodBars
    from calibrant.predictions import replacing

    content = {
        "title": title,
        "recipe": cells[0].recipe.name,
        "metrics": list(metrics),
        "methods": list(dict.fromkeys(cell.method for cell in cells)),
        "cells": [
            {
                "method": cell.method,
                "seed": cell.seed,
                "folder": cell.folder.name,
                "state": "done" if cell.folder in state.done else "failed",
                "problem": state.failed.get(cell.folder, ""),
            }
            for cell in cells
        ],
        "summaries": [row.to_dict() for row in rows],
    }
    texts = {
        "table.md": study.table_markdown(rows, title, metrics),
        "table.tex": study.table_latex(rows, title, metrics),
        "table.csv": study.table_csv(rows),
        "study.json": json.dumps(content, indent=1),
    }
    for name, text in texts.items():
        with replacing(folder / name, force=True) as temporary:
            temporary.write_text(text)
    bars = {name: [list(row.before[name]) for row in rows] for name in metrics if name in rows[0].before}
    with replacing(folder / "bars.png", force=True) as temporary:
        MethodBars([row.method for row in rows], bars).save(temporary)


def _posthoc(methods: list[str], cells: "list[Cell]", state: "State", folder: Path) -> None:
    """ECE after other calibrators, fitted on each run's validation predictions."""
    import statistics

    from rich import box
    from rich.table import Table

    from calibrant.metrics import ece
    from calibrant.posthoc import METHODS
    from calibrant.predictions import InputError, open_predictions, replacing

    unknown = [method for method in methods if method not in METHODS]
    if unknown:
        raise InputError(f"--posthoc {unknown[0]} is not known; choose from {', '.join(METHODS)}")
    found: dict[str, dict[str, list[float]]] = {}
    for cell in cells:
        if cell.folder not in state.done:
            continue
        (fit_z, fit_y), (z, y) = (open_predictions(cell.folder, part=part).load() for part in ("validation", "test"))
        for method in methods:
            value = float(ece(METHODS[method]().fit(fit_z, fit_y).transform(z), y, cell.recipe.num_bins))
            found.setdefault(cell.method, {}).setdefault(method, []).append(value)
    table = Table("method", *methods, title="ECE after calibration, %", title_justify="left", box=box.SIMPLE_HEAD)
    for name, row in found.items():
        cells_ = [f"{100 * statistics.mean(row[m]):.2f}" for m in methods]
        table.add_row(name, *cells_)
    out.print(table)
    with replacing(folder / "posthoc.json", force=True) as temporary:
        temporary.write_text(json.dumps(found, indent=1))


def _tell(cell: "Cell", cells: "list[Cell]", state: "State") -> None:
    """A line per run, where there is no terminal for a live table."""
    ended = f"{len(state.done) + len(state.failed)} of {len(cells)}"
    err.print(f"{cell.method}, seed {cell.seed}: {_result(cell, state)} ({ended})", markup=False)


def _result(cell: "Cell", state: "State") -> str:
    if cell.folder not in state.done:
        return "failed"
    test = state.done[cell.folder]["test"]
    return f"ECE {100 * test['ece']:.2f}, accuracy {100 * test['accuracy']:.1f}"


@contextlib.contextmanager
def _live(cells: "list[Cell]", state: "State") -> Iterator[None]:
    """A table that shows what runs, how far, and results so far."""
    from rich.live import Live

    start = time.time()
    with Live(get_renderable=lambda: _progress(cells, state, start), console=err, refresh_per_second=1, transient=True):
        yield


def _progress(cells: "list[Cell]", state: "State", start: float) -> "Table":
    from rich import box
    from rich.table import Table

    from calibrant.study import epochs_done

    seeds = sorted({cell.seed for cell in cells})
    table = Table("method", *(f"seed {seed}" for seed in seeds), box=box.SIMPLE_HEAD)
    by_place = {(cell.method, cell.seed): cell for cell in cells}
    total = done = 0
    for method in dict.fromkeys(cell.method for cell in cells):
        texts = []
        for seed in seeds:
            cell = by_place.get((method, seed))
            if cell is None:
                texts.append("")
                continue
            total += cell.recipe.epochs
            if cell.folder in state.done or cell.folder in state.failed:
                texts.append(_result(cell, state))
                done += cell.recipe.epochs
            else:
                epochs = epochs_done(cell.folder)
                done += epochs
                texts.append(
                    f"epoch {epochs} of {cell.recipe.epochs}" if epochs or cell.folder in state.started else "waits"
                )
        table.add_row(method, *texts)
    passed = time.time() - start
    left = passed * (total - done) / done if done else 0
    table.caption = f"{done} of {total} epochs, {passed:.0f} s" + (f", about {left:.0f} s left" if done else "")
    return table
