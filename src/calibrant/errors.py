"""Errors about user input, which say what was expected, what was passed, and how to fix it.

Messages name Python arguments in backticks, such as `force=True`; the command line turns them into flags.
"""

import contextlib
import difflib
import signal
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

T = TypeVar("T")


class InputError(ValueError):
    """Invalid user input; the message names the problem and how to fix it."""


class MissingDataError(InputError, FileNotFoundError):
    """Data was not found; the message gives the place, the expected layout, and how to get it."""

    __str__ = Exception.__str__  # not OSError's, which expects an error number first


class InUseError(InputError):
    """Another process is at work there; the same call will succeed once that is done."""


class Terminated(SystemExit):
    """SIGTERM was received, as from a scheduler; the exit code says so."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


#: What Python and its libraries raise for values that make no sense.
UNFIT: Final = (
    *(ValueError, TypeError, ArithmeticError, LookupError),
    *(AttributeError, AssertionError, RuntimeError, MemoryError),
)


@contextlib.contextmanager
def input_errors(where: str = "", *, unfit: bool = False) -> Iterator[None]:
    """Turn errors about bad values into an :class:`InputError`; ``where`` is prepended to the message.

    Args:
        where: What is wrong.
        unfit: Also convert errors that only unchecked values cause; for values read from a file.
    """
    try:
        yield
    except InputError as error:
        if not where or str(error).startswith(where):
            raise
        raise type(error)(f"{where}: {error}") from error
    except UNFIT as error:
        if not unfit and not isinstance(error, ValueError | TypeError):
            raise
        said = " ".join(str(error).split())
        named = said if isinstance(error, ValueError | TypeError) else f"{type(error).__name__}: {said}".removesuffix(": ")
        raise InputError(f"{where}: {named}" if where else named) from error


def lookup(name: str, table: Mapping[str, T], what: str) -> T:
    """Look up ``name`` in ``table``; ``what`` says what is being looked up, such as ``"loss"``.

    Raises:
        InputError: If it is not there; the message lists the known names and the closest match.
    """
    try:
        return table[name]
    except (KeyError, TypeError):
        raise InputError(f"{what} must be one of {', '.join(table)}, got {name!r}{did_you_mean(name, table)}") from None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A suffix that suggests the known name closest to ``name``, if possible one that begins with it; empty if none is."""
    asked, by_lower = str(name).lower(), {other.lower(): other for other in known}
    close = [by_lower[other] for other in difflib.get_close_matches(asked, by_lower, n=3)]
    close.sort(key=lambda other: not other.lower().startswith(asked))
    return f"; did you mean {close[0]!r}?" if close else ""
