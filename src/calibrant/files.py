"""Writing files: under a temporary name first, so that nobody ever sees half of one."""

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calibrant.errors import InputError


@contextlib.contextmanager
def replacing(path: str | Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary name beside ``path`` that is renamed to it at the end, or removed if anything goes wrong.

    Raises:
        InputError: If ``path`` exists and ``force`` is not set.
    """
    path = Path(path)
    refuse_existing(path, force=force)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # like any new file, not readable only by its owner
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def refuse_existing(path: str | Path, *, force: bool = False) -> None:
    """Refuse to overwrite a file before any work is done."""
    if Path(path).exists() and not force:
        raise InputError(f"{path} already exists; choose another name, or pass `force=True` to replace it")


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, replacing any existing one."""
    with replacing(path, force=True) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty if there is no such file.

    Raises:
        InputError: If the file holds anything else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON ({error}); delete it, and it will be written again") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} should hold a JSON object, but holds {type(found).__name__}; delete it")
    return found


def write_json(path: str | Path, content: dict[str, Any]) -> None:
    """Write an object as JSON, with null for NaN and infinity, which JSON does not have."""
    write_text(path, json.dumps(finite(content), indent=1, allow_nan=False))


def finite(value: Any) -> Any:
    """The same nested value with None for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
