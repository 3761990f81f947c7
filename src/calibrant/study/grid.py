"""The cells of a study."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from calibrant.train.recipe import Recipe


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


def cells(recipe: Recipe, losses: Sequence[str], seeds: Sequence[int], folder: Path) -> list[Cell]:
    """Every method with every seed; all methods of a seed first, so that a study cut short still compares."""
    found = []
    for seed in seeds:
        for loss in losses:
            own = deepcopy(recipe)
            own.loss.name, own.seed = loss, seed
            found.append(Cell(loss, seed, own, folder / f"{loss}-seed{seed}"))
    return found
