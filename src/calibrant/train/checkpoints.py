"""Checkpoints: found, read without running code, and matched with their recipe."""

import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calibrant.errors import InputError, input_errors
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
    if say and folder.trained:
        warnings.warn(f"{folder} has no usable checkpoint; training starts over", UserWarning, stacklevel=3)
    return None


def load_checkpoint(path: Path, recipe: Recipe) -> dict[str, Any]:
    """Read a checkpoint without running code.

    Raises:
        InputError: If it is truncated, damaged or not of this recipe.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # checks what torch.load does not: the checksums that torch.save wrote
        content = {} if damaged else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(f"{path} cannot be read; it may be truncated ({type(error).__name__})") from error
    if damaged:
        raise InputError(f"{path} is damaged: its checksum does not match")
    found: dict[str, Any] = content if isinstance(content, dict) else {}
    mark = found.get("calibrant")
    if not isinstance(mark, dict) or mark.get("format") != FORMAT or not isinstance(mark.get("recipe"), dict):
        raise InputError(f"{path} is not a calibrant checkpoint")
    difference = Recipe.load(mark["recipe"]).difference(recipe)
    if difference:
        raise InputError(f"{path} belongs to another recipe ({difference})")
    return found


def load_weights(recipe: Recipe, folder: RunFolder, network: nn.Module) -> int:
    """Load the weights of the reported checkpoint into a network, and return its epoch."""
    path = folder.checkpoint("last") if recipe.select == "last" else folder.checkpoint("best")
    content = load_checkpoint(path, recipe)
    with input_errors(f"{path} does not fit the network of its recipe", unfit=True):
        weights = {k.removeprefix("network."): v for k, v in content["state_dict"].items() if k.startswith("network.")}
        network.load_state_dict(weights)
        return int(content["epoch"])
