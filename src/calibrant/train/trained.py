"""A finished run's network, to predict what it has not seen."""

from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import torch

from calibrant.data import MissingDataError
from calibrant.predictions import InputError, input_errors
from calibrant.train.fit import Run, load, load_weights, same_data
from calibrant.train.predictor import Predictor
from calibrant.train.recipe import Recipe

T = TypeVar("T")


@dataclass(frozen=True)
class Trained(Predictor):
    """A network as its run left it.

    Attributes:
        run: The run.
    """

    run: Run

    @staticmethod
    def load(folder: str | Path, *, root: str | None = None, allow_code: bool = False) -> "Trained":
        """Read a run folder and the data it was trained on.

        Args:
            folder: The run.
            root: Where its data is now, if not where it was.
            allow_code: Let the recipe name code outside calibrant.

        Raises:
            InputError: If it is not a finished run, its checkpoint is broken, or the data are not those of the run.
        """
        run = Run.load(folder)
        recipe = from_dict(Recipe, run.recipe)
        if root is not None:
            recipe = replace(recipe, data=replace(recipe.data, root=root))
        options = {name: value for name, value in recipe.model.options.items() if name != "pretrained"}  # it has weights
        bare = replace(recipe, model=replace(recipe.model, compile=False, options=options))
        try:
            with input_errors(str(run.folder)):
                recipe.check(allow_code=allow_code)
                data, network, _ = load(bare, allow_code=allow_code)
        except MissingDataError as error:
            raise MissingDataError(f"{error}; if the data of {run.folder} is elsewhere now, say --data.root") from error
        same_data(run.folder, data)
        try:
            with input_errors():
                load_weights(recipe, run.folder, network)
        except RuntimeError as error:
            raise InputError(f"{run.folder}: {error}") from error
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return Trained(recipe, data, network.to(device).eval(), device, run)

    @property
    def temperature(self) -> float:
        """The temperature fitted on its validation part."""
        return float(self.run.metrics["temperature"])


def from_dict(kind: type[T], values: dict[str, Any]) -> T:
    """A dataclass from plain Python types; fields that are not there keep their defaults."""
    types = get_type_hints(kind)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    found = {name: value for name, value in values.items() if name in known}
    return kind(
        **{name: from_dict(types[name], value) if is_dataclass(types[name]) else value for name, value in found.items()}
    )
