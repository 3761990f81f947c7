"""Tables of data sets and corruptions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from calibrant.registry import Entry, table

#: Augmentations of training images; the last three stand for mixing without any other.
Augmentation = Literal["none", "crop-flip", "imagenet", "timm", "segmentation", "mixup", "cutmix", "regmixup"]
#: Mixing of the images of a training batch, and of their labels.
Mixing = Literal["none", "mixup", "cutmix", "regmixup"]
#: Shapes of a long tail.
LongTailKind = Literal["exp", "pareto", "step"]
#: Kinds of validation sets found in practice.
ValidationSet = Literal["clean", "shifted", "small", "noisy"]


@dataclass(frozen=True)
class DataEntry(Entry):
    """A row of the table of data sets.

    Attributes:
        places: Folders or files under the data root, one of which exists if the data does; empty if no files are needed.
        arguments: First arguments of the function.
    """

    places: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    def load(self) -> Callable[..., Any]:
        """Import the function that makes the data set."""
        function: Callable[..., Any] = super().load()
        return partial(function, *self.arguments) if self.arguments else function


def _data(key: str, path: str, title: str, *places: str) -> DataEntry:
    return DataEntry(key, f"calibrant.data.{path}", title, places)


def _torchvision(key: str, title: str, place: str) -> DataEntry:
    return DataEntry(key, "calibrant.data.arrays:torchvision_set", title, (place,), (key,))


#: Data sets by the name that recipes and the command line use.
DATA: Final = table(
    _data("digits", "sklearn_digits:digits", "handwritten digits, 8 x 8, 10 classes; comes with scikit-learn"),
    _torchvision("mnist", "MNIST, through torchvision", "MNIST/raw"),
    _torchvision("fashion-mnist", "Fashion-MNIST, through torchvision", "FashionMNIST/raw"),
    _torchvision("cifar10", "CIFAR-10, through torchvision", "cifar-10-batches-py"),
    _torchvision("cifar100", "CIFAR-100, through torchvision", "cifar-100-python"),
    _torchvision("svhn", "SVHN, through torchvision", "train_32x32.mat"),
    _data("tiny-imagenet", "folders:tiny_imagenet", "Tiny-ImageNet in its original layout", "tiny-imagenet-200/train"),
    _data("imagenet", "folders:imagenet", "ImageNet in class folders", "imagenet/val"),
    _data("imagenet-lt", "folders:imagenet_lt", "ImageNet-LT, from its file lists", "imagenet/ImageNet_LT_train.txt"),
    _data(
        "newsgroups20",
        "newsgroups:newsgroups20",
        "20 Newsgroups without headers",
        *("20_newsgroups", "20news-bydate-train", "20news-18828"),
    ),
    _data("voc", "pascal_voc:voc", "PASCAL VOC, or any segmented images in its layout", "VOCdevkit/VOC2012"),
    _data("folders", "folders:class_folders", "your own images in folders train/CLASS and test/CLASS"),
    _data("texts", "newsgroups:text_files", "your own texts in a folder or csv"),
    _data("npz", "arrays:npz", "your own images in an .npz"),
)

#: Severities of corruptions.
SEVERITIES: Final = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class CorruptionEntry(Entry):
    """A row of the table of corruptions.

    Attributes:
        small: Strengths of the five severities for images of up to 64 pixels, those of CIFAR-10-C.
        large: The same for larger images, those of ImageNet-C.
    """

    small: tuple[Any, ...]
    large: tuple[Any, ...]


def _corruption(key: str, title: str, small: tuple[Any, ...], large: tuple[Any, ...]) -> CorruptionEntry:
    return CorruptionEntry(key, f"calibrant.data.corruptions:{key}", title, small, large)


#: Corruptions by name.
CORRUPTIONS: Final = table(
    _corruption("gaussian_noise", "Gaussian noise", (0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)),
    _corruption("shot_noise", "shot noise", (500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
    _corruption("impulse_noise", "salt and pepper", (0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27)),
    _corruption("gaussian_blur", "Gaussian blur", (0.4, 0.6, 0.7, 0.8, 1.0), (1, 2, 3, 4, 6)),
    _corruption("contrast", "reduced contrast", (0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05)),
    _corruption("brightness", "increased brightness", (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5)),
    _corruption(
        "fog",
        "fog",
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    ),
    _corruption("pixelate", "pixelation", (0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25)),
    _corruption("jpeg_compression", "JPEG compression", (80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
)
