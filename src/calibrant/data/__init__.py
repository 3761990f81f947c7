"""Data sets of the papers, and your own, by name."""

import inspect
from typing import TYPE_CHECKING, Any

from calibrant.data.table import CORRUPTIONS, DATA, SEVERITIES
from calibrant.errors import InputError, MissingDataError, did_you_mean, lookup
from calibrant.registry import lazy

if TYPE_CHECKING:  # what type checkers and editors see of the lazy names below
    from collections.abc import Callable

    from calibrant.data.arrays import npz as npz, torchvision_set as torchvision_set
    from calibrant.data.corruptions import corrupt as corrupt
    from calibrant.data.dataset import DataSet as DataSet
    from calibrant.data.folders import (
        class_folders as class_folders,
        imagenet as imagenet,
        imagenet_lt as imagenet_lt,
        tiny_imagenet as tiny_imagenet,
    )
    from calibrant.data.given import Items as Items, dataset_from as dataset_from
    from calibrant.data.images import Files as Files, Images as Images
    from calibrant.data.masks import Masks as Masks
    from calibrant.data.newsgroups import newsgroups20 as newsgroups20, text_files as text_files
    from calibrant.data.out_of_distribution import unknown as unknown
    from calibrant.data.part import Feed as Feed, Part as Part
    from calibrant.data.pascal_voc import voc as voc
    from calibrant.data.places import data_root as data_root
    from calibrant.data.sklearn_digits import digits as digits
    from calibrant.data.splits import long_tail_counts as long_tail_counts, split_off as split_off
    from calibrant.data.texts import Texts as Texts
    from calibrant.data.validation_sets import altered as altered

_OTHERS = {
    "DataSet": "dataset",
    "Feed": "part",
    "Files": "images",
    "Images": "images",
    "Items": "given",
    "Masks": "masks",
    "Part": "part",
    "Texts": "texts",
    "altered": "validation_sets",
    "corrupt": "corruptions",
    "dataset_from": "given",
    "data_root": "places",
    "long_tail_counts": "splits",
    "split_off": "splits",
    "unknown": "out_of_distribution",
}
__getattr__ = lazy(__name__, DATA.values(), {name: f"calibrant.data.{module}" for name, module in _OTHERS.items()})
__all__ = [
    "CORRUPTIONS",
    "DATA",
    "SEVERITIES",
    "MissingDataError",
    "create",
    *_OTHERS,
    *sorted({entry.name for entry in DATA.values()}),
]


def create(name: "str | Callable[..., DataSet]", **options: Any) -> "DataSet":
    """Make a data set by its name in :data:`DATA`, or by a function of your own.

    Args:
        name: Such as ``"cifar10"``.
        **options: Options of its function, such as ``root``; those that are None are dropped.
    """
    function = lookup(name, DATA, "data").load() if isinstance(name, str) else name
    accepted = inspect.signature(function).parameters
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in accepted and not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            title = name if isinstance(name, str) else getattr(name, "__name__", repr(name))
            hint = did_you_mean(key, accepted)
            raise ValueError(f"data set {title} takes no option {key!r}; its options are {', '.join(accepted)}{hint}")
    for key, parameter in accepted.items():
        if key not in given and parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            raise InputError(f"it needs `data.{key}`")
    data: DataSet = function(**given)
    return data
