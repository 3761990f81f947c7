"""Where data is looked for."""

import os
from pathlib import Path

#: Environment variable with the folder of all data.
ROOT_VARIABLE = "CALIBRANT_DATA"


def data_root(root: str | Path | None) -> Path:
    """The folder of all data: what is given, or the environment variable CALIBRANT_DATA, or ``data``."""
    return Path(root or os.environ.get(ROOT_VARIABLE) or "data").expanduser()


def locate(path: str | Path, root: str | Path | None, inside: str = "") -> Path | None:
    """A file or folder under the root or by itself, or None; ``inside`` is what a folder has to hold."""
    places = (data_root(root) / path, Path(path).expanduser())
    return next((place for place in places if (place / inside if inside else place).exists()), None)
