"""Examples in docstrings: everything that people call has one, and all of them are true."""

import doctest
import importlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import matplotlib as mpl
import pytest
import torch

import calibrant
from calibrant import audit, functional, losses, metrics, plots, posthoc, recipes, stats, study

PUBLIC = [losses, functional, metrics, posthoc, stats, plots]
#: What else people call.
OTHERS = [recipes.Recipe, study.Study, audit.audit]


def names() -> Iterator[tuple[ModuleType, str]]:
    for package in PUBLIC:
        yield from ((package, name) for name in package.__all__ if callable(getattr(package, name)))


def examples(text: str | None) -> str:
    return "\n".join(re.findall(r">>> (.*)", text or ""))


@pytest.mark.parametrize(("package", "name"), list(names()), ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_everything_that_is_called_has_an_example(package: ModuleType, name: str) -> None:
    """In its own docstring, or in that of its package."""
    own = examples(getattr(package, name).__doc__)
    assert own or re.search(rf"\b{name}\b", examples(package.__doc__)), f"{package.__name__}.{name} has no >>> example"


def test_there_are_many() -> None:
    assert len(list(names())) > 100
    assert all(examples(item.__doc__) for item in OTHERS)


def modules() -> list[str]:
    root = Path(calibrant.__path__[0])
    files = [path.relative_to(root).with_suffix("") for path in sorted(root.rglob("*.py")) if ">>>" in path.read_text()]
    return [".".join(("calibrant", *path.parts)).removesuffix(".__init__") for path in files]


@pytest.mark.parametrize("module", modules())
def test_examples_are_true(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of so few samples
        result = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    plots.base.close_all()
    assert result.attempted > 0
    assert result.failed == 0
