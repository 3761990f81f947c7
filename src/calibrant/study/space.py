"""Search spaces: fields of a recipe and the values to choose from."""

import inspect
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Final, get_args, get_type_hints

from calibrant.errors import InputError, input_errors
from calibrant.losses import METHODS
from calibrant.models import MODELS
from calibrant.recipes import LossChoice, Recipe
from calibrant.recipes.fields import flatten, parse_value
from calibrant.recipes.recipe import full_path
from calibrant.study.jobs import losses_with, with_loss

#: How a search space is written, for messages.
FORMS = "2..20, log:0.01..1, or a list such as phr,p2,p3"
#: Fields that a search sets itself, or that decide which samples it is scored on.
FIXED: Final = (
    *("name", "about", "seed", "curves", "temperature", "num_bins"),
    *(f"data.{name}" for name in ("name", "root", "path", "validation", "validation_set", "test_from_validation", "seed")),
    *(f"data.{name}" for name in ("download", "limit", "workers")),
)


@dataclass(frozen=True)
class Dimension:
    """A field and its range, or its choices.

    Attributes:
        field: The field of the recipe, such as ``loss.margin``.
        low: The lowest value of a range.
        high: The highest.
        log: Whether a range is searched on a logarithmic scale.
        whole: Whether a range has whole numbers only.
        choices: The values of a list; empty for a range.
        losses: The losses that it is an option of; None if it concerns all.

    Example:
        >>> from calibrant.recipes import LossChoice, Recipe
        >>> from calibrant.study.space import Dimension
        >>> recipe = Recipe.load("digits-lt", loss="mbls")
        >>> weight = Dimension.of("loss.weight", "log:0.01..1", recipe)
        >>> weight.low, weight.high, weight.log
        (0.01, 1.0, True)
        >>> Dimension.of("loss.margin", (2, 20), recipe).text
        '2..20'
    """

    field: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: Sequence[Any] = ()
    losses: Sequence[str] | None = None

    @staticmethod
    def of(field: str, given: Any, recipe: Recipe, losses: Sequence[str] = ()) -> "Dimension":
        """From text as on the command line, a pair of bounds, or a list of choices; ``losses`` are those of the search.

        Raises:
            InputError: If it is none of these.
        """
        given = _parsed(field, given) if isinstance(given, str) else given
        if isinstance(given, Dimension):
            return given
        if isinstance(given, tuple):
            kind, *bounds = given if len(given) == 3 else ("", *given)
            if kind not in ("", "log") or len(bounds) != 2 or not all(_is_number(bound) for bound in bounds):
                raise InputError(f"{field}: a range is (low, high) or ('log', low, high), got {given!r}")
            low, high = bounds
            if not math.isfinite(high - low):
                raise InputError(f"{field}: the ends of a range must be finite, got {low:g}..{high:g}")
            if low == high:
                raise InputError(f"{field}: {low:g}..{high:g} is a single value; to fix it, override the field instead")
            if low > high:
                raise InputError(f"{field}: the range {low:g}..{high:g} is empty; its lower end comes first")
            if kind == "log" and low <= 0:
                raise InputError(f"{field}: a logarithmic range must start above 0, got {low:g}")
            whole = _is_whole(field, [replace(recipe, loss=LossChoice(loss)) for loss in losses] or [recipe], bounds)
            return Dimension(field, float(low), float(high), log=kind == "log", whole=whole, choices=[])
        if not isinstance(given, Sequence) or not given:
            raise InputError(f"{field}: expected {FORMS}; got {given!r}")
        if len(set(map(str, given))) < len(given):
            raise InputError(f"{field}: a value is listed twice in {', '.join(map(str, given))}")
        return Dimension(field, choices=list(given))

    @property
    def path(self) -> str:
        """The full path of its field."""
        return full_path(self.field, "")

    @property
    def text(self) -> str:
        """As written on the command line."""
        if self.choices:
            return ",".join(map(str, self.choices))
        return f"{'log:' if self.log else ''}{self.low:g}..{self.high:g}"

    @property
    def values(self) -> list[Any]:
        """All values of a list, or of a range of whole numbers."""
        return list(self.choices) or list(range(int(self.low), int(self.high) + 1))

    @property
    def examples(self) -> list[Any]:
        """Values that must work if the others are to: the ends of a range, or all choices."""
        if self.choices:
            return list(self.choices)
        return [int(end) if self.whole else end for end in (self.low, self.high)]

    def holds(self, value: Any) -> bool:
        """Whether a value is one of those to choose from."""
        if self.choices:
            return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in self.choices)
        return _is_number(value) and self.low <= value <= self.high

    def at(self, place: float) -> Any:
        """The value at a place between 0 and 1."""
        if self.choices:
            return self.choices[min(int(place * len(self.choices)), len(self.choices) - 1)]
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        found = math.exp((1 - place) * math.log(low) + place * math.log(high)) if self.log else low + place * (high - low)
        return min(max(round(found), int(self.low)), int(self.high)) if self.whole else found

    def concerns(self, loss: str) -> bool:
        """Whether it changes runs with a loss."""
        return self.losses is None or loss in self.losses

    def suggest(self, trial: Any) -> Any:
        """Let Optuna choose a value."""
        if self.choices:
            return self.value(trial.suggest_categorical(self.field, [self.stored(choice) for choice in self.choices]))
        if self.whole:
            return trial.suggest_int(self.field, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(self.field, self.low, self.high, log=self.log)

    def stored(self, value: Any) -> Any:
        """A value as Optuna stores it, which takes no lists."""
        value = next((choice for choice in self.choices if choice == value), value)
        return value if isinstance(value, bool | int | float | str | None) else str(value)

    def value(self, stored: Any) -> Any:
        """The value that Optuna stores."""
        return next((choice for choice in self.choices if self.stored(choice) == stored), stored)


def search_space(given: Mapping[str, Any], recipe: Recipe, *, allow_code: bool = False) -> list[Dimension]:
    """The dimensions of a search space, checked against the recipe.

    Args:
        given: Fields and their ranges or choices.
        recipe: The recipe that they change.
        allow_code: Allow code from outside calibrant in the recipe.

    Raises:
        InputError: If a field does not exist, cannot be searched, or does not take its values.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"`space` must map fields to their values, such as {{'loss.margin': (2, 20)}}, got {given!r}")
    if not given:
        raise InputError(f"there is nothing to search: name fields and their values, such as loss.margin=2..20 ({FORMS})")
    chooser = [Dimension.of(field, values, recipe) for field, values in given.items() if full_path(field, "") == "loss.name"]
    losses = losses_of(chooser, recipe)
    found = [Dimension.of(field, values, recipe, losses) for field, values in given.items()]
    for loss in losses:
        with input_errors("space"):
            with_loss(recipe, loss, losses).check(allow_code=allow_code)
    found = [replace(d, losses=losses_with(d.field, losses)) for d in found]
    for d in found:
        if d.path in FIXED:
            raise InputError(f"{d.field} cannot be searched: the search sets it, or is scored on samples that depend on it")
        if d.path == "loss.name":  # with each of them, every other field is tried
            continue
        for value, loss in itertools.product(d.examples, losses if d.losses is None else d.losses):
            with input_errors(f"space {d.field}={d.text}"):
                changed = Recipe.load(with_loss(recipe, loss, losses), **{d.field: value})
                changed.check(allow_code=allow_code)
                changed.build_loss(10, allow_code=allow_code)
    for one, other in itertools.combinations(found, 2):
        if _option(one.path) == _option(other.path) and any(one.concerns(loss) and other.concerns(loss) for loss in losses):
            raise InputError(f"{one.field} and {other.field} are the same field; name it once")
    return found


def losses_of(space: Sequence[Dimension], recipe: Recipe) -> list[str]:
    """The losses that a search may choose from."""
    return next((list(map(str, d.examples)) for d in space if d.path == "loss.name"), [recipe.loss.name])


def chosen(recipe: Recipe, options: Mapping[str, Any], losses: Sequence[str]) -> Recipe:
    """The recipe with the options of a trial; options of its own loss that the chosen one does not have are left out."""
    fields = {full_path(field, value): field for field, value in options.items()}
    loss = options[fields["loss.name"]] if "loss.name" in fields else recipe.loss.name
    return Recipe.load(with_loss(recipe, str(loss), losses), **options)


def usual_value(field: str, recipe: Recipe) -> Any:
    """The value that a field has if nobody changes it; None if there is none."""
    path = full_path(field, "")
    known = flatten(recipe.to_dict())
    if path in known:
        return known[path]
    parameter = _parameter(path, recipe)
    loss, option = _loss_option(path, recipe)
    if loss in recipe.methods and option in recipe.methods[loss]:
        return recipe.methods[loss][option]
    return None if parameter is None or parameter.default is inspect.Parameter.empty else parameter.default


def _loss_option(path: str, recipe: Recipe) -> tuple[str, str]:
    group, _, option = path.rpartition(".")
    return (recipe.loss.name if group == "loss.options" else group.removeprefix("methods.")), option


def _parameter(path: str, recipe: Recipe) -> inspect.Parameter | None:
    """The parameter that an option of a loss or network is passed as."""
    loss, option = _loss_option(path, recipe)
    function: Callable[..., Any] | None = METHODS[loss].loss if loss in METHODS else None
    if path.startswith("model.options.") and recipe.model.name in MODELS:
        function = MODELS[recipe.model.name].load()
    return None if function is None else inspect.signature(function).parameters.get(option)


def _is_whole(field: str, recipes: Sequence[Recipe], bounds: Sequence[float]) -> bool:
    """Whether a field takes whole numbers only; if its type is not known, whether its bounds were written as such."""
    path, hint = full_path(field, ""), Recipe
    for name in path.split("."):
        hint = get_type_hints(hint).get(name) if is_dataclass(hint) else None  # type: ignore[assignment]
    options = [parameter.annotation for recipe in recipes if (parameter := _parameter(path, recipe)) is not None]
    hints = [option for option in options if option is not inspect.Parameter.empty] or [hint]
    kinds = {kind for own in hints for kind in (own, *get_args(own))}
    if kinds & {int, float}:
        return float not in kinds and all(float(bound).is_integer() for bound in bounds)
    return all(isinstance(bound, int) for bound in bounds)


def _option(path: str) -> str:
    """A path that is the same for ``loss.margin`` and ``mbls.margin``."""
    return re.sub(r"^(loss\.options|methods\.[^.]+)\.", "loss.options.", path)


def _parsed(field: str, text: str) -> Any:
    """``"2..20"`` and ``"log:0.01..1"`` as tuples, anything else as a list."""
    kind, colon, rest = text.partition(":")
    log = bool(colon) and kind == "log"
    bounds = (rest if log else text).split("..")
    if len(bounds) > 1:
        ends = [parse_value(bound) for bound in bounds]
        if len(ends) > 2 or not all(_is_number(end) for end in ends) or bounds[1].startswith("."):
            mixed = "; a list cannot hold ranges" if "," in text else ""
            raise InputError(f"{field}: {text!r} is not a range{mixed}; expected {FORMS}")
        return ("log", *ends) if log else tuple(ends)
    parts = [part.strip() for part in re.split(r",(?![^\[]*\])", text)]  # not at commas inside brackets
    if not all(parts) or log:
        raise InputError(f"{field}: expected {FORMS}; got {text!r}")
    return [parse_value(part) for part in parts]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
