"""``calibrant train``: from a recipe to a run folder."""

import sys
from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, out, wrote
from calibrant.cli.fields import parse

if TYPE_CHECKING:
    from calibrant.recipes import Recipe

EXAMPLE = """\
The recipe is a built-in one (see calibrant list recipes) or your own .yaml; every field can be overridden. The run folder
holds the resolved recipe, checkpoints, the history of every epoch, predictions and metrics. Running the same command again
resumes an interrupted run.

example:
  calibrant train digits-lt --loss cals-alm --epochs 20 --out runs/try
  calibrant train digits-lt --loss mbls --loss.margin 6 --optimizer.lr 1e-3 --trainer.gradient_clip_val 2 --dry-run

recipe fields:
  --loss KEY, --loss.OPTION VALUE             the loss and its hyper-parameters, such as --loss.margin 6
  --KEY.OPTION VALUE                          hyper-parameters of one loss in calibrant compare, such as --fl.gamma 5
  --model NAME, --model.OPTION VALUE          the network and its options, such as --model.width 32
  --data NAME, --data.root, --data.path, --data.validation, --data.long_tail.ratio, --data.limit, ...
  --optimizer NAME, --optimizer.lr, --optimizer.momentum, --optimizer.betas [0.9,0.95], --optimizer.weight_decay, ...
  --schedule NAME, --schedule.milestones, --schedule.warmup, ...
  --epochs, --batch_size, --augmentation, --select, --seed, --num_bins, ...
  --curves test                               also evaluate on the test set at every validation, for curves only
  --temperature nll | ece                     what temperature scaling minimises on the validation set
  --validate_every EPOCHS                     validate, and let adaptive losses adapt, every EPOCHS epochs; 0.25 is four
                                              times per epoch
  --trainer.OPTION VALUE                      any option of lightning.Trainer, such as --trainer.devices 2
"""


def parser() -> Parser:
    """Options of the command; recipe fields are parsed separately."""
    options = Parser(description="Train a classifier from a recipe.\n\n" + EXAMPLE)
    options.add_argument("recipe", metavar="RECIPE", help="Name of a built-in recipe, or a .yaml file.")
    options.option("--out", metavar="FOLDER", help="Run folder; runs/RECIPE/LOSS-seedN if not given.")
    options.option("--dry-run", action="store_true", help="Check the recipe, run two batches, estimate the training time.")
    options.training_options()
    return options


def run(config: Any, fields: list[str]) -> None:
    """Train and show the results."""
    from calibrant.errors import InputError, input_errors
    from calibrant.recipes import Recipe
    from calibrant.runs import RunFolder

    recipe = Recipe.load(config.recipe, **parse(fields))
    with input_errors(f"recipe {recipe.name}"):
        recipe.check(allow_code=config.allow_code)
    from calibrant import train

    with input_errors(f"recipe {recipe.name}"):
        train.check(recipe, allow_code=config.allow_code)
    if config.dry_run:
        show_dry_run(recipe, train.dry_run(recipe, allow_code=config.allow_code))
        return
    folder = RunFolder(config.out) if config.out else RunFolder.usual(recipe)
    options = {"force": config.force, "quiet": config.quiet, "allow_code": config.allow_code, "threads": config.threads}
    try:
        done = train.fit(recipe, folder, **options)
    except train.DivergedError as error:
        raise InputError(f"{error}; the last good checkpoint is kept in {folder}") from error
    if done is not None:
        out.print(done.result)
        wrote(done.folder)
        sys.stdout.flush()


def show_dry_run(recipe: "Recipe", found: dict[str, Any]) -> None:
    """Show what a dry run found."""
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
        f"({1000 * found['seconds_per_batch']:.0f} ms per batch)"
    )
