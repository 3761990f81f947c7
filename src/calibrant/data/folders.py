"""Images in folders: class folders, Tiny-ImageNet, ImageNet, ImageNet-LT."""

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from calibrant.data.dataset import DataSet
from calibrant.data.images import Files, Images, read_image
from calibrant.data.places import data_root, locate
from calibrant.data.splits import split_off
from calibrant.errors import MissingDataError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def class_folders(path: str | Path, root: str | Path | None = None, *, validation: float = 0.1, seed: int = 0) -> DataSet:
    """Any tree ``train/CLASS/*.jpg``, ``test/CLASS/*.jpg`` and optionally ``validation/CLASS/*.jpg``.

    In a tree with only ``train`` and ``val``, ``val`` is the test part, with a warning.

    Args:
        path: The folder, as given or under ``root``.
        root: Data folder.
        validation: Training images held out, a number or a fraction, if there is no validation folder.
        seed: Seed of the split.
    """
    folder = _find(path, root, "train/CLASS/*.jpg and test/CLASS/*.jpg")
    classes = _class_names(folder / "train")
    name = next((n for n in ("validation", "val") if (folder / n).is_dir()), None)
    tested, name = ("test", name) if (folder / "test").is_dir() or name is None else (name, None)
    train, test = (_tree(folder / part, classes) for part in ("train", tested))
    if tested != "test":
        warnings.warn(
            f"{folder} has no test folder: {tested} is the test part, and {validation:g} "
            f"{'of the images' if validation < 1 else 'images'} in train are held out for validation",
            stacklevel=2,
        )
    if name is not None:
        held = _tree(folder / name, classes)
        return DataSet(folder.name, classes, train, held, test, IMAGENET_MEAN, IMAGENET_STD)
    kept, out = split_off(train.y, validation, seed)
    split = {"train": kept, "validation": out}
    return DataSet(folder.name, classes, train.subset(kept), train.subset(out), test, IMAGENET_MEAN, IMAGENET_STD, split)


def tiny_imagenet(root: str | Path | None = None, *, validation: int = 50, seed: int = 0, in_memory: bool = True) -> DataSet:
    """Tiny-ImageNet in its original layout; the official validation set is the test set.

    Args:
        root: Data folder.
        validation: Training images of each class held out.
        seed: Seed of the split.
        in_memory: Decode all images once (1.4 GB for all 110,000) instead of in every epoch.
    """
    layout = "wnids.txt, train/WNID/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt"
    folder = _find("tiny-imagenet-200", root, layout)
    _need(folder / "val" / "val_annotations.txt", layout)
    classes = sorted((folder / "wnids.txt").read_text().split())
    number = {name: k for k, name in enumerate(classes)}
    paths = [(str(p), k) for k, name in enumerate(classes) for p in _images(folder / "train" / name / "images")]
    train = Files([p for p, _ in paths], torch.tensor([k for _, k in paths]))
    lines = [line.split("\t") for line in (folder / "val" / "val_annotations.txt").read_text().splitlines() if line]
    known = [(str(folder / "val" / "images" / line[0]), number[line[1]]) for line in lines if line[1] in number]
    known = [(path, k) for path, k in known if Path(path).exists()]
    test = Files([p for p, _ in known], torch.tensor([k for _, k in known]))
    kept, out = split_off(train.y, validation, seed, per_class=True)
    split = {"train": kept, "validation": out}
    names = _words(folder / "words.txt", classes)
    files = [train.subset(kept), train.subset(out), test]
    learn, held, rest = (Images(decode(part.paths), part.y) if in_memory else part for part in files)
    return DataSet("tiny-imagenet", names, learn, held, rest, IMAGENET_MEAN, IMAGENET_STD, split)


def imagenet(root: str | Path | None = None, *, validation: float = 0.2, seed: int = 0) -> DataSet:
    """ImageNet as class folders; the official validation set is split into validation and test.

    Args:
        root: Data folder.
        validation: Fraction of the official validation set to validate on: 0.2 in CALS (10,000 images), 0.5 in AdaFocal.
        seed: Seed of the split.
    """
    layout = "train/WNID/*.JPEG and val/WNID/*.JPEG"
    folder = _find("imagenet", root, layout)
    _need(folder / "val", layout)
    classes = _class_names(folder / "train")
    train, official = _tree(folder / "train", classes), _tree(folder / "val", classes)
    test, held = split_off(official.y, validation, seed)
    split = {"validation": held, "test": test}
    return DataSet(
        "imagenet", classes, train, official.subset(held), official.subset(test), IMAGENET_MEAN, IMAGENET_STD, split
    )


def imagenet_lt(root: str | Path | None = None) -> DataSet:
    """ImageNet-LT (Liu et al., CVPR 2019): ImageNet's folders and the published file lists.

    Args:
        root: Data folder.
    """
    layout = "ImageNet_LT_train.txt, ImageNet_LT_val.txt and ImageNet_LT_test.txt beside train/ and val/"
    folder = _find("imagenet", root, layout)
    parts = []
    for name in ("train", "val", "test"):
        path = folder / f"ImageNet_LT_{name}.txt"
        _need(path, layout)
        rows = [line.rsplit(" ", 1) for line in path.read_text().splitlines() if line.strip()]
        parts.append(Files([str(folder / row[0]) for row in rows], torch.tensor([int(row[1]) for row in rows])))
    count = max(int(part.y.max()) for part in parts) + 1
    names = ["" for _ in range(count)]
    for place, k in zip(parts[0].paths, parts[0].y.tolist(), strict=True):
        names[k] = Path(place).parent.name
    train, held, test = parts
    return DataSet("imagenet-lt", names, train, held, test, IMAGENET_MEAN, IMAGENET_STD)


def decode(paths: Sequence[str]) -> Tensor:
    """All images as one tensor; they must have the same size."""
    with ThreadPoolExecutor() as pool:
        images = list(pool.map(read_image, paths))
    sizes = {tuple(image.shape) for image in images}
    if len(sizes) > 1:
        raise ValueError(
            f"images kept in memory must have the same size, found {sorted(sizes)[:3]}; pass `data.options.in_memory=False`"
        )
    return torch.stack(images)


def _find(path: str | Path, root: str | Path | None, layout: str) -> Path:
    found = locate(path, root, "train")
    if found is None:
        raise MissingDataError(f"{path} is not in {data_root(root)}: expected {data_root(root) / path} with {layout}")
    return found


def _need(path: Path, layout: str) -> None:
    if not path.exists():
        raise MissingDataError(f"{path} does not exist; expected {layout}")


def _class_names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS)


def _tree(folder: Path, classes: Sequence[str]) -> Files:
    _need(folder, "a folder of images for each class")
    unknown = set(_class_names(folder)) - set(classes)
    if unknown:
        raise MissingDataError(f"{folder} has the class {min(unknown)!r}, but there are no images of it to train on")
    found = [(str(path), k) for k, name in enumerate(classes) if (folder / name).is_dir() for path in _images(folder / name)]
    if not found:
        raise MissingDataError(f"{folder} holds no images: expected CLASS/*.jpg there")
    return Files([path for path, _ in found], torch.tensor([k for _, k in found]))


def _words(path: Path, classes: Sequence[str]) -> list[str]:
    if not path.exists():
        return list(classes)
    words = dict(line.split("\t", 1) for line in path.read_text().splitlines() if "\t" in line)
    return [words.get(name, name).split(",")[0] for name in classes]
