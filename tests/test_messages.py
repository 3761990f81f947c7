"""What messages promise: packages that are declared, flags that exist."""

import ast
import inspect
import re
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest

from calibrant.cli import COMMANDS, _module
from calibrant.cli.console import FLAGS, as_flags
from calibrant.extras import DISTRIBUTIONS, EXTRAS
from calibrant.losses import METHODS
from calibrant.recipes.fields import flatten
from calibrant.recipes.recipe import Recipe

SOURCE = Path(__file__).parents[1] / "src" / "calibrant"
FILES = sorted(SOURCE.rglob("*.py"))


def texts(path: Path) -> Iterator[str]:
    """Strings of a file that are not docstrings; what is filled in later is left out."""
    tree = ast.parse(path.read_text())
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.value


def required() -> set[str]:
    """Packages that are imported through ``require``."""
    calls = [
        node
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "require"
        and isinstance(node.args[0], ast.Constant)
    ]
    return {str(call.args[0].value).partition(".")[0] for call in calls}


def test_every_required_package_is_known_and_every_known_one_required() -> None:
    trackers = {"mlflow", "trackio", "wandb"}  # whoever chooses one has it
    assert required() - trackers == set(EXTRAS)


def test_every_extra_is_declared() -> None:
    declared = requires("calibrant") or []
    for package, extra in EXTRAS.items():
        name = DISTRIBUTIONS.get(package, package)
        mark = f'extra == "{extra}"' if extra else ""
        found = [line for line in declared if line.startswith(name) and mark in line and bool(extra) == ("extra ==" in line)]
        assert found, (package, extra)


def flags() -> set[str]:
    """Every flag of every command, fields of recipes included."""
    options = {
        name for command in COMMANDS for action in _module(command).parser()._actions for name in action.option_strings
    }
    of_methods = {f"--{key}.{name}" for key, method in METHODS.items() for name in inspect.signature(method.loss).parameters}
    return options | {f"--{path}" for path in flatten(Recipe().to_dict())} | of_methods | {"--version"}


def exists(flag: str, known: set[str]) -> bool:
    """A flag itself, a group of fields, or an option of what a group names, such as --data.options.length."""
    group = flag.partition(".")[0]
    return (
        flag in known
        or any(name.startswith(f"{flag}.") for name in known)
        or group in ("--data", "--loss", "--model", "--trainer")
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_flag_that_a_message_names_exists(path: Path) -> None:
    known = flags()
    for text in texts(path):
        for flag in re.findall(r"(?<![\w-])--[a-z][\w.-]*[\w]", as_flags(text)):
            assert exists(flag, known), (flag, text)


def test_the_library_names_no_flags() -> None:
    """Its messages name Python arguments; the command line turns them into flags."""
    for path in FILES:
        if path.parent.name != "cli" and path.name != "papers.py":  # which tells the commands that a figure needs
            named = [text for text in texts(path) if re.search(r"(?<![\w-])--[a-z]", text)]
            assert not named, (path, named)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("pass `force=True` to replace it", "pass --force to replace it"),
        ('pass `kind="logits"` or `kind="probs"`', "pass --logits or --probs"),
        ("pass `ignore_index=255`", "pass --ignore-index 255"),
        ("pass `data.options.in_memory=False`", "pass --data.options.in_memory false"),
        ("pass another `out`", "pass another --out"),
        ("it holds `nothing like that`", "it holds `nothing like that`"),
    ],
)
def test_arguments_become_flags(message: str, expected: str) -> None:
    assert as_flags(message) == expected


def test_flags_of_the_table_exist() -> None:
    assert set(FLAGS.values()) <= flags()
