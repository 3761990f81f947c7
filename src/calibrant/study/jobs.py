"""The runs of a study: recipes x losses x options x seeds."""

import inspect
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from calibrant.errors import InputError, did_you_mean
from calibrant.files import file_name
from calibrant.losses import METHODS, SHARED
from calibrant.recipes import LossChoice, Recipe
from calibrant.runs import RunFolder, StudyFolder

#: Called with a row of the history after each epoch; it may raise an error to end the run.
Watch = Callable[[Mapping[str, float]], None]
#: Short names of fields in the names of methods.
SHORT = {"data.validation_set": "validation"}


class StoppedError(Exception):
    """What watches a run has ended it."""


@dataclass(frozen=True)
class Job:
    """One run of a study.

    Attributes:
        method: Name of its row in the table.
        seed: Its seed.
        recipe: Its recipe.
        folder: Its folder.
        base: Name of the method without the varied options.
        options: The swept options and their values, as text.
        watch: What watches its training.
    """

    method: str
    seed: int
    recipe: Recipe
    folder: RunFolder
    base: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    watch: Watch | None = None


def plan(
    recipes: Sequence[Recipe],
    losses: Sequence[str],
    seeds: Sequence[int],
    folder: str | Path | StudyFolder,
    varied: Mapping[str, Sequence[Any]] | None = None,
) -> list[Job]:
    """Every recipe and loss with every combination of options and every seed.

    Jobs are ordered by seed, so that a study that is cut short can still compare methods. ``fl.gamma`` is swept for one
    loss, ``loss.margin`` for every loss that has a margin; a loss without the option is run once.

    Args:
        recipes: Recipes; if there are several, method names start with the recipe's.
        losses: Keys of losses.
        seeds: Seeds.
        folder: Folder of the study.
        varied: Fields and their values, such as ``{"fl.gamma": [3, 5]}``.

    Raises:
        InputError: If an option belongs to none of the losses, or to several in which it means different things.
    """
    study, found = StudyFolder(folder), dict[RunFolder, Job]()
    options = [_Varied.of(field, values, losses) for field, values in (varied or {}).items()]
    for seed, recipe, loss in itertools.product(seeds, recipes, losses):
        base = replace(with_loss(recipe, loss, losses), seed=seed)
        own = [option for option in options if option.concerns(loss)]
        for values in itertools.product(*(option.values for option in own)):
            chosen = {option.field: value for option, value in zip(own, values, strict=True)}
            words = [f"{option.short}={_text(value)}" for option, value in zip(own, values, strict=True)]
            several = [recipe.name] if len(recipes) > 1 else []
            name = ": ".join([*several, ", ".join([loss, *words])])
            place = study.run(file_name("-".join([*several, ",".join([loss, *words]), f"seed{seed}"])))
            named = {option.named(loss): _text(value) for option, value in zip(own, values, strict=True)}
            found[place] = Job(name, seed, Recipe.load(base, **chosen), place, ": ".join([*several, loss]), named)
    return list(found.values())


def with_loss(recipe: Recipe, loss: str, losses: Sequence[str]) -> Recipe:
    """The recipe with one of several losses, and those of its options that this loss has.

    Raises:
        InputError: If none of the losses has an option, or it means different things in several of them.
    """
    given = {name: value for name, value in recipe.loss.options.items() if loss in _takers(name, losses)}
    return replace(recipe, loss=LossChoice(loss, given))


def losses_with(field: str, losses: Sequence[str]) -> list[str] | None:
    """Those of the losses that a field is an option of; None if it is a field of another kind.

    Raises:
        InputError: If none of them has it, or it means different things in several of them.
    """
    found = _Varied.of(field, [], losses).losses
    return None if found is None else list(found)


class _Varied(NamedTuple):
    """A field with several values.

    Attributes:
        field: Its path in a recipe.
        short: Its name within method names.
        values: The values.
        losses: The losses that it belongs to; None if it is not an option of a loss.
    """

    field: str
    short: str
    values: Sequence[Any]
    losses: Sequence[str] | None

    @staticmethod
    def of(field: str, values: Sequence[Any], losses: Sequence[str]) -> "_Varied":
        """From ``fl.gamma``, ``loss.margin`` or any other field of a recipe."""
        own = next((loss for loss in losses if loss not in METHODS and field.startswith(f"{loss}.")), None)
        if own is not None:  # its name has dots
            option = field.removeprefix(f"{own}.")
            return _Varied(f"loss.{option}", option, values, [own])
        group, _, option = field.removeprefix("methods.").replace("loss.options.", "loss.").partition(".")
        group = group.replace("_", "-") if group.replace("_", "-") in METHODS else group
        if group in METHODS:
            if group not in losses:
                raise InputError(f"{field}: {group} is not one of the losses ({', '.join(losses)})")
            if not _takes(group, option):
                raise InputError(f"{field}: {group} has no option {option!r}{did_you_mean(option, _options(group))}")
            return _Varied(f"loss.{option}", option, values, [group])
        if group == "loss" and option and option != "name":
            return _Varied(field, option, values, _takers(option, losses))
        return _Varied(field, SHORT.get(field, field), values, None)

    def named(self, loss: str) -> str:
        """Its name on an axis, with the loss if it means something else in other losses."""
        return self.short if self.losses is None or self.short in SHARED else f"{loss}.{self.short}"

    def concerns(self, loss: str) -> bool:
        """Whether it varies the runs of a loss."""
        return self.losses is None or loss in self.losses


def _takers(option: str, losses: Sequence[str]) -> list[str]:
    """The losses that have an option; one that means different things in several of them is refused."""
    having = [loss for loss in losses if _takes(loss, option)]
    ours = [loss for loss in having if loss in METHODS]
    if not having and len(losses) > 1:
        raise InputError(f"none of the losses {', '.join(losses)} has an option {option!r}")
    if len(ours) > 1 and option not in SHARED:
        *others, last = (f"{loss}.{option}" for loss in ours)
        raise InputError(
            f"loss.{option} means something else in each of {', '.join(ours)}; name the loss: {', '.join(others)} or {last}"
        )
    return having or list(losses)  # with a single loss, checking its recipe says which options it has


def _takes(loss: str, option: str) -> bool:
    return loss not in METHODS or option in _options(loss)


def _options(loss: str) -> list[str]:
    return [name for name in inspect.signature(METHODS[loss].loss).parameters if name != "num_classes"]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def say(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{text}\n")


def seeds_of(seeds: int | Sequence[int]) -> list[int]:
    """The given number of seeds, from 0, or the given seeds.

    Raises:
        InputError: If there are none, or duplicates.
    """
    found = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not found or len(set(found)) < len(found):
        raise InputError("`seeds` must be a number of at least 1, or several different seeds")
    return found
