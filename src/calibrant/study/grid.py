"""The cells of a study: methods x options x seeds."""

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibrant.losses import METHODS
from calibrant.train.recipe import Recipe

#: What fields are called in the names of methods.
SHORT = {"data.validation_set": "validation"}


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        method: What the row of the table is called.
        seed: Its seed.
        recipe: What is done.
        folder: Where it goes.
    """

    method: str
    seed: int
    recipe: Recipe
    folder: Path


def cells(
    read: Callable[[list[str]], Recipe],
    losses: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    options: Sequence[tuple[str, Sequence[str]]] = (),
) -> list[Cell]:
    """Every method with every combination of options and every seed.

    All methods of a seed come first, so that a study that is cut short still compares. An option of losses, such as
    ``loss.margin``, varies only those that have it.

    Args:
        read: Makes a recipe from fields of the command line.
        losses: Keys of losses.
        seeds: Seeds.
        folder: Folder of the study.
        options: Fields and their values, such as ``("loss.margin", ["5", "10"])``.
    """
    found: dict[Path, Cell] = {}
    for seed, loss in itertools.product(seeds, losses):
        known = inspect.signature(METHODS[loss].loss).parameters if loss in METHODS else {}
        own = [
            (f, v)
            for f, v in options
            if not f.startswith("loss.") or f.removeprefix("loss.") in known or loss not in METHODS
        ]
        for values in itertools.product(*(v for _, v in own)):
            chosen = list(zip([f for f, _ in own], values, strict=True))
            fields = [part for f, v in chosen for part in (f"--{f}", v)]
            label = ", ".join(f"{SHORT.get(f, f.removeprefix('loss.'))}={v}" for f, v in chosen)
            name = loss + (f" ({label})" if label else "")
            place = folder / f"{loss}{''.join(f',{part}' for part in label.split(', ') if part)}-seed{seed}"
            recipe = read(["--loss", loss, *fields, "--seed", str(seed)])
            found[place] = Cell(name, seed, recipe, place)
    return list(found.values())


def parse_options(texts: Sequence[str]) -> list[tuple[str, list[str]]]:
    """``["loss.margin=5,10"]`` as fields and their values.

    Raises:
        ValueError: If one is not FIELD=VALUE,VALUE.
    """
    found = []
    for text in texts:
        field, equals, values = text.partition("=")
        if not equals or not field or not all(values.split(",")):
            raise ValueError(f"--set takes FIELD=VALUE,VALUE, such as loss.margin=5,10,15; got {text!r}")
        found.append((field.removeprefix("--"), values.split(",")))
    return found
