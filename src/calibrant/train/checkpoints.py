"""Checkpoints: found, read without running code, and matched with their recipe."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calibrant.errors import InputError
from calibrant.recipes import Recipe
from calibrant.runs import RunFolder
from calibrant.train.engine import FORMAT


def newest_checkpoint(folder: RunFolder, recipe: Recipe, *, say: bool = True) -> Path | None:
    """The newest complete checkpoint of this run; others are skipped with a warning."""
    for name in ("last", "previous"):
        path = folder.checkpoint(name)
        if not path.exists():
            continue
        try:
            load_checkpoint(path, recipe)
        except InputError as error:
            if say:
                warnings.warn(f"{error}; it is skipped", UserWarning, stacklevel=3)
            continue
        return path
    return None


def load_checkpoint(path: Path, recipe: Recipe) -> dict[str, Any]:
    """Read a checkpoint without running code.

    Raises:
        InputError: If it is truncated, or not one of this recipe.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(f"{path} cannot be read; it may be truncated ({type(error).__name__})") from error
    mark = content.get("calibrant") if isinstance(content, dict) else None
    if not isinstance(mark, dict) or mark.get("format") != FORMAT:
        raise InputError(f"{path} is not a calibrant checkpoint")
    difference = Recipe.load(mark["recipe"]).difference(recipe)
    if difference:
        raise InputError(f"{path} belongs to another recipe ({difference})")
    return content


def load_weights(recipe: Recipe, folder: RunFolder, network: nn.Module) -> int:
    """Load the weights of the reported checkpoint into a network, and return its epoch."""
    best = folder.checkpoint("best")
    content = load_checkpoint(best if recipe.select != "last" and best.exists() else folder.checkpoint("last"), recipe)
    weights = {k.removeprefix("network."): v for k, v in content["state_dict"].items() if k.startswith("network.")}
    network.load_state_dict(weights)
    return int(content["epoch"])
