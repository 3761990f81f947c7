"""Argument checks whose errors name the argument, what was expected, and what was passed."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from calibrant.errors import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """Return ``value`` if it is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def in_range(name: str, value: float, low: float, high: float = math.inf, *, above: bool = False) -> float:
    """Return ``value`` if it is a finite number from ``low`` (exclusive if ``above``) to ``high``."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {type(value).__name__} {value!r}")
    if not low <= value <= high or (above and value == low) or not -math.inf < value < math.inf:
        bottom = f"more than {low:g}" if above else f"at least {low:g}"
        top = f" and at most {high:g}" if math.isfinite(high) else " and finite"
        raise ValueError(f"{name} must be {bottom}{top}, got {value!r}")
    return value


def whole(name: str, value: int, low: int | None = None) -> int:
    """Return ``value`` if it is an integer of at least ``low``."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__} {value!r}")
    if low is not None and value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")
    return value


def with_shared(kind: Any, defaults: Mapping[str, Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that shows options in a signature in place of ``**options``, and refuses unknown ones.

    Args:
        kind: The ``TypedDict`` of the options.
        defaults: Their defaults.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        own = inspect.signature(function)
        first = [parameter for parameter in own.parameters.values() if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind.__annotations__[name])
            for name, default in defaults.items()
        ]
        signature = own.replace(parameters=first + shared)
        name = function.__qualname__.removesuffix(".__init__") if function.__name__ == "__init__" else function.__name__

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for option in kwargs:
                if option not in signature.parameters:
                    hint = did_you_mean(option, signature.parameters)
                    raise TypeError(f"{name}() got an unexpected keyword argument {option!r}{hint}")
            return function(*args, **kwargs)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate
