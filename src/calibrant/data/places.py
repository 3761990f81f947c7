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
    return next((place for place in places if (place / inside if inside else place).exists()), None)
