"""Inputs that a network was not trained on."""

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from calibrant.checks import whole
from calibrant.data.arrays import SOURCES, channels_first, torchvision_set
from calibrant.data.corruptions import corrupt, in_unit_range
from calibrant.data.dataset import DataSet
from calibrant.data.folders import ENDINGS
from calibrant.data.images import Files, Images, read_image
from calibrant.data.newsgroups import read_texts
from calibrant.data.part import Part
from calibrant.data.places import data_root, locate
from calibrant.data.published import Published
from calibrant.data.table import CORRUPTIONS
from calibrant.data.texts import Texts, encode, words
from calibrant.errors import MissingDataError

#: Weights of red, green and blue in greyscale (ITU-R BT.601).
GREY = (0.299, 0.587, 0.114)


def unknown(
    name: str,
    like: DataSet,
    *,
    root: str | Path | None = None,
    size: int = 224,
    limit: int | None = None,
    seed: int = 0,
    download: bool = False,
) -> Part:
    """Samples for out-of-distribution detection, converted to a data set's input format; their labels are meaningless.

    Args:
        name: The test part of mnist, fashion-mnist, cifar10, cifar100 or svhn; ``noise`` for pixels drawn from a Gaussian of
            mean 0.5 and standard deviation 1, clipped to [0, 1]; ``CORRUPTION:SEVERITY``, such as ``fog:5``, for the data
            set's own test images, corrupted, or the published ones if CIFAR-10-C or CIFAR-100-C is in the data folder;
            ``CIFAR-10-C/fog:5`` always means the published ones; a folder of images; an .npz with an array ``x`` or
            ``test_x``; an .npy. For a text run, a folder or .csv of texts.
        like: The data set the network was trained on.
        root: Data folder.
        size: Side of the network's images, for a data set that is read from files.
        limit: Maximum number of samples, drawn at random.
        seed: Random seed.
        download: Let torchvision download missing data.
    """
    random = torch.Generator().manual_seed(seed)
    if limit is not None:
        whole("`limit`", limit, 1)
    like.test.refuse("ood")
    if isinstance(like.test, Texts):
        return _texts(name, like, like.test, root, limit, random)
    shape = tuple(like.test.x.shape[1:]) if isinstance(like.test, Images) else (3, size, size)
    published = Published.find(name, like.name, root)
    if published is not None:
        images = published.read()
        some = images[_some(len(images), limit, random).numpy()]
        return _images(_checked(published.path, some), shape, like)
    kind, _, severity = name.partition(":")
    if kind in CORRUPTIONS:
        if not isinstance(like.test, Images):
            raise TypeError(f"{name}: for corruptions of images read from files, use calibrant shift")
        if severity not in ("1", "2", "3", "4", "5"):
            raise ValueError(f"a corruption needs a severity, from {kind}:1 to {kind}:5; got {name!r}")
        chosen = like.test.subset(_some(len(like.test), limit, random))
        return Images(corrupt(chosen.x, kind, int(severity), random), chosen.y)
    if kind == "noise":
        x = torch.empty(limit or len(like.test), *shape, dtype=torch.uint8)
        for some in x.split(1000):  # kept as bytes: all at once as floats might not fit
            some.copy_((0.5 + torch.randn(some.shape, generator=random)).clamp(0, 1).mul(255).round())
        return _images(x, shape, like)
    if name in SOURCES:
        other = torchvision_set(name, root, validation=1, download=download)
        assert isinstance(other.test, Images)  # noqa: S101
        return _images(other.test.x[_some(len(other.test), limit, random)], shape, like)
    return _files(name, like, shape, root, limit, random)


def _texts(
    name: str, like: DataSet, test: Texts, root: str | Path | None, limit: int | None, random: torch.Generator
) -> Texts:
    """Texts of a folder or csv, encoded with a data set's vocabulary."""
    place = locate(name, root)
    if place is None:
        raise MissingDataError(
            f"{name} does not exist, neither as given nor under {data_root(root)}: expected a folder or csv of texts"
        )
    texts = read_texts(place)[0]
    documents = [words(texts[i]) for i in _some(len(texts), limit, random).tolist()]
    return encode(documents, like.vocabulary, torch.zeros(len(documents), dtype=torch.int64), test.length)


