"""Train networks whose confidence means what it says, and prove it."""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

#: Imported when first used, so that ``calibrant --help`` does not wait for PyTorch.
_PARTS = (
    *("audit", "data", "evaluation", "functional", "integrations", "losses", "metrics", "models", "plots", "posthoc"),
    *("predictions", "recipes", "report", "runs", "stats", "study", "train"),
)

__all__ = ["__version__"]
__version__ = version("calibrant")


def __getattr__(name: str) -> "ModuleType":
    if name in _PARTS:
        return importlib.import_module(f"calibrant.{name}")
    raise AttributeError(f"module 'calibrant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PARTS])
