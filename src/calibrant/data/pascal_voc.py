"""Segmented images in the layout of PASCAL VOC."""

from collections.abc import Sequence
from pathlib import Path

import torch

from calibrant.data.dataset import DataSet
from calibrant.data.folders import IMAGENET_MEAN, IMAGENET_STD
from calibrant.data.masks import Masks
from calibrant.data.places import data_root, locate
from calibrant.data.splits import split_off
from calibrant.errors import MissingDataError

LAYOUT = "JPEGImages/*.jpg, SegmentationClass/*.png and ImageSets/Segmentation/{train,val}.txt"
VOC_CLASSES = [
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "dining table"),
    *("dog", "horse", "motorbike", "person", "potted plant", "sheep", "sofa", "train", "tv monitor"),
]


def voc(
    path: str | Path = "VOCdevkit/VOC2012",
    root: str | Path | None = None,
    *,
    validation: float = 0.2,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    void: int = 255,
) -> DataSet:
    """PASCAL VOC, or any data set in its layout.

    If there is a list ``test.txt`` with masks, the three lists are the three parts. Otherwise, as for VOC itself,
    ``val.txt`` is the test part and some of ``train.txt`` is held out for validation: 1,171 / 293 / 1,449 images of VOC2012.

    Args:
        path: The folder, as given or under ``root``.
        root: Data folder.
        validation: Training images held out, a number or a fraction, if there is no test list.
        seed: Seed of the split.
        classes: Names of the classes, from class 0; by default those in the folder's ``classes.txt``, or else VOC's.
        void: Label of ignored pixels.
    """
    folder = locate(path, root, "ImageSets/Segmentation")
    if folder is None:
        raise MissingDataError(f"{path} is not in {data_root(root)}: expected {data_root(root) / path} with {LAYOUT}")
    if classes is None:
        own = folder / "classes.txt"
        classes = own.read_text().split("\n") if own.exists() else VOC_CLASSES
        classes = [name.strip() for name in classes if name.strip()]
    train, other = (_listed(folder, name, void) for name in ("train", "val"))
    test = _listed(folder, "test", void) if _has_test(folder) else None
    if test is not None:
        return DataSet(folder.name, classes, train, other, test, IMAGENET_MEAN, IMAGENET_STD)
    kept, out = split_off(torch.zeros(len(train)), validation, seed)
    split = {"train": kept, "validation": out}
    return DataSet(folder.name, classes, train.subset(kept), train.subset(out), other, IMAGENET_MEAN, IMAGENET_STD, split)


def _has_test(folder: Path) -> bool:
    """Whether there is a list of test images with masks, which VOC does not publish."""
    names = _names(folder, "test") if (folder / "ImageSets" / "Segmentation" / "test.txt").exists() else []
    return bool(names) and (folder / "SegmentationClass" / f"{names[0]}.png").exists()


def _names(folder: Path, name: str) -> list[str]:
    path = folder / "ImageSets" / "Segmentation" / f"{name}.txt"
    if not path.exists():
        raise MissingDataError(f"{path} does not exist; expected {LAYOUT}")
    names = path.read_text().split()
    if not names:
        raise MissingDataError(f"{path} is empty; expected one image name per line")
    return names


def _listed(folder: Path, name: str, void: int) -> Masks:
    names = _names(folder, name)
    images = [folder / "JPEGImages" / f"{n}.jpg" for n in names]
    masks = [folder / "SegmentationClass" / f"{n}.png" for n in names]
    missing = next((path for path in (*images, *masks) if not path.exists()), None)
    if missing is not None:
        raise MissingDataError(f"{missing} does not exist, but {name}.txt lists it")
    return Masks([str(p) for p in images], [str(p) for p in masks], void)
