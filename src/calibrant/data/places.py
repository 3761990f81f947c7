"""Where data is looked for."""

import os
from pathlib import Path

#: Environment variable that names the data folder.
ROOT_VARIABLE = "CALIBRANT_DATA"


def data_root(root: str | Path | None) -> Path:
    """The data folder: ``root``, or else the environment variable CALIBRANT_DATA, or else ``data``."""
    return Path(root or os.environ.get(ROOT_VARIABLE) or "data").expanduser()


def locate(path: str | Path, root: str | Path | None, inside: str = "") -> Path | None:
    """A file or folder, under the root or as given, or None; ``inside`` is what a folder must contain."""
    places = (data_root(root) / path, Path(path).expanduser())
    return next((place for place in places if _regular(place / inside if inside else place)), None)


def _regular(path: Path) -> bool:
    """Whether it can be read to its end, as a device cannot."""
    try:
        return path.is_file() or path.is_dir()
    except (OSError, ValueError):  # too long, or not a name at all
        return False
