"""Fields of a recipe on the command line, and messages of the library as the command line tells them."""

import math
from typing import Any

import pytest

from calibrant.cli import main, split_fields
from calibrant.cli.console import as_flags
from calibrant.cli.fields import parse, split
from calibrant.recipes.fields import parse_value


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
        ("2:20", "2:20"),  # 140 to YAML
        ("1:00:00:00", "1:00:00:00"),
        ("[unclosed", "[unclosed"),
        ("data/some file.npz", "data/some file.npz"),
    ],
)
def test_values(text: str, expected: Any) -> None:
    found = parse_value(text)
    assert found == expected
    assert type(found) is type(expected)


def test_not_a_number_is_one() -> None:
    assert math.isnan(parse_value("nan"))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["--loss", "mbls", "--loss.margin", "6"], {"loss": "mbls", "loss.margin": 6}),
        (["--cals-alm.rho-init", "10", "--fl.gamma=5"], {"cals-alm.rho_init": 10, "fl.gamma": 5}),
        (["--loss=mbls", "--optimizer.lr=1e-3"], {"loss": "mbls", "optimizer.lr": 1e-3}),
        (["--schedule.milestones", "[10, 20]", "--seed", "3"], {"schedule.milestones": [10, 20], "seed": 3}),
        (["--drop_last", "--epochs", "3"], {"drop_last": True, "epochs": 3}),
        (["--epochs", "3", "--data.download"], {"epochs": 3, "data.download": True}),
        (["--data.path=a=b.npz"], {"data.path": "a=b.npz"}),
        (["--data.root="], {"data.root": None}),
        (["--loss.gamma_max", "-inf", "--loss.scale", "-3"], {"loss.gamma_max": -math.inf, "loss.scale": -3}),
        (["--epochs", "3", "--epochs", "5"], {"epochs": 5}),
        (["--batch-size", "3", "--methods.cals-alm.margin", "6"], {"batch_size": 3, "methods.cals-alm.margin": 6}),
        (["--data.path", "2001-99-99"], {"data.path": "2001-99-99"}),
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["calibrate", "val.npz"], "calibrate needs TEST (predictions to evaluate on"),
        (["calibrate"], "calibrate needs VALIDATION (predictions to fit on"),
        (["apply", "calibrator", "p.npz"], "apply needs --out FILE (the file to write"),
        (["train"], "train needs RECIPE (name of"),
        (["ood"], "ood needs RUN (run folders) and --ood NAME (OOD data, by name or path); see calibrant ood"),
        (
            ["evaluate", "p.npz", "--num-bin", "3"],
            "evaluate has no option --num-bin; did you mean --num-bins? See",
        ),
        (["evaluate", "p.npz", "--zebra"], "evaluate has no option --zebra; see calibrant evaluate --help"),
        (
            ["evaluate", "p.npz", "--num-bins", "x"],
            "--num-bins must be an integer, got x; see calibrant",
        ),
        (["compare", "digits", "--jobs", "2.5"], "--jobs must be an integer, got 2.5"),
        (["list", "losses", "b"], "list does not expect b"),
        (["comapre"], "there is no command 'comapre'; did you mean compare? See calibrant --help"),
        (["zzz"], "there is no command 'zzz'; commands are train, compare"),
        ([], "no command given; choose from train, compare, tune"),
    ],
)
def test_wrong_usage_in_plain_words(capsys, arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith(f"calibrant: {said}")
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tune", "digits", "--space", "epochs=1..2", "--space", "seed=1,2"], "--space is given twice; put all its values"),
        (["compare", "digits", "--seeds", "7", "--seeds=8"], "--seeds is given twice; put all its values after one --seeds"),
        (["evaluate", "p.npz", "--columns", "a", "--columns", "b"], "--columns is given twice"),
        (["tune", "digits", "--trial", "2"], "tune has no option --trial; did you mean --trials?"),
        (["compare", "digits", "--metric", "ece"], "compare has no option --metric; did you mean --metrics?"),
        (["train", "digits", "--epoch", "3"], "recipe digits: epoch is not a field of a recipe; did you mean --epochs?"),
        (["train", "digits", "--loss", "mbls", "--loss.margn", "3"], "loss.margn is not known; allowed are loss.margin"),
        (["train", "digits", "--loss", "mbls", "--loss.margin", "2:20"], "loss mbls: margin must be a number, got str"),
        (["train", "digits", "--loss", "MBLS"], "loss.name must be one of"),
    ],
)
def test_mistakes_are_told_before_anything_is_done(capsys, arguments: list[str], said: str) -> None:
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert said in text
    assert text.count("\n") == 1
    assert "MBLS" not in arguments or "did you mean 'mbls'?" in text
    assert "--loss.margn" not in arguments or "did you mean 'loss.margin'?" in text
