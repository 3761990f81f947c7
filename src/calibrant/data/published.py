"""Published sets of corrupted test images: CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, ICLR 2019)."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from calibrant.data.images import Images
from calibrant.data.places import data_root, locate
from calibrant.data.table import SEVERITIES
from calibrant.errors import InputError, MissingDataError

#: Folders of published sets under the data folder, by the data set they belong to.
PUBLISHED = {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C"}


class Published(NamedTuple):
    """Images of a published file.

    Attributes:
        path: The file, which holds the severities one after another.
        severity: From 1 to 5; None for all of them.
    """

    path: Path
    severity: int | None

    @staticmethod
    def find(name: str, data: str, root: str | Path | None) -> "Published | None":
        """The published images that ``fog:5`` (if the data set has them) or ``CIFAR-10-C/fog:5`` refers to."""
        kind, colon, text = name.partition(":")
        if not colon and not kind.endswith(".npy"):
            return None
        file = kind if kind.endswith(".npy") else f"{kind}.npy"
        own = published_set(data, root)
        path = None if own is None or not (own / file).is_file() else own / file
        if path is None and (file == kind or Path(kind).name != kind):  # otherwise fog:5 is a corruption to be generated
            path = locate(file, root)
        if path is None:
            return None
        if colon and text not in map(str, SEVERITIES):
            raise ValueError(f"a corruption has severities from {kind}:1 to {kind}:5; got {name!r}")
        return Published(path, int(text) if colon else None)

    def read(self) -> np.ndarray:
        """The images, ``(N, H, W, C)``.

        Raises:
            MissingDataError: If the file is not what it should be.
        """
        try:
            x: np.ndarray = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise MissingDataError(f"{self.path} cannot be read ({error})") from error
        if self.severity is None and x.ndim:
            return x
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[-1] != 3 or len(x) % len(SEVERITIES) or not len(x):
            raise MissingDataError(f"{self.path} must hold uint8 images (5 N, H, W, 3); it holds {x.dtype} {x.shape}")
        assert self.severity is not None  # noqa: S101
        size = len(x) // len(SEVERITIES)
        return x[(self.severity - 1) * size : self.severity * size]


def published_set(data: str, root: str | Path | None) -> Path | None:
    """The folder with the published corruptions of a data set, if present."""
    folder = data_root(root) / PUBLISHED[data] if data in PUBLISHED else None
    return folder if folder is not None and (folder / "labels.npy").exists() else None


def published_names(folder: Path) -> list[str]:
    """Corruptions of a published set."""
    return sorted(path.stem for path in folder.glob("*.npy") if path.stem != "labels")


def published_images(folder: Path, name: str, severity: int) -> Images:
    """Images and labels of one corruption and severity."""
    path = folder / f"{name}.npy"
    if not path.exists():
        known = ", ".join(published_names(folder))
        raise InputError(f"{name!r} is not among the published files of {folder}; choose from {known}")
    x = Published(path, severity).read()
    labels = Published(folder / "labels.npy", None).read()
    if labels.shape != (len(SEVERITIES) * len(x),):
        raise MissingDataError(f"{path} has {len(SEVERITIES) * len(x)} images, but there are {labels.size} labels")
    own = labels[(severity - 1) * len(x) : severity * len(x)]
    return Images(torch.from_numpy(np.array(x)).movedim(-1, 1), torch.from_numpy(own.astype(np.int64)))
