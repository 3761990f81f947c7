"""``calibrant list``: what there is."""

from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, out

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLE = """\
example:
  calibrant list recipes
  calibrant list losses
"""
WHAT = ("recipes", "losses", "calibrators", "metrics", "models", "data")


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Show what calibrant knows by name.\n\n" + EXAMPLE)
    options.add_argument("what", metavar="WHAT", help=f"One of {', '.join(WHAT)}.")
    options.option(
        "--data.root", metavar="PATH", help="Where recipes look for data; the variable CALIBRANT_DATA if not given."
    )
    return options


def run(config: Any) -> None:
    """Print a table."""
    from calibrant.predictions import InputError

    if config.what not in WHAT:
        raise InputError(f"calibrant list knows {', '.join(WHAT)}; got {config.what}")
    out.print(globals()[f"_{config.what}"](config))


def _table(*columns: str) -> "Table":
    from rich import box
    from rich.table import Table

    return Table(*columns, box=box.SIMPLE_HEAD)


def _recipes(config: Any) -> "Table":
    from calibrant.cli.train import read_recipe
    from calibrant.train import shipped

    table = _table("recipe", "data", "network", "job", "data is there")
    for name in shipped():
        recipe = read_recipe(name, [] if config.data.root is None else ["--data.root", config.data.root])
        job = f"{recipe.epochs} epochs, batch {recipe.batch_size}"
        table.add_row(name, recipe.data.name, recipe.model.name, job, "yes" if _there(recipe) else "no")
    return table


def _there(recipe: Any) -> bool:
    """Whether a recipe's data can be found, without reading it."""
    from calibrant.data import data_root

    places = {
        "mnist": "MNIST/raw",
        "fashion-mnist": "FashionMNIST/raw",
        "cifar10": "cifar-10-batches-py",
        "cifar100": "cifar-100-python",
        "svhn": "train_32x32.mat",
        "tiny-imagenet": "tiny-imagenet-200/train",
        "imagenet": "imagenet/val",
        "imagenet-lt": "imagenet/ImageNet_LT_train.txt",
        "newsgroups20": "20_newsgroups|20news-bydate-train|20news-18828",
    }
    name, root = recipe.data.name, data_root(recipe.data.root)
    return name == "digits" or any((root / p).exists() for p in (places.get(name) or recipe.data.path or "-").split("|"))


def _losses(config: Any) -> "Table":
    del config
    from calibrant.losses import METHODS

    return _methods("loss", "learns on validation data", [(m.key, m.title, m.paper, m.adaptive) for m in METHODS.values()])


def _calibrators(config: Any) -> "Table":
    del config
    from calibrant.posthoc import METHODS

    rows = [(m.key, m.title, m.paper, m.preserves_accuracy) for m in METHODS.values()]
    return _methods("calibrator", "keeps the predicted class", rows)


def _methods(kind: str, question: str, rows: list[tuple[str, str, str, bool]]) -> "Table":
    table = _table("key", kind, "paper", question)
    for *texts, answer in rows:
        table.add_row(*map(str, texts), "yes" if answer else "")
    return table


def _metrics(config: Any) -> "Table":
    del config
    from calibrant import metrics

    table = _table("function", "what it measures")
    for name in metrics.__all__:
        item = getattr(metrics, name)
        if callable(item) and name.islower() and name != "class_groups":
            table.add_row(name, (item.__doc__ or "").strip().splitlines()[0])
    return table


def _models(config: Any) -> "Table":
    del config
    from calibrant.models import MODELS

    table = _table("name", "network")
    for name, function in MODELS.items():
        table.add_row(name, (function.__doc__ or "").strip().splitlines()[0])
    table.add_row("timm:NAME", "Any image network of timm.")
    table.add_row(
        "smp:NAME", "Any architecture of segmentation_models_pytorch, such as smp:DeepLabV3 --model.encoder resnet50."
    )
    return table


def _data(config: Any) -> "Table":
    del config
    from functools import partial

    from calibrant.data import DATA

    table = _table("name", "data set")
    for name, function in DATA.items():
        plain = function.func if isinstance(function, partial) else function
        about = (plain.__doc__ or "").strip().splitlines()[0]
        table.add_row(name, f"{name}, through torchvision." if isinstance(function, partial) else about)
    return table
