"""Recipes: read, overridden, compared, and what is said when something is wrong with one."""

import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from calibrant.errors import InputError
from calibrant.recipes import (
    RECIPES,
    Data,
    LongTail,
    LossChoice,
    Model,
    Optimizer,
    Recipe,
    Schedule,
    find,
    import_name,
)
from calibrant.train import check
from calibrant.train.engine import learning_rate


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipes_are_read_checked_and_written(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name].load()
    assert recipe.name == name
    check(recipe)
    assert recipe == Recipe.load(name) == Recipe.load(find(name)) == Recipe.load(recipe) == Recipe.load(recipe.to_dict())
    (tmp_path / "copy.yaml").write_text(recipe.to_yaml())
    assert Recipe.load(tmp_path / "copy.yaml") == recipe
    assert Recipe.load(tmp_path / "copy.yaml").difference(recipe) == ""


def test_recipes_are_those_of_the_papers() -> None:
    """What the papers and their code state, field by field."""
    imagenet = Recipe.load("imagenet-resnet50-adafocal")  # AdaFocal, Appendix C
    assert (imagenet.optimizer.name, imagenet.optimizer.momentum, imagenet.optimizer.weight_decay) == ("sgd", 0.9, 1e-4)
    rates = [learning_rate(imagenet, epoch) for epoch in (0, 29.9, 30, 59.9, 60, 89.9)]
    assert rates == pytest.approx([1e-2, 1e-2, 1e-3, 1e-3, 1e-4, 1e-4])
    assert (imagenet.epochs, imagenet.batch_size, imagenet.data.validation, imagenet.select) == (90, 128, 0.5, "last")
    for name, weight in (("cifar10-resnet50", 2.0), ("cifar100-wrn26-10", 2.0), ("newsgroups20", 4.0)):
        loss = Recipe.load(name, loss="mmce").build_loss(10)
        assert (loss.weight, loss.weighted, loss.form) == (weight, True, "released")
    assert Recipe.load("newsgroups20-cals", loss="mmce").build_loss(20).weight == 0.1  # CALS, Appendix C
    dropout = [Recipe.load(name).build_model(20, {}).dropout for name in ("newsgroups20", "newsgroups20-cals")]
    assert dropout == [0.3, 0.0]
    for name, recipe in ((name, Recipe.load(name)) for name in RECIPES):
        if name.startswith(("imagenet", "tiny-imagenet", "newsgroups20-cals")) and not name.endswith("adafocal"):
            assert recipe.select == "accuracy", name
    clipped = Recipe.load("cifar10-resnet50", **{"loss.reduction": "sum"})  # as released with Mukhoti et al. and AdaFocal
    assert (clipped.build_loss(10).reduction, clipped.trainer["gradient_clip_val"]) == ("sum", 2.0)


def test_overrides_of_every_kind() -> None:
    base = Recipe.load("digits")
    recipe = Recipe.load(
        "digits",
        epochs=3,
        loss="mbls",
        model={"name": "mlp", "hidden": [8]},
        optimizer={"lr": 1},
        data={"long_tail": {"ratio": 5}},
        methods={"cals-alm": {"margin": 6}},
        **{"loss.margin": 4, "schedule": "step", "schedule.milestones": [1, 2], "data.limit": 50, "trainer.devices": 2},
    )
    assert recipe == replace(
        base,
        epochs=3,
        loss=LossChoice("mbls", {"margin": 4}),
        model=Model("mlp", {"hidden": [8]}),
        optimizer=replace(base.optimizer, lr=1.0),
        data=replace(base.data, long_tail=LongTail(5.0), limit=50),
        methods={"cals-alm": {"margin": 6}},
        schedule=Schedule("step", [1, 2]),
        trainer={"devices": 2},
    )
    assert type(recipe.optimizer.lr) is float  # so that files and comparisons do not depend on how it was written
    assert base == Recipe.load("digits")
    assert recipe.build_loss(10).margin == 4


def test_long_and_short_forms_are_the_same() -> None:
    long = {
        "loss.name": "mbls",
        "loss.options.margin": 4,
        "model.options.width": 8,
        "model.compile": True,
        "data.name": "npz",
    }
    short = {"loss": "mbls", "loss.margin": 4, "model.width": 8, "model.compile": True, "data": "npz"}
    assert Recipe.load("digits", **long) == Recipe.load("digits", **short)
    assert Recipe.load({"loss": "mbls", "optimizer": "adam"}) == Recipe(loss=LossChoice("mbls"), optimizer=Optimizer("adam"))
    for first, second in ((long, short), (short, long)):  # what comes last counts
        again = {name: "ce" if name in ("loss", "loss.name") else value for name, value in second.items()}
        assert Recipe.load(Recipe.load("digits", **first), **again).loss == LossChoice("ce", {"margin": 4})


