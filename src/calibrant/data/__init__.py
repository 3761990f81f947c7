"""Data sets of the papers, by name."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from calibrant.data.base import (
    DataSet,
    LongTailKind,
    MissingDataError,
    data_root,
    long_tail,
    long_tail_counts,
    split_off,
)
from calibrant.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from calibrant.data.digits import digits
from calibrant.data.folders import class_folders, imagenet, imagenet_lt, tiny_imagenet
from calibrant.data.held_out import ValidationSet, altered
from calibrant.data.parts import Files, Images, Masks, Part, Texts
from calibrant.data.small import SOURCES, npz, torchvision_set
from calibrant.data.texts import newsgroups20, text_files
from calibrant.data.unknown import unknown
from calibrant.data.voc import voc

__all__ = [
    "CORRUPTIONS",
    "DATA",
    "SEVERITIES",
    "DataSet",
    "Files",
    "Images",
    "LongTailKind",
    "Masks",
    "MissingDataError",
    "Part",
    "Texts",
    "ValidationSet",
    "altered",
    "class_folders",
    "corrupt",
    "data_root",
    "digits",
    "imagenet",
    "imagenet_lt",
    "load",
    "long_tail",
    "long_tail_counts",
    "newsgroups20",
    "npz",
    "split_off",
    "text_files",
    "tiny_imagenet",
    "torchvision_set",
    "unknown",
    "voc",
]

#: Data sets by the name that recipes and the command line use.
DATA: Final[Mapping[str, Callable[..., DataSet]]] = {
    "digits": digits,
    **{name: partial(torchvision_set, name) for name in SOURCES},
    "tiny-imagenet": tiny_imagenet,
    "imagenet": imagenet,
    "imagenet-lt": imagenet_lt,
    "newsgroups20": newsgroups20,
    "voc": voc,
    "folders": class_folders,
    "texts": text_files,
    "npz": npz,
}


def load(name: str | Callable[..., DataSet], **options: Any) -> DataSet:
    """Load a data set by its name in :data:`DATA`, or by a function of one's own.

    Args:
        name: Such as ``"cifar10"``.
        **options: Of its function, such as ``root``; those that are None are left out.
    """
    if isinstance(name, str) and name not in DATA:
        close = difflib.get_close_matches(name, DATA, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"data must be one of {', '.join(DATA)}, got {name!r}{hint}")
    function = DATA[name] if isinstance(name, str) else name
    accepted = inspect.signature(function).parameters
    given = {key: value for key, value in options.items() if value is not None}
    unknown = [key for key in given if key not in accepted]
    if unknown:
        title = name if isinstance(name, str) else next((n for n, f in DATA.items() if f is name), str(name))
        raise ValueError(f"data set {title} takes no option {unknown[0]!r}; its options are {', '.join(accepted)}")
    return function(**given)
