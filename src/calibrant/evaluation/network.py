"""The network of a finished run, ready to predict new data."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from calibrant.errors import InputError, MissingDataError, input_errors
from calibrant.runs import Run, RunFolder
from calibrant.train.checkpoints import load_weights
from calibrant.train.fit import same_data
from calibrant.train.predictor import Predictor
from calibrant.train.preparing import prepare


@dataclass(frozen=True)
class TrainedNetwork(Predictor):
    """The trained network of a run.

    Attributes:
        run: The run.
    """

    run: Run

    @staticmethod
    def load(folder: str | Path | RunFolder, *, root: str | None = None, allow_code: bool = False) -> "TrainedNetwork":
        """Read a run folder and the data it was trained on.

        Args:
            folder: The run.
            root: Where its data is now, if it has moved.
            allow_code: Allow code from outside calibrant in the recipe.

        Raises:
            InputError: If it is not a finished run, its checkpoint is broken, or the data is not the run's.
        """
        run = Run.load(folder)
        recipe = run.recipe
        if root is not None:
            recipe = replace(recipe, data=replace(recipe.data, root=root))
        options = {name: value for name, value in recipe.model.options.items() if name != "pretrained"}  # it has weights
        bare = replace(recipe, model=replace(recipe.model, compile=False, options=options))
        try:
            with input_errors(str(run.folder)):
                recipe.check(allow_code=allow_code)
                data, network, loss, *_ = prepare(bare, allow_code=allow_code)
        except MissingDataError as error:
            raise MissingDataError(f"{error}; if the data of {run.folder} has moved, pass `data.root`") from error
        same_data(run.folder, data)
        try:
            with input_errors():
                load_weights(recipe, run.folder, network)
        except RuntimeError as error:
            raise InputError(f"{run.folder}: {error}") from error
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return TrainedNetwork(recipe, data, network.to(device).eval(), loss, device, run)

    @property
    def temperature(self) -> float:
        """The temperature fitted on its validation part."""
        return self.run.result.temperature
