"""Argument checks whose errors name the argument, what was expected, and what was passed."""

import math
from numbers import Integral, Real
from typing import Any


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
