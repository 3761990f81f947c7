"""``calibrant list``: everything that has a name."""

from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, out

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLE = """\
example:
  calibrant list
  calibrant list losses
"""
#: What can be listed, and what it is for.
KINDS = {
    "recipes": "training recipes, including those of the CALS, MbLS and AdaFocal papers: calibrant train NAME",
    "losses": "training losses: calibrant train RECIPE --loss KEY",
    "calibrators": "post-hoc calibrators: calibrant calibrate ... --method KEY",
    "metrics": "metrics of calibration and accuracy: calibrant compare RECIPE --metrics KEY",
    "models": "networks: calibrant train RECIPE --model NAME",
    "data": "data sets: calibrant train RECIPE --data NAME",
    "corruptions": "corruptions of test images: calibrant shift RUN --corruptions NAME",
}


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="List what recipes and commands can refer to by name.\n\n" + EXAMPLE)
    options.add_argument("what", metavar="WHAT", nargs="?", help=f"One of {', '.join(KINDS)}; an overview if not given.")
    options.option(
        "--data.root", metavar="FOLDER", help="Data folder; the environment variable CALIBRANT_DATA if not given."
    )
    return options


def run(config: Any) -> None:
    """Print a table."""
    from calibrant.errors import lookup

    if config.what is None:
        out.print(_overview(), markup=False)
        return
    lookup(config.what, KINDS, "WHAT")
    out.print(globals()[f"_{config.what}"](config.data.root), markup=False)  # brackets in texts are not markup


def _table(*columns: str) -> "Table":
    from rich import box
    from rich.table import Table

    return Table(*columns, box=box.SIMPLE_HEAD)


def _overview() -> "Table":
    table = _table("list", "", "use")
    for kind, purpose in KINDS.items():
        table.add_row(kind, str(globals()[f"_{kind}"](None).row_count), purpose)
    return table


def _recipes(root: str | None) -> "Table":
    from calibrant.recipes import RECIPES

    table = _table("recipe", "data", "network", "training", "data found")
    for name, entry in RECIPES.items():
        recipe = entry.load()
        job = f"{recipe.epochs} epochs, batch {recipe.batch_size}"
        table.add_row(name, recipe.data.name, recipe.model.name, job, "yes" if _there(recipe, root) else "no")
    return table


def _there(recipe: Any, root: str | None) -> bool:
    """Whether a recipe's data can be found, without reading it."""
    from calibrant.data.places import data_root
    from calibrant.data.table import DATA

    place, spec = data_root(root or recipe.data.root), DATA[recipe.data.name]
    places = [recipe.data.path] if recipe.data.path else spec.places
    return not places or any((place / name).exists() for name in places)


def _losses(root: str | None) -> "Table":
    del root
    from calibrant.losses import METHODS

    rows = [(m.key, m.title, m.paper, m.adaptive) for m in METHODS.values()]
    return _methods("loss", "learns from validation data", rows)


def _calibrators(root: str | None) -> "Table":
    del root
    from calibrant.posthoc import CALIBRATORS

    rows = [(c.key, c.title, c.paper, c.preserves_accuracy) for c in CALIBRATORS.values()]
    return _methods("calibrator", "keeps the predicted class", rows)


def _methods(kind: str, question: str, rows: list[tuple[str, str, str, bool]]) -> "Table":
    table = _table("key", kind, "paper", question)
    for *texts, answer in rows:
        table.add_row(*map(str, texts), "yes" if answer else "")
    return table


def _metrics(root: str | None) -> "Table":
    del root
    from calibrant.metrics import MEASURES

    table = _table("key", "metric", "meaning", "better", "interval")
    for record in MEASURES.values():
        better = "higher" if record.higher else "lower"
        table.add_row(record.key, record.title, record.about, better, record.interval or "")
    return table


def _entries(table: Any, *more: tuple[str, str]) -> "Table":
    rows = _table("name", "description")
    for entry in table.values():
        rows.add_row(entry.key, entry.title)
    for row in more:
        rows.add_row(*row)
    return rows


def _models(root: str | None) -> "Table":
    del root
    from calibrant.models import MODELS

    return _entries(
        MODELS,
        ("timm:NAME", "any image classifier of timm"),
        ("smp:NAME", "any architecture of segmentation_models_pytorch, such as smp:DeepLabV3 --model.encoder resnet50"),
    )


def _data(root: str | None) -> "Table":
    del root
    from calibrant.data import DATA

    return _entries(DATA)


def _corruptions(root: str | None) -> "Table":
    del root
    from calibrant.data import CORRUPTIONS

    return _entries(CORRUPTIONS)
