"""Images that fit in memory: MNIST, Fashion-MNIST, CIFAR, SVHN, and your own arrays."""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calibrant.data.dataset import DataSet
from calibrant.data.images import Images
from calibrant.data.places import data_root, locate
from calibrant.data.splits import split_off
from calibrant.errors import MissingDataError
from calibrant.extras import require, weights_only

if TYPE_CHECKING:
    from collections.abc import Callable

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def torchvision_set(
    name: str, root: str | Path | None = None, *, validation: float = 5000, seed: int = 0, download: bool = False
) -> DataSet:
    """A data set that torchvision reads: mnist, fashion-mnist, cifar10, cifar100 or svhn.

    Args:
        name: Which one.
        root: Data folder, in which torchvision looks for its own.
        validation: Training images held out, a number or a fraction.
        seed: Seed of the split.
        download: Let torchvision download missing data.
    """
    datasets = require("torchvision.datasets", f"the data set {name}")
    kind, layout, mean, std = SOURCES[name]
    folder = data_root(root)
    load: Callable[..., Any] = getattr(datasets, kind)
    splits = ({"split": "train"}, {"split": "test"}) if name == "svhn" else ({"train": True}, {"train": False})
    try:  # CIFAR's pickles are opened only after their checksums were verified
        with weights_only():
            train, test = (load(str(folder), download=download, **which) for which in splits)
    except Exception as error:
        cure = "the download failed" if download else "pass `data.download=True` to download it"
        raise MissingDataError(
            f"{name} is not in {folder}: expected torchvision's layout, {layout}, as it was published; {cure}"
        ) from error
    classes = [str(c) for c in getattr(train, "classes", range(10))]
    return from_arrays(name, *_array(train), *_array(test), classes, mean, std, validation=validation, seed=seed)


#: torchvision's class, the folder it looks for, and statistics of the channels.
SOURCES: dict[str, tuple[str, str, tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ("MNIST", "MNIST/raw/*-ubyte", (0.1307,), (0.3081,)),
    "fashion-mnist": ("FashionMNIST", "FashionMNIST/raw/*-ubyte", (0.2860,), (0.3530,)),
    "cifar10": ("CIFAR10", "cifar-10-batches-py/", CIFAR_MEAN, CIFAR_STD),
    "cifar100": ("CIFAR100", "cifar-100-python/", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": ("SVHN", "{train,test}_32x32.mat", (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
}


def _array(source: Any) -> tuple[Tensor, Tensor]:
    x = torch.as_tensor(np.asarray(source.data))
    y = torch.as_tensor(np.asarray(source.targets if hasattr(source, "targets") else source.labels)).long()
    return x, y


def npz(
    path: str | Path,
    root: str | Path | None = None,
    *,
    validation: float = 0.1,
    seed: int = 0,
) -> DataSet:
    """Arrays ``train_x, train_y, test_x, test_y`` of an .npz; optionally ``classes``, ``validation_x, validation_y``.

    Args:
        path: The file, as given or under ``root``.
        root: Data folder.
        validation: Training images held out, a number or a fraction, if the file has no validation part.
        seed: Seed of the split.
    """
    found = locate(path, root)
    if found is None:
        raise MissingDataError(
            f"{path} does not exist, neither as given nor under {data_root(root)}: expected an .npz with train_x, ..."
        )
    if not zipfile.is_zipfile(found):
        raise ValueError(f"{found} is not an .npz")
    try:
        with np.load(found, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{found} cannot be read as an .npz of numbers ({error})") from error
    missing = [name for name in ("train_x", "train_y", "test_x", "test_y") if name not in arrays]
    if missing:
        raise ValueError(f"{found} has no array {missing[0]}; it has {', '.join(arrays)}")
    parts = {name: torch.from_numpy(arrays[name]) for name in arrays if name != "classes"}
    train_y, test_y = parts["train_y"].long(), parts["test_y"].long()
    for name, y in (("train_y", train_y), ("test_y", test_y)):
        if len(y) != len(parts[name.replace("_y", "_x")]) or y.dim() != 1 or int(y.min()) < 0:
            raise ValueError(f"{found}: {name} must be class indices from 0, one for each of {name.replace('_y', '_x')}")
    count = int(max(train_y.max(), test_y.max())) + 1
    classes = [str(c) for c in arrays.get("classes", range(count))]
    x = channels_first(parts["train_x"])
    values = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    mean, std = ([round(float(v), 4) for v in f] for f in (values.mean((0, 2, 3)), values.std((0, 2, 3)).clamp(min=1e-3)))
    own = (parts["validation_x"], parts["validation_y"].long()) if "validation_x" in parts else None
    return from_arrays(
        found.stem, x, train_y, parts["test_x"], test_y, classes, mean, std, validation=validation, seed=seed, own=own
    )


def from_arrays(
    name: str,
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    classes: list[str],
    mean: Any,
    std: Any,
    *,
    validation: float,
    seed: int,
    own: tuple[Tensor, Tensor] | None = None,
) -> DataSet:
    """Three parts from two, the validation part drawn from the training images."""
    train = Images(channels_first(train_x), train_y)
    test = Images(channels_first(test_x), test_y)
    if own is not None:
        held = Images(channels_first(own[0]), own[1])
        return DataSet(name, classes, train, held, test, mean, std)
    kept, out = split_off(train_y, validation, seed)
    split = {"train": kept, "validation": out}
    return DataSet(name, classes, train.subset(kept), train.subset(out), test, mean, std, split)


def channels_first(x: Tensor) -> Tensor:
    """Images ``(N, C, H, W)``, ``(N, H, W, C)`` or ``(N, H, W)`` as ``(N, C, H, W)``, in uint8 if integer, else float32."""
    if x.is_floating_point():
        x = x.float()
    elif x.dtype != torch.uint8:
        if x.numel() and not 0 <= int(x.min()) <= int(x.max()) <= 255:
            raise ValueError(f"integer images must have values from 0 to 255, got {int(x.min())} to {int(x.max())}")
        x = x.to(torch.uint8)
    if x.dim() == 3:
        return x.unsqueeze(1)
    if x.dim() != 4:
        raise ValueError(f"images must be (N, H, W), (N, H, W, C) or (N, C, H, W), got {tuple(x.shape)}")
    return x.movedim(-1, 1).contiguous() if x.shape[1] not in (1, 3) and x.shape[-1] in (1, 3) else x.contiguous()