def test_an_empty_mapping_clears_what_is_there() -> None:
    mine = Recipe.load("newsgroups20", **{"loss": "mbls", "loss.margin": 4})
    assert mine.data.options
    assert Recipe.load(mine, data={"options": {}}).data == replace(mine.data, options={})
    assert Recipe.load(mine, **{"data.options": {}, "data.options.length": 30}).data.options == {"length": 30}
    assert Recipe.load(mine, **{"loss.options": {}}).loss == LossChoice("mbls")
    assert Recipe.load(mine, loss={}).loss == LossChoice()
    assert Recipe.load({"data": {}, "optimizer": {}}) == Recipe()


def test_recipes_without_a_name_are_called_like_their_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("epochs: 2\n")
    assert Recipe.load(tmp_path / "mine.yaml").name == Recipe.load(str(tmp_path / "mine.yaml")).name == "mine"
    assert Recipe.load(tmp_path / "mine.yaml", name="other").name == "other"
    assert Recipe.load({"epochs": 2}) == Recipe(epochs=2)
    assert Recipe.load({}).name == "run"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"epoch": 3}, "recipe digits: epoch is not a field of a recipe; did you mean `epochs`?"),
        ({"data.nmae": "x"}, "recipe digits: data.nmae is not a field of a recipe; did you mean `data.name`?"),
        ({"data": {"long_tail": {"ration": 3}}}, "data.long_tail.ration is not .*; did you mean `data.long_tail.ratio`?"),
        ({"optimizer.learning_rate": 3}, "optimizer.learning_rate is not .*; did you mean `optimizer.lr`?"),
        ({"learning_rate": 3}, "learning_rate is not .*; did you mean `optimizer.lr`?"),
        ({"lr": 3}, "lr is not .*; did you mean `optimizer.lr`?"),
        ({"optimizer.batch_size": 3}, "optimizer.batch_size is not .*; did you mean `batch_size`?"),
        ({"batch-size": 3}, "batch-size is not .*; did you mean `batch_size`?"),
        ({"data.num_workers": 3}, "data.num_workers is not .*; did you mean `data.workers`?"),
        ({"precision": 16}, "precision is not .*; did you mean `trainer.precision`?"),
        ({"dataset": "x"}, "dataset is not .*; did you mean `data`?"),
        ({"zebra": 3}, "zebra is not a field of a recipe; allowed are name, about, data, model"),
        ({"optimizer.zebra": 3}, "optimizer.zebra is not .*; allowed are optimizer.name, optimizer.lr, optimizer.momentum"),
        ({"epochs": "many"}, "recipe digits: epochs: expected int, got 'many'"),
        ({"epochs": 2.5}, "recipe digits: epochs: expected int, got 2.5"),
        ({"epochs": True}, "recipe digits: epochs: expected int, got True"),
        ({"drop_last": "yes"}, "recipe digits: drop_last: expected bool, got 'yes'"),
        ({"optimizer.lr": "fast"}, "recipe digits: optimizer.lr: expected a number, got 'fast'"),
        ({"optimizer": "lbfgs"}, "recipe digits: optimizer.name: expected one of 'sgd', 'adam', 'adamw', got 'lbfgs'"),
        ({"schedule.milestones": 3}, "recipe digits: schedule.milestones: expected a list, got 3"),
        ({"schedule.milestones": [3, "x"]}, r"recipe digits: schedule.milestones\[1\]: expected int, got 'x'"),
        ({"trainer": 3}, "recipe digits: trainer: expected an object, got 3"),
        ({"augmentation": "rotate"}, "augmentation: expected one of 'none', 'crop-flip', .*, got 'rotate'"),
        ({"data.long_tail": 20}, "recipe digits: data.long_tail: expected an object, got 20"),
    ],
)
def test_wrong_fields_are_named(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Recipe.load("digits", **overrides)


#: A few lines that stand for a billion values.
BOMB = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "mine.yaml should hold the fields of a recipe, but holds list"),
        ("", "mine.yaml should hold the fields of a recipe, but holds NoneType"),
        ("epochs: [", "mine.yaml cannot be read as YAML"),
        ("!!python/object/apply:os.system ['true']", "mine.yaml cannot be read as YAML .*could not determine a constructor"),
        ("epochs: no", "recipe mine: epochs: expected int, got False"),
        ("data: {1: 2}", "recipe mine: data.1 is not a field of a recipe"),
        ("epochs: 2001-99-99", "mine.yaml cannot be read as YAML"),
        ("epochs: !!timestamp x", "mine.yaml cannot be read as YAML"),
        ("epochs: !!bool x", "mine.yaml cannot be read as YAML"),
        (f"epochs: {'9' * 5000}", "mine.yaml cannot be read as YAML"),
        ("a: &a [x, x, x, x, x, x, x, x, x]\n" + BOMB, "mine.yaml holds more than 10,000 values"),
        ("a: &a [*a]\n", "mine.yaml holds more than 10,000 values"),
        ("[" * 5000, "mine.yaml cannot be read as YAML"),
    ],
)
def test_files_that_are_no_recipes(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(InputError, match=message):
        Recipe.load(tmp_path / "mine.yaml")


def test_unknown_recipes() -> None:
    with pytest.raises(InputError, match="there is no recipe 'digit-lt', and no such file; did you mean 'digits-lt'?"):
        Recipe.load("digit-lt")
    with pytest.raises(InputError, match=r"no recipe 'zzz', and no such file \(calibrant list recipes shows all\)"):
        find("zzz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "zebra"}, "loss.name must be one of ce, ls, .*got 'zebra'"),
        ({"loss": "cals_alm"}, "did you mean 'cals-alm'?"),
        ({"data": "cifar"}, "data.name must be one of digits, .*did you mean 'cifar10.*'?"),
        ({"methods.zebra.margin": 3}, "methods must be one of ce"),
        ({"select": "accurracy"}, "select must be one of last, accuracy.*did you mean 'accuracy'?"),
        ({"select": "image_ece"}, "select must be one of last, accuracy"),
        (
            {"select": "ece", "epochs": 2, "validate_every": 3},
            "select is ece, but with validate_every = 3 there is no valid",
        ),
        ({"validate_every": 1.5}, "validate_every must be a whole number of epochs, or a fraction of one"),
        ({"validate_every": 0}, "validate_every must be more than 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"data.limit": 0}, "data.limit must be at least 1"),
        ({"data.workers": -1}, "data.workers must be at least 0"),
        ({"data.size": 10**9}, "data.size must be at least 1 and at most 32768"),
        ({"data.validation": -0.5}, "data.validation must be at least 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**40}, "seed must be at least 0 and at most"),
        ({"num_bins": 10**9}, "num_bins must be at least 1 and at most 10000"),
        ({"optimizer.momentum": 1.5}, "optimizer.momentum must be at least 0 and at most 1"),
        ({"optimizer": {"name": "sgd", "nesterov": True, "momentum": 0}}, "optimizer.nesterov needs a momentum"),
        ({"optimizer.lr": float("nan")}, "optimizer.lr must be more than 0"),
        ({"schedule.warmup": -1}, "schedule.warmup must be at least 0"),
        ({"schedule.factor": 0}, "schedule.factor must be more than 0"),
        ({"schedule.milestones": [-3]}, "schedule.milestones must be at least 0"),
        ({"name": "../../x"}, "name must be a plain name, as it also names a folder; got '../../x'"),
        ({"name": ".."}, "name must be a plain name"),
        ({"name": ""}, "name must be a plain name"),
        ({"model.width": date(2020, 1, 1)}, "model.options.width must be a string, a number, or a list of these, got date"),
        ({"trainer": {"devices": [{1: object()}]}}, "trainer.devices.1 must be a string, a number, or a list"),
        ({"data.stride": 0}, "data.stride must be at least 1"),
        ({"data.long_tail.ratio": 0.5}, "data.long_tail.ratio must be at least 1"),
        ({"loss": "own_code.Squared"}, "loss.name: 'own_code.Squared' is code outside calibrant.*`allow_code=True`"),
    ],
)
def test_what_cannot_work_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe.load("digits", **change).check()


# Comparing


def test_the_first_difference_is_told() -> None:
    recipe = Recipe.load("digits")
    assert recipe.difference(Recipe.load("digits")) == ""
    for change, told in (
        ({"epochs": 3}, "epochs was 30, now 3"),
        ({"loss": "mbls"}, "loss.name was 'ce', now 'mbls'"),
        ({"loss.margin": 6}, "loss.options.margin was None, now 6"),
        ({"data.long_tail.ratio": 20, "epochs": 3}, "data.long_tail.ratio was 1.0, now 20.0"),
        ({"schedule.milestones": [3]}, "schedule.milestones was [], now [3]"),
        ({"loss.gamma_max": float("inf")}, "loss.options.gamma_max was None, now inf"),
    ):
        assert recipe.difference(Recipe.load("digits", **change)) == told
    assert Recipe.load("digits", epochs=3).difference(recipe) == "epochs was 3, now 30"


def test_circumstances_are_no_difference() -> None:
    recipe = Recipe.load("digits")
    elsewhere = {"data.root": "/elsewhere", "data.workers": 0, "data.download": True, "about": "other"}
    elsewhere |= {
        "trainer.devices": 2,
        "trainer.strategy": "ddp",
        "trainer.logger": "csv",
        "trainer.max_time": "00:01:00:00",
    }
    assert recipe.difference(Recipe.load("digits", **elsewhere)) == ""
    for name, value in (
        ("precision", "bf16-mixed"),
        ("gradient_clip_val", 2.0),
        ("limit_train_batches", 1),
        ("limit_val_batches", 0.5),
        ("accumulate_grad_batches", 4),
        ("overfit_batches", 2),
        ("sync_batchnorm", True),
    ):
        told = f"trainer.{name} was None, now {value!r}"
        assert recipe.difference(Recipe.load("digits", **{f"trainer.{name}": value})) == told
    tuples = replace(recipe, model=Model("mlp", {"hidden": (8, 4)}))
    assert tuples.difference(Recipe.load(recipe, model="mlp", **{"model.hidden": [8, 4]})) == ""  # as files have it


# Code of one's own


@pytest.mark.parametrize(("name", "classes"), [("own_code.Squared", 7), ("own_code:Squared", 7), ("own_code.Plain", None)])
def test_a_loss_of_ones_own_gets_the_number_of_classes_if_it_takes_it(name: str, classes: int | None) -> None:
    loss = Recipe(loss=LossChoice(name, {"scale": 3.0})).build_loss(7, allow_code=True)
    assert (getattr(loss, "num_classes", None), loss.scale) == (classes, 3.0)
    with pytest.raises(InputError, match="is code outside calibrant"):
        Recipe(loss=LossChoice(name)).build_loss(7)


def test_code_that_is_not_there() -> None:
    for name in ("own_code.Nothing", "nowhere.Loss", "."):
        with pytest.raises(InputError, match=f"'{name}' cannot be imported .*; it has to be package.module.Name"):
            Recipe(loss=LossChoice(name)).build_loss(7, allow_code=True)
    with pytest.raises(TypeError, match="'own_code.Squared' takes no option 'scala'.*did you mean 'scale'"):
        Recipe(loss=LossChoice("own_code.Squared", {"scala": 3})).build_loss(7, allow_code=True)


def test_a_data_set_of_ones_own() -> None:
    recipe = Recipe(data=Data("own_code.squares", options={"size": 12}, validation=4))
    found = recipe.load_data(allow_code=True)
    assert (len(found.train), len(found.validation), found.name) == (8, 4, "squares")
    with pytest.raises(InputError, match="own_code.squares' is code outside calibrant"):
        recipe.load_data()


def test_yaml_reads_what_is_written() -> None:
    recipe = Recipe.load("digits-lt", about="Straße, 20 %", **{"loss.gamma_max": float("inf")})
    assert "Straße" in recipe.to_yaml()
    assert yaml.safe_load(recipe.to_yaml()) == recipe.to_dict()


def test_groups_may_be_given_by_name_or_as_fields() -> None:
    assert Recipe(loss="mbls", optimizer={"lr": 1}) == Recipe(loss=LossChoice("mbls"), optimizer=Optimizer(lr=1.0))
    assert Recipe(loss={"name": "mbls", "margin": 6}).loss == LossChoice("mbls", {"margin": 6})
    assert replace(Recipe(), data="npz").data == Data("npz")
    assert Recipe.load("digits", loss=LossChoice("mbls", {"margin": 3})).loss == LossChoice("mbls", {"margin": 3})
    with pytest.raises(InputError, match="optimizer.learning_rate is not a field of a recipe; did you mean `optimizer.lr`"):
        Recipe(optimizer={"learning_rate": 1})


def test_code_is_looked_for_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_the_current_folder.py").write_text("from torch import nn\nclass Net(nn.Flatten): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    found = import_name("of_the_current_folder.Net", allow_code=True)
    assert found.__name__ == "Net"
