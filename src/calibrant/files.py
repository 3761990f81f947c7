"""Atomic writes, under a temporary name first, so that nobody ever sees half a file; and folder locks."""

import contextlib
import errno
import json
import math
import os
import socket
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from calibrant.errors import InputError, InUseError

if sys.platform != "win32":
    import fcntl

#: Prefix of temporary files and locks; results never start with it.
HIDDEN: Final = ".calibrant-"
#: Maximum length of the names that :func:`file_name` makes.
LONGEST: Final = 150
#: Seconds to wait for a lock: workers of a killed study hold theirs for a moment longer than it lives.
PATIENCE = 5.0
_held: set[Path] = set()


@contextlib.contextmanager
def replacing(path: str | Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary name beside ``path`` that is renamed to it at the end, or removed if anything goes wrong.

    Raises:
        InputError: If ``path`` exists and ``force`` is not set.
    """
    path = Path(path)
    refuse_existing(path, force=force)
    if path.exists() and not path.is_file():  # a folder, or a device, which would be replaced by a file
        raise InputError(f"{path} is not a file that can be replaced; choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{HIDDEN}{path.stem}-", suffix=path.suffix)
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


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path``. The lock ends with the process that holds it, however it ends.

    Raises:
        InUseError: If another process holds it for more than :data:`PATIENCE` seconds; ``what`` names what is in use.
    """
    place, end = path.resolve(), time.monotonic() + PATIENCE
    while True:
        if place in _held:  # by another thread, which the system would not stop
            raise InUseError(f"{what} is in use by this process; wait until it is done")
        file = place.open("a+", encoding="utf-8")
        try:
            _lock(file)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            owner = file.read().strip()
            file.close()
            if time.monotonic() < end:
                time.sleep(0.05)
                continue
            by = f" ({owner})" if owner else ""
            raise InUseError(f"{what} is in use by another process{by}; wait until it is done") from None
        if place.exists() and os.path.samestat(os.fstat(file.fileno()), place.stat()):
            break
        file.close()  # whoever held it has just removed it
    _held.add(place)
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
    finally:
        place.unlink(missing_ok=True)
        _held.discard(place)
        file.close()


def _lock(file: IO[str]) -> None:
    """Lock with lockf rather than flock: forked data workers must not inherit the lock."""
    if sys.platform == "win32":
        return
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        warnings.warn(f"{file.name}: this file system has no locks; use only one process there", stacklevel=4)


def file_name(text: str) -> str:
    """A text as a file name: special characters are replaced, and a checksum is added if any were."""
    plain = "".join(c if c.isalnum() or c in "-_.,=+@%()[]' " else "_" for c in text).strip(". ")[:LONGEST]
    return plain if plain == text and text else f"{plain}-{zlib.crc32(text.encode('utf-8', 'replace')):08x}"


def refuse_existing(path: str | Path, *, force: bool = False) -> None:
    """Refuse to overwrite a file before any work is done."""
    if Path(path).exists() and not force:
        raise InputError(f"{path} already exists; choose another name, or pass `force=True` to replace it")


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, replacing any existing one."""
    with replacing(path, force=True) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_text(path: Path) -> str:
    """The content of a text file.

    Raises:
        InputError: If it is not text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text ({error})") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty if there is no such file.

    Raises:
        InputError: If the file holds anything else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (ValueError, RecursionError) as error:
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
