"""The runs of a study: recipes x losses x options x seeds."""

import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.errors import InputError
from calibrant.files import file_name
from calibrant.losses import METHODS
from calibrant.recipes import Recipe
from calibrant.runs import RunFolder, StudyFolder

#: Short names of fields in the names of methods.
SHORT = {"data.validation_set": "validation"}


@dataclass(frozen=True)
class Job:
    """One run of a study.

    Attributes:
        method: Name of its row in the table.
        seed: Its seed.
        recipe: Its recipe.
        folder: Its folder.
    """

    method: str
    seed: int
    recipe: Recipe
    folder: RunFolder


def plan(
    recipes: Sequence[Recipe],
    losses: Sequence[str],
    seeds: Sequence[int],
    folder: str | Path | StudyFolder,
    varied: Mapping[str, Sequence[Any]] | None = None,
) -> list[Job]:
    """Every recipe and loss with every combination of options and every seed.

    Jobs are ordered by seed, so that a study that is cut short can still compare methods. A loss option such as
    ``loss.margin`` varies only the losses that have it.

    Args:
        recipes: Recipes; if there are several, method names start with the recipe's.
        losses: Keys of losses.
        seeds: Seeds.
        folder: Folder of the study.
        varied: Fields and their values, such as ``{"loss.margin": [5, 10]}``.
    """
    study, found = StudyFolder(folder), dict[RunFolder, Job]()
    for seed, recipe, loss in itertools.product(seeds, recipes, losses):
        own = {field: values for field, values in (varied or {}).items() if _concerns(field, loss)}
        for values in itertools.product(*own.values()):
            chosen = dict(zip(own, values, strict=True))
            words = [f"{SHORT.get(f, f.removeprefix('loss.'))}={_text(v)}" for f, v in chosen.items()]
            several = [recipe.name] if len(recipes) > 1 else []
            name = ": ".join([*several, loss]) + (f" ({', '.join(words)})" if words else "")
            place = study.run(file_name("-".join([*several, ",".join([loss, *words]), f"seed{seed}"])))
            own_recipe = Recipe.load(recipe, **{"loss.name": loss, **chosen, "seed": seed})
            found[place] = Job(name, seed, own_recipe, place)
    return list(found.values())


def _concerns(field: str, loss: str) -> bool:
    option = field.removeprefix("loss.")
    return not field.startswith("loss.") or loss not in METHODS or option in inspect.signature(METHODS[loss].loss).parameters


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def seeds_of(seeds: int | Sequence[int]) -> list[int]:
    """The given number of seeds, from 0, or the given seeds.

    Raises:
        InputError: If there are none, or duplicates.
    """
    found = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not found or len(set(found)) < len(found):
        raise InputError("`seeds` must be a number of at least 1, or several different seeds")
    return found
