"""Fields of a recipe on the command line, and messages of the library as the command line tells them."""

import math
from typing import Any

import pytest

from calibrant.cli import split_fields
from calibrant.cli.console import as_flags
from calibrant.cli.fields import parse, split, value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", 3),
        ("0.1", 0.1),
        ("1e-3", 1e-3),
        ("2.5E+2", 250.0),
        ("-1e3", -1000.0),
        ("inf", math.inf),
        ("-inf", -math.inf),
        (".inf", math.inf),
        ("true", True),
        ("False", False),
        ("null", None),
        ("cals-alm", "cals-alm"),
        ("[5, 10]", [5, 10]),
        ("[8]", [8]),
        ("{lr: 0.1, name: adam}", {"lr": 0.1, "name": "adam"}),
        ("{}", {}),
        ("timm:resnet18", "timm:resnet18"),
        ("'3'", "3"),
        ('"1e-3"', "1e-3"),
        ("[unclosed", "[unclosed"),
        ("data/some file.npz", "data/some file.npz"),
    ],
)
def test_values(text: str, expected: Any) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


def test_not_a_number_is_one() -> None:
    assert math.isnan(value("nan"))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["--loss", "mbls", "--loss.margin", "6"], {"loss": "mbls", "loss.margin": 6}),
        (["--loss=mbls", "--optimizer.lr=1e-3"], {"loss": "mbls", "optimizer.lr": 1e-3}),
        (["--schedule.milestones", "[10, 20]", "--seed", "3"], {"schedule.milestones": [10, 20], "seed": 3}),
        (["--drop_last", "--epochs", "3"], {"drop_last": True, "epochs": 3}),
        (["--epochs", "3", "--data.download"], {"epochs": 3, "data.download": True}),
        (["--data.path=a=b.npz"], {"data.path": "a=b.npz"}),
        (["--data.root="], {"data.root": None}),
        (["--loss.gamma_max", "-inf", "--loss.scale", "-3"], {"loss.gamma_max": -math.inf, "loss.scale": -3}),
        (["--epochs", "3", "--epochs", "5"], {"epochs": 5}),
        ([], {}),
    ],
)
def test_fields_and_their_values(fields: list[str], expected: dict[str, Any]) -> None:
    assert parse(fields) == expected


def test_a_commands_own_arguments_are_told_from_fields() -> None:
    known = {"--out", "--quiet", "--seeds"}
    arguments = ["digits", "--loss", "mbls", "--out", "runs/a", "--drop_last", "--quiet", "--epochs=3", "--seeds", "1", "2"]
    own, fields = split(arguments, known)
    assert own == ["digits", "--out", "runs/a", "--quiet", "--seeds", "1", "2"]
    assert fields == ["--loss", "mbls", "--drop_last", "--epochs=3"]
    command = ["train", "digits", "--epochs", "3", "--dry-run", "--allow_code", "--model.width", "8", "--out=x"]
    assert split_fields(command) == (
        ["train", "digits", "--dry-run", "--allow_code", "--out=x"],
        ["--epochs", "3", "--model.width", "8"],
    )
    assert split_fields(["evaluate", "p.npz", "--epochs", "3"]) == (["evaluate", "p.npz", "--epochs", "3"], [])
    assert split_fields([]) == ([], [])


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("`num_bins` must be at least 1", "--num-bins must be at least 1"),
        ("pass `data.options.vectors=null`", "pass --data.options.vectors null"),
        ("runs only with `allow_code=True`", "runs only with --allow-code"),
        ("if it is the label, pass `label=truth value`", "if it is the label, pass --label truth value"),
        ("an `Audit` and `run()` stay, `` too", "an `Audit` and `run()` stay, `` too"),
        ("nothing to change", "nothing to change"),
    ],
)
def test_python_arguments_become_flags(message: str, expected: str) -> None:
    assert as_flags(message) == expected
