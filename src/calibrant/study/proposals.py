"""What a search tries next."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch

from calibrant.errors import InputError
from calibrant.extras import require
from calibrant.recipes import Recipe
from calibrant.study.space import Dimension, usual_value

#: Trials that are spread evenly over the space before TPE has enough to go by.
SPREAD: Final = 10
#: Most combinations that are kept track of.
COMBINATIONS: Final = 10_000


@dataclass(frozen=True)
class Proposals:
    """The options of each trial, which follow from its number and the trials before it: an interrupted search goes on alike.

    The first trial has the recipe's own options, if the space holds them. With ``"tpe"``, the next ones are Sobol points,
    which leave no part of the space untried. Nothing is tried twice: the same options and seed give the same score.

    Attributes:
        space: The dimensions.
        losses: The losses to choose from.
        recipe: The recipe; its seed is that of the search.
        sampler: ``"tpe"``, ``"random"`` or ``"grid"``.
    """

    space: Sequence[Dimension]
    losses: Sequence[str]
    recipe: Recipe
    sampler: str

    @cached_property
    def combinations(self) -> list[dict[str, Any]] | None:
        """All combinations of lists and whole numbers, as Optuna stores them; None if they cannot be counted.

        Raises:
            InputError: If a grid has too many.
        """
        if any(not d.choices and not d.whole for d in self.space):
            return None
        found: list[dict[str, Any]] = []
        for loss in self.losses:
            own = {
                d.field: [loss] if d.path == "loss.name" else [d.stored(value) for value in d.values]
                for d in self.space
                if d.concerns(loss)
            }
            if len(found) + math.prod(map(len, own.values())) > COMBINATIONS:
                if self.sampler == "grid":
                    raise InputError(f"`sampler` grid has more than {COMBINATIONS:,} combinations; use tpe or random")
                return None
            found += [dict(zip(own, chosen, strict=True)) for chosen in itertools.product(*own.values())]
        return found

    def next(self, search: Any) -> dict[str, Any] | None:
        """The options of the next trial of Optuna's study ``search``; None if everything has been tried."""
        number = len(search.trials)
        usual = self._usual() if number == 0 and self.sampler != "grid" else None
        if usual is not None:
            return usual
        if self.combinations is None:
            return self._drawn(search, number)
        tried = [trial.params for trial in search.trials]
        left = [options for options in self.combinations if options not in tried]
        if not left or self.sampler == "grid":
            return left[0] if left else None
        drawn = self._drawn(search, number)
        return drawn if drawn in left else left[np.random.default_rng([self.recipe.seed, number]).integers(len(left))]

    def choose(self, trial: Any) -> dict[str, Any]:
        """Let a trial of Optuna's choose its options; those of other losses than the chosen one are left out."""
        found: dict[str, Any] = {}
        loss = self.recipe.loss.name
        for d in sorted(self.space, key=lambda d: d.path != "loss.name"):
            if d.concerns(loss):
                found[d.field] = d.suggest(trial)
                loss = str(found[d.field]) if d.path == "loss.name" else loss
        return found

    def _usual(self) -> dict[str, Any] | None:
        """The recipe's own options; None if the space does not hold them."""
        own = {d.field: (d, usual_value(d.field, self.recipe)) for d in self.space if d.concerns(self.recipe.loss.name)}
        held = own and all(d.holds(value) for d, value in own.values())
        return {name: d.stored(value) for name, (d, value) in own.items()} if held else None

    def _drawn(self, search: Any, number: int) -> dict[str, Any]:
        """By Sobol points, or by Optuna in a copy of its study: what it draws can then still be replaced."""
        if self.sampler == "tpe" and number < SPREAD:
            points = torch.quasirandom.SobolEngine(len(self.space), scramble=True, seed=self.recipe.seed).draw(SPREAD)
            return self._at(points[number].tolist())
        optuna, seed = require("optuna", "tuning"), self.recipe.seed + number
        samplers = optuna.samplers
        sampler = (
            samplers.TPESampler(seed=seed, n_startup_trials=SPREAD, constant_liar=True)
            if self.sampler == "tpe"
            else samplers.RandomSampler(seed=seed)
        )
        copy = optuna.create_study(sampler=sampler, direction=search.direction)
        copy.add_trials([trial for trial in search.trials if trial.state != optuna.trial.TrialState.WAITING])
        trial = copy.ask()
        self.choose(trial)
        found: dict[str, Any] = trial.params
        return found

    def _at(self, point: Sequence[float]) -> dict[str, Any]:
        """Options at a point of the unit cube."""
        loss, found = self.recipe.loss.name, dict[str, Any]()
        pairs = zip(self.space, point, strict=True)
        for d, place in sorted(pairs, key=lambda pair: pair[0].path != "loss.name"):
            if d.concerns(loss):
                found[d.field] = d.stored(d.at(place))
                loss = str(found[d.field]) if d.path == "loss.name" else loss
        return found
