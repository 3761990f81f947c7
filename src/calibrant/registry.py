"""Registries: flat records that are cheap to list, and import what they stand for when used."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar


@dataclass(frozen=True)
class Entry:
    """A row of a table.

    Attributes:
        key: Its name in recipes and on the command line.
        path: ``"module:name"`` of the class or function it stands for.
        title: What it is, in a few words.
    """

    key: str
    path: str
    title: str

    @property
    def name(self) -> str:
        """Name of the class or function."""
        return self.path.partition(":")[2]

    def load(self) -> Any:
        """Import the class or function."""
        module, _, name = self.path.partition(":")
        return getattr(importlib.import_module(module), name)


E = TypeVar("E", bound=Entry)


def table(*entries: E) -> Mapping[str, E]:
    """Entries by their keys."""
    return MappingProxyType({entry.key: entry for entry in entries})


def lazy(package: str, entries: Iterable[Entry], others: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that imports entries, and ``others`` (name to module), on first use."""
    paths = {entry.name: entry.path for entry in entries} | {name: f"{module}:{name}" for name, module in others.items()}

    def attribute(name: str) -> Any:
        if name not in paths:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, inside = paths[name].partition(":")
        return getattr(importlib.import_module(module), inside)

    return attribute
