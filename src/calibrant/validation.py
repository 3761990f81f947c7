"""Checks of arguments that say what was expected, what came, and under which name."""

from numbers import Integral, Real
from typing import Any


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """Return ``value`` if it is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def in_range(name: str, value: float, low: float, high: float = float("inf"), *, open_low: bool = False) -> float:
    """Return ``value`` if it lies in [low, high], or in (low, high]."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {type(value).__name__} {value!r}")
    if not low <= value <= high or (open_low and value == low):
        raise ValueError(f"{name} must be in {'(' if open_low else '['}{low:g}, {high:g}], got {value!r}")
    return value


def whole(name: str, value: int, low: int) -> int:
    """Return ``value`` if it is a whole number of at least ``low``."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {type(value).__name__} {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")
    return value
