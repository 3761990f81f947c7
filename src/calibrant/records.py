"""Conversion of result dataclasses to plain Python types and back."""

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from calibrant.errors import InputError, input_errors

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Dataclasses, mappings and sequences as dicts and lists; an object with its own ``to_dict`` uses that."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain(inner) for inner in value]
    return value


def from_plain(kind: type[T], value: Any, where: str = "") -> T:
    """Build the dataclass ``kind`` from plain Python types, with its own ``from_dict`` if it has one.

    Unknown keys are ignored, missing ones take their defaults, and null becomes NaN where a number is expected. ``where``
    tells error messages what is being read.

    Raises:
        InputError: If something is missing or has the wrong type.
    """
    result: T = _convert(kind, value, where)
    return result


def from_fields(kind: type[T], value: Any, where: str = "") -> T:
    """Like :func:`from_plain`, but without ``from_dict`` of ``kind`` itself."""
    result: T = _dataclass(kind, value, where)
    return result


def _convert(kind: Any, value: Any, where: str) -> Any:  # noqa: PLR0911 - one for each kind of type
    origin = get_origin(kind)
    if kind is Any or kind is object or isinstance(kind, TypeVar):
        return value
    if origin in (typing.Union, types.UnionType):
        return _either(get_args(kind), value, where)
    if origin is typing.Literal:
        return _expect(value in get_args(kind), value, f"one of {', '.join(map(repr, get_args(kind)))}", where)
    if is_dataclass(kind):
        return kind.from_dict(value, where) if hasattr(kind, "from_dict") else _dataclass(kind, value, where)
    plain = origin or kind
    if plain in (dict, Mapping):
        _expect(isinstance(value, dict), value, "an object", where)
        (inner,) = get_args(kind)[1:] or (Any,)
        return {key: _convert(inner, item, f"{where}.{key}") for key, item in value.items()}
    if plain in (list, tuple, Sequence):
        _expect(isinstance(value, list | tuple), value, "a list", where)
        (inner, *_) = get_args(kind) or (Any,)
        items = [_convert(inner, item, f"{where}[{i}]") for i, item in enumerate(value)]
        return tuple(items) if plain is tuple else items
    if plain is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float("nan") if value is None else float(_expect(number, value, "a number", where))
    exact = isinstance(value, plain) and not (plain is int and isinstance(value, bool))
    return _expect(exact, value, plain.__name__, where)


def _either(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and types.NoneType in kinds:
        return None
    problem = None
    for kind in kinds:
        if kind is types.NoneType:
            continue
        try:
            return _convert(kind, value, where)
        except InputError as error:
            problem = problem or error
    raise problem or InputError(f"{where}: unexpected {value!r}")


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), value, "an object", where)
    hints = get_type_hints(kind)
    given = {}
    for field in fields(kind):
        if field.name in value:
            given[field.name] = _convert(
                hints[field.name], value[field.name], f"{where}.{field.name}" if where else field.name
            )
        elif field.default is MISSING and field.default_factory is MISSING:
            raise InputError(f"{where or kind.__name__}: {field.name} is missing")
    with input_errors(where):
        return kind(**given)


def _expect(fine: bool, value: Any, what: str, where: str) -> Any:
    if not fine:
        shown = repr(value)
        shown = shown if len(shown) < 60 else shown[:57] + "..."
        raise InputError(f"{where}: expected {what}, got {shown}" if where else f"expected {what}, got {shown}")
    return value
