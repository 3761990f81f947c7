"""``calibrant train``: from a recipe to a run folder."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, out, wrote

if TYPE_CHECKING:
    from calibrant.train import Recipe, Run

EXAMPLE = """\
The recipe is one that calibrant ships (calibrant list recipes) or a .yaml of your own; every field can be overridden. The
run folder holds the resolved recipe, checkpoints, the history of every epoch, predictions and metrics. The same command
again goes on where it was interrupted.

example:
  calibrant train digits-lt --loss cals-alm --epochs 3 --out runs/try
  calibrant train digits-lt --loss mbls --loss.margin 6 --optimizer.lr 1e-3 --trainer.gradient_clip_val 2 --dry-run

fields of a recipe:
  --loss KEY, --loss.OPTION VALUE             the loss and its hyper-parameters, such as --loss.margin 6
  --model NAME, --model.OPTION VALUE          the network and its options, such as --model.width 32
  --data NAME, --data.root, --data.path, --data.validation, --data.long_tail.ratio, --data.limit, ...
  --optimizer NAME, --optimizer.lr, --optimizer.momentum, --optimizer.weight_decay, ...
  --schedule NAME, --schedule.milestones, --schedule.warmup, ...
  --epochs, --batch_size, --augmentation, --select, --seed, --validate_every, --num_bins, ...
  --trainer.OPTION VALUE                      any option of lightning.Trainer, such as --trainer.devices 2
"""

#: Groups whose name may be given as --GROUP NAME, and whose unknown fields are options of what is named.
GROUPS = {
    "loss": ("name", "options"),
    "model": ("name", "options", "compile"),
    "data": None,
    "optimizer": None,
    "schedule": None,
}
#: How infinity is written, and how YAML wants it.
INFINITE = {"inf": ".inf", "-inf": "-.inf"}


def parser() -> Parser:
    """Options of the command; fields of the recipe are parsed by themselves."""
    options = Parser(description="Train a calibrated classifier.\n\n" + EXAMPLE)
    options.add_argument("recipe", metavar="RECIPE", help="Name of a shipped recipe, or a .yaml.")
    options.option("--out", metavar="FOLDER", help="Where the run goes; runs/RECIPE/LOSS-seedN if not given.")
    options.option("--dry-run", action="store_true", help="Resolve everything, run two batches, estimate the time.")
    options.training_options()
    return options


def run(config: Any, fields: list[str]) -> None:
    """Train and show what came out."""
    from calibrant import train

    recipe = read_recipe(config.recipe, fields)
    recipe.name = recipe.name if recipe.name != "run" else Path(config.recipe).stem
    refuse(recipe, allow_code=config.allow_code)
    if config.dry_run:
        show_dry_run(recipe, train.dry_run(recipe, allow_code=config.allow_code))
        return
    folder = Path(config.out) if config.out else Path("runs") / recipe.name / f"{recipe.loss.name}-seed{recipe.seed}"
    done = guarded(recipe, folder, force=config.force, quiet=config.quiet, allow_code=config.allow_code)
    if done is not None:
        show(done)


def guarded(recipe: "Recipe", folder: Path, **options: Any) -> "Run | None":
    """Train; what goes wrong on the way becomes a sentence."""
    from calibrant import train
    from calibrant.predictions import InputError

    try:
        return train.fit(recipe, folder, **options)
    except train.DivergedError as error:
        raise InputError(f"{error}; the last good checkpoint stays in {folder / 'checkpoints'}") from error


def read_recipe(name: str, fields: list[str]) -> "Recipe":
    """A recipe with fields from the command line."""
    import jsonargparse

    from calibrant.predictions import InputError
    from calibrant.train.recipe import Recipe, find_recipe

    reader: Any = jsonargparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    reader.add_argument("--config", action=jsonargparse.ActionConfigFile)  # type: ignore[attr-defined]
    reader.add_class_arguments(Recipe, None)
    try:
        parsed = reader.parse_args(["--config", str(find_recipe(name)), *expand(fields)])
        parsed.pop("config", None)
        values = reader.instantiate(parsed) if hasattr(reader, "instantiate") else reader.instantiate_classes(parsed)
        return Recipe(**{field.name: values[field.name] for field in dataclasses.fields(Recipe)})
    except FileNotFoundError as error:
        raise InputError(str(error)) from error
    except Exception as error:
        message = " ".join(str(error).split())
        raise InputError(f"recipe {name}: {message}") from error


def refuse(recipe: "Recipe", *, allow_code: bool) -> None:
    """Check a recipe before anything is done."""
    from calibrant.predictions import InputError

    try:
        recipe.check(allow_code=allow_code)
    except (ValueError, TypeError) as error:
        raise InputError(f"recipe {recipe.name}: {error}") from error


def expand(fields: list[str]) -> list[str]:
    """Short forms: --loss KEY is --loss.name KEY, --loss.margin 6 is --loss.options.margin 6."""
    found = []
    for field in fields:
        head, equals, value = field.partition("=")
        group, _, rest = head.removeprefix("--").partition(".")
        if head.startswith("--") and group in GROUPS:
            own = GROUPS[group]
            if not rest:
                head = f"--{group}.name"
            elif own is not None and rest.split(".")[0] not in own:
                head = f"--{group}.options.{rest}"
        found.append(head + equals + INFINITE.get(value, value) if equals else INFINITE.get(head, head))
    return found


def show_dry_run(recipe: "Recipe", found: dict[str, Any]) -> None:
    """What would happen."""
    parts = ", ".join(f"{found[part]:,} {part}" for part in ("train", "validation", "test"))
    out.print(f"{recipe.name}: {parts} samples of {found['classes']} classes", markup=False)
    out.print(f"{recipe.model.name}: {found['parameters']:,} parameters; loss {recipe.loss.name}", markup=False)
    hours = found["hours"]
    time = (
        f"{hours:.1f} hours"
        if hours >= 1
        else f"{60 * hours:.0f} minutes"
        if hours > 1 / 60
        else f"{3600 * hours:.0f} seconds"
    )
    out.print(
        f"{recipe.epochs} epochs of {found['batches']:,} batches of {recipe.batch_size}: about {time} on this machine "
        f"({1000 * found['seconds_per_batch']:.0f} ms a batch)"
    )


def show(done: "Run") -> None:
    """The final table."""
    from calibrant.audit import run_table

    out.print(run_table(done.metrics))
    wrote(done.folder)
    sys.stdout.flush()
