"""Inputs that a network was not trained on."""

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from calibrant.data.base import DataSet, MissingDataError, data_root, locate
from calibrant.data.corruptions import CORRUPTIONS, corrupt
from calibrant.data.folders import ENDINGS
from calibrant.data.parts import Images, Masks, Part, Texts, read_image
from calibrant.data.small import SOURCES, channels_first, torchvision_set
from calibrant.data.texts import encode, read_texts, words

#: Weights of red, green and blue in grey, of ITU-R BT.601.
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
    """Samples for out-of-distribution detection, in the form of a data set's inputs; their labels mean nothing.

    Args:
        name: The test part of mnist, fashion-mnist, cifar10, cifar100 or svhn; ``noise`` for pixels drawn from a Gaussian of
            mean 0.5 and standard deviation 1, cut to [0, 1]; ``fog:5`` and the like for the data set's own test images,
            corrupted; a folder of images; an .npz with an array ``x`` or ``test_x``. For texts, a folder or csv of texts.
        like: The data set the network was trained on.
        root: Folder of all data.
        size: Side of the network's images, for a data set that is read from files.
        limit: At most so many.
        seed: Of what is drawn.
        download: Let torchvision download what is missing.
    """
    random = torch.Generator().manual_seed(seed)
    if isinstance(like.test, Masks):
        raise TypeError("out-of-distribution detection is of images that have one class each, not of segmented ones")
    if isinstance(like.test, Texts):
        place = locate(name, root)
        if place is None:
            raise MissingDataError(
                f"{name} does not exist, nor does it under {data_root(root)}: expected a folder or csv of texts"
            )
        texts = read_texts(place)[0][:limit]
        labels = torch.zeros(len(texts), dtype=torch.int64)
        return encode([words(text) for text in texts], like.vocabulary, labels, like.test.length)
    shape = tuple(like.test.x.shape[1:]) if isinstance(like.test, Images) else (3, size, size)
    kind, _, severity = name.partition(":")
    if kind == "noise":
        count = limit or len(like.test)
        x = (0.5 + torch.randn(count, *shape, generator=random)).clamp(0, 1)
        return _images((x * 255).round().to(torch.uint8), shape, like)
    if kind in CORRUPTIONS:
        if not isinstance(like.test, Images):
            raise TypeError(f"{name}: corruptions of images that are read from files are measured by calibrant shift")
        if severity not in ("1", "2", "3", "4", "5"):
            raise ValueError(f"say how severe, from {kind}:1 to {kind}:5; got {name!r}")
        return Images(corrupt(like.test.x[:limit], kind, int(severity), random), like.test.y[:limit])
    if name in SOURCES:
        other = torchvision_set(name, root, validation=1, download=download)
        assert isinstance(other.test, Images)  # noqa: S101
        return _images(other.test.x[:limit], shape, like)
    return _images(_read(name, root, shape, limit), shape, like)


def _read(name: str, root: str | Path | None, shape: tuple[int, ...], limit: int | None) -> Tensor:
    """Images of a folder or of an .npz."""
    place = locate(name, root)
    if place is None:
        raise MissingDataError(
            f"{name!r} is neither {', '.join(SOURCES)}, noise, nor a corruption such as fog:5, and no folder or .npz of "
            f"that name exists here or under {data_root(root)}"
        )
    if place.is_dir():
        paths = sorted(p for p in place.rglob("*") if p.suffix.lower() in ENDINGS)[:limit]
        if not paths:
            raise MissingDataError(f"{place} holds no images ({', '.join(ENDINGS)})")
        return torch.cat([resized(read_image(str(path)).unsqueeze(0), shape) for path in paths])
    try:
        with np.load(place, allow_pickle=False) as archive:
            found = next((key for key in ("x", "test_x", "images") if key in archive.files), None)
            if found is None:
                raise ValueError(f"{place} has no array x, test_x or images; it has {', '.join(archive.files)}")
            return channels_first(torch.from_numpy(archive[found][:limit]))
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{place} cannot be read as an .npz of images ({error})") from error


def _images(x: Tensor, shape: tuple[int, ...], like: DataSet) -> Images:
    x = resized(x, shape)
    if isinstance(like.test, Images) and like.test.x.is_floating_point() and x.dtype == torch.uint8:
        x = x.float() / 255
    return Images(x, torch.zeros(len(x), dtype=torch.int64))


def resized(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Images as ``(N, *shape)``: grey ones in three equal channels or the other way round, and scaled."""
    channels, *size = shape
    kind = x.dtype
    x = x.float()
    if x.shape[1] == 3 and channels == 1:
        x = (x * torch.tensor(GREY).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
    elif x.shape[1] == 1 and channels == 3:
        x = x.expand(-1, 3, -1, -1)
    if x.shape[1] != channels:
        raise ValueError(f"the network sees images of {channels} channels, these have {x.shape[1]}")
    if list(x.shape[2:]) != size:
        x = functional.interpolate(x, size=tuple(size), mode="bilinear", antialias=True)
    return x.round().clamp(0, 255).to(kind) if kind == torch.uint8 else x.to(kind)