def _files(
    name: str,
    like: DataSet,
    shape: tuple[int, ...],
    root: str | Path | None,
    limit: int | None,
    random: torch.Generator,
) -> Images | Files:
    """Images of a folder or of an .npz."""
    place = locate(name, root)
    if place is None:
        raise MissingDataError(
            f"{name!r} is not one of {', '.join(SOURCES)}, noise, or a corruption such as fog:5, and no folder, .npz or "
            f".npy of that name exists here or under {data_root(root)}"
        )
    if not place.is_dir():
        x = _array(place)
        return _images(x[_some(len(x), limit, random)], shape, like)
    paths = sorted(str(p) for p in place.rglob("*") if p.suffix.lower() in ENDINGS)
    if not paths:
        raise MissingDataError(f"{place} holds no images ({', '.join(ENDINGS)})")
    paths = [paths[i] for i in _some(len(paths), limit, random).tolist()]
    if isinstance(like.test, Files):  # read, scaled and cropped like its own
        return Files(paths, torch.zeros(len(paths), dtype=torch.int64))
    return _images(torch.cat([resized(read_image(path).unsqueeze(0), shape) for path in paths]), shape, like)


def _some(count: int, limit: int | None, random: torch.Generator) -> Tensor:
    """Indices of at most ``limit`` samples, in order."""
    return torch.arange(count) if limit is None else torch.randperm(count, generator=random)[:limit].sort().values


def _array(place: Path) -> Tensor:
    """Images of an .npz."""
    if not zipfile.is_zipfile(place):
        raise ValueError(f"{place} is neither a folder nor an .npz of images")
    try:
        with np.load(place, allow_pickle=False) as archive:
            names = archive.files
            found = next((key for key in ("x", "test_x", "images") if key in names), None)
            x = None if found is None else archive[found]
    except (OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{place} cannot be read as an .npz of images ({error})") from error
    if x is None:
        raise ValueError(f"{place} has no array x, test_x or images; it has {', '.join(names)}")
    return _checked(place, x)


def _checked(place: Path, x: np.ndarray) -> Tensor:
    """Images of a file, with channels first."""
    if not x.ndim or not len(x):
        raise ValueError(f"{place} holds no images")
    try:
        return channels_first(torch.from_numpy(np.array(x)))
    except TypeError as error:
        raise ValueError(f"{place} holds {x.dtype}, not images") from error


def _images(x: Tensor, shape: tuple[int, ...], like: DataSet) -> Images:
    """Images in the size, channels and scale of a data set's own."""
    x = resized(x, shape)
    own = like.test.x if isinstance(like.test, Images) else torch.zeros(1, dtype=torch.uint8)
    if own.is_floating_point() and x.dtype == torch.uint8:
        if not in_unit_range(own):
            raise ValueError(
                f"the network's own images range from {own.min():.4g} to {own.max():.4g}, and OOD images cannot be "
                "converted to that scale; pass an .npz that already has it"
            )
        x = x.float() / 255
    if in_unit_range(own) and not in_unit_range(x):
        raise ValueError(f"the OOD images range from {x.min():.4g} to {x.max():.4g}; expected 0 to 1, or uint8")
    return Images(x, torch.zeros(len(x), dtype=torch.int64))


def resized(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Images as ``(N, *shape)``: converted between greyscale and colour, and resized."""
    channels, *size = shape
    kind = x.dtype
    x = x.float()
    if x.shape[1] == 3 and channels == 1:
        x = (x * torch.tensor(GREY).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
    elif x.shape[1] == 1 and channels == 3:
        x = x.expand(-1, 3, -1, -1)
    if x.shape[1] != channels:
        raise ValueError(f"the network expects images of {channels} channels, but these have {x.shape[1]}")
    if list(x.shape[2:]) != size:
        x = functional.interpolate(x, size=tuple(size), mode="bilinear", antialias=True)
    return x.round().clamp(0, 255).to(kind) if kind == torch.uint8 else x.to(kind)
