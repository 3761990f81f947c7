"""From a recipe to a run folder, through crashes."""

import csv
import errno
import json
import math
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from calibrant import functional as cal, losses
from calibrant.audit import Audit
from calibrant.errors import InputError
from calibrant.evaluation import TrainedNetwork
from calibrant.files import finite
from calibrant.recipes import Data, LongTail, LossChoice, Model, Optimizer, Recipe, Schedule
from calibrant.records import to_plain
from calibrant.runs import Run, RunFolder, RunResult
from calibrant.train import DivergedError, engine as engines, fit
from calibrant.train.checkpoints import load_checkpoint, newest_checkpoint
from calibrant.train.engine import Keeper, Module, learning_rate


def recipe(loss: str = "cals-alm", epochs: int = 5, **more) -> Recipe:
    return Recipe(
        name="test",
        data=Data(long_tail=LongTail(10)),
        loss=LossChoice(loss),
        optimizer=Optimizer("adam", lr=3e-3),
        epochs=epochs,
        batch_size=64,
        **more,
    )


def rows(folder: RunFolder | Path) -> list[dict[str, str]]:
    """The history as it stands in its file, which RunFolder reads in tests/runs."""
    with (Path(folder) / "history.csv").open() as file:
        return list(csv.DictReader(file))


def weights(folder: RunFolder | Path) -> dict[str, torch.Tensor]:
    return torch.load(Path(folder) / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def plain(result: RunResult | Audit) -> dict[str, Any]:
    """As it is written to JSON, where what is not a number equals itself."""
    return finite(to_plain(result))


# The run folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = fit(recipe(), tmp_path_factory.mktemp("run") / "a", quiet=True)
    assert run is not None
    return run


def test_the_folder_holds_the_proof(finished: Run) -> None:
    folder = finished.folder.path
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {
        "recipe.yaml", "environment.json", "history.csv", "learned.npz", "bins.npz", "metrics.json", "split.npz",
        "checkpoints/last.ckpt", "checkpoints/previous.ckpt", "predictions/validation.npz", "predictions/test.npz",
    }  # fmt: skip
    logits, target = finished.folder.open().read_all()
    assert finished.result.test["ece"] == pytest.approx(float(cal.ece(logits, target)))
    assert finished.result.test["accuracy"] == pytest.approx(float(cal.accuracy(logits, target)))
    assert finished.result.parameters == 47_530
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["machine"]["threads"] == torch.get_num_threads()
    assert len(environment["data"]["train"]["checksum"]) == 16
    assert environment["train_counts"][0] == 84
    again = Run.load(folder)
    assert (again.folder, again.recipe, plain(again.result)) == (finished.folder, finished.recipe, plain(finished.result))


def test_predictions_are_those_of_the_checkpoint(finished: Run) -> None:
    data = recipe().load_data()
    network = recipe().build_model(10, {"channels": 1})
    network.load_state_dict({k[8:]: v for k, v in weights(finished.folder).items() if k.startswith("network.")})
    with torch.no_grad():
        expected = network(data.test.x)
    logits, target = finished.folder.open().read_all()
    assert torch.equal(target, data.test.y)
    torch.testing.assert_close(logits, expected)


def test_history_has_a_row_for_each_epoch(finished: Run) -> None:
    history = rows(finished.folder)
    assert [row["epoch"] for row in history] == [str(k) for k in range(1, 6)]
    for name in (
        "train_loss",
        "validation_loss",
        "accuracy",
        "ece",
        "adaptive_ece",
        "nll",
        "lr",
        "seconds",
        "multipliers_mean",
    ):
        assert all(math.isfinite(float(row[name])) for row in history), name
    with np.load(finished.folder.path / "learned.npz") as learned:
        assert learned["multipliers"].shape == learned["rho"].shape == (5, 10)
        assert learned["epoch"].tolist() == [1, 2, 3, 4, 5]
        np.testing.assert_allclose(learned["multipliers"][-1], weights(finished.folder)["loss.multipliers"])
        assert float(history[-1]["multipliers_max"]) == pytest.approx(learned["multipliers"][-1].max())


@pytest.mark.parametrize(("every", "after"), [(1, [6]), (0.4, [3, 5, 6])])  # of 6 batches, 2.4 and 4.8 are two fifths
def test_the_engine_trains_as_a_plain_loop_does(tmp_path: Path, every: float, after: list[int]) -> None:
    """The same batches through a loop written out here give the same weights, multipliers and measures."""
    mine = recipe(epochs=3, validate_every=every)
    mine.loss.options = {"margin": 1.0}
    run = fit(mine, tmp_path / "run", quiet=True)
    data = mine.load_data()
    torch.manual_seed(0)
    network, loss = mine.build_model(10, {"channels": 1}), losses.CALSALM(10, margin=1.0)
    network.to(memory_format=torch.channels_last)  # as the engine does on a CPU; it adds up in another order
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    expected = []
    for epoch in range(3):
        order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(epoch * 1009))
        assert len(order.split(64)) == 6
        for number, batch in enumerate(order.split(64), 1):
            optimizer.zero_grad()
            loss(network(data.train.x[batch]), data.train.y[batch]).backward()
            optimizer.step()
            if number not in after:
                continue
            with torch.no_grad():
                logits = network(data.validation.x)
                loss.observe(logits, data.validation.y)
            loss.adapt()
            expected.append([epoch + number / 6, float(cal.nll(logits, data.validation.y)), float(loss.multipliers.mean())])
    found = weights(run.folder)
    history = [[row[key] for key in ("epoch", "nll", "multipliers_mean")] for row in run.folder.history()]
    np.testing.assert_allclose(history, expected, rtol=1e-4)
    learned = run.folder.learned()
    np.testing.assert_allclose(learned["epoch"], [when for when, *_ in expected], rtol=1e-5)
    np.testing.assert_allclose(learned["multipliers"], loss.history()["multipliers"][1:], rtol=1e-4, atol=1e-6)
    for name, value in network.state_dict().items():
        # Adam takes steps of 3e-3 whatever a gradient's size, rounding in a small one included; another batch is 1e-3 off.
        torch.testing.assert_close(found[f"network.{name}"], value, rtol=1e-5, atol=1e-5)
    assert loss.multipliers.std() > 0
    torch.testing.assert_close(found["loss.multipliers"], loss.multipliers, rtol=1e-4, atol=1e-6)


def test_a_finished_run_is_not_trained_again(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Module, "training_step", lambda *_: pytest.fail("it trains"))
    again = fit(recipe(), finished.folder, quiet=True)
    assert plain(again.result) == plain(finished.result)


def test_force_starts_over(tmp_path: Path) -> None:
    first = fit(recipe(epochs=1), tmp_path / "a", quiet=True)
    started = first.folder.environment()
    fit(recipe("ce", epochs=1), tmp_path / "a", force=True, quiet=True)
    again = RunFolder(tmp_path / "a").environment()
    assert again.resumed == []
    assert started.data == again.data
    assert Run.load(tmp_path / "a").result.loss == "ce"
    assert not (tmp_path / "a" / "learned.npz").exists()


def test_other_runs_and_other_folders_are_left_alone(finished: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another recipe \\(epochs was 5, now 6\\); pass another `out`, or `force=True`"):
        fit(recipe(epochs=6), finished.folder, quiet=True)
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(InputError, match="exists and is not a run folder"):
        fit(recipe(), tmp_path, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_circumstances_may_change(finished: Run) -> None:
    other = recipe(trainer={"log_every_n_steps": 7})
    other.data.workers = 0
    assert plain(fit(other, finished.folder, quiet=True).result) == plain(finished.result)


# Crashes


def killed(target, *arguments) -> int:
    """Run something in a child process and return the signal that ended it."""
    child = os.fork()
    if not child:
        try:
            target(*arguments)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train_and_die_in_a_batch(folder: Path, epoch: int, batch: int) -> None:
    step = Module.training_step

    def dying(self, item, batch_idx):
        if self.current_epoch == epoch and batch_idx == batch:
            die()
        return step(self, item, batch_idx)

    Module.training_step = dying
    fit(recipe(), folder, quiet=True)


def train_and_die_while_writing(folder: Path, epoch: int) -> None:
    save = engines.Keeper._save

    def dying(self, trainer, *, better):
        if trainer.current_epoch == epoch:  # half of a checkpoint is on disk
            path = self.folder.checkpoint("new")
            trainer.save_checkpoint(path, weights_only=False)
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            die()
        save(self, trainer, better=better)

    engines.Keeper._save = dying
    fit(recipe(), folder, quiet=True)


def train_and_die_between_renames(folder: Path, epoch: int) -> None:
    replace = Path.replace

    def dying(self, target):
        result = replace(self, target)
        if self.name == "last.ckpt" and f"{epoch}" == str(torch.load(target, weights_only=True)["epoch"] + 1):
            die()
        return result

    Path.replace = dying
    fit(recipe(), folder, quiet=True)


def test_killed_at_any_moment_it_goes_on_as_if_nothing_had_happened(finished: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert killed(train_and_die_in_a_batch, folder, 1, 2) == -signal.SIGKILL
    assert [row["epoch"] for row in rows(folder)] == ["1"]
    assert killed(train_and_die_while_writing, folder, 2) == -signal.SIGKILL
    assert [row["epoch"] for row in rows(folder)] == ["1", "2"]
    assert killed(train_and_die_between_renames, folder, 3) == -signal.SIGKILL
    assert not (folder / "checkpoints" / "last.ckpt").exists()
    run = fit(recipe(), folder, quiet=True)
    expected, found = weights(finished.folder), weights(folder)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    for part in ("validation", "test"):
        assert torch.equal(RunFolder(folder).open(part).read_all()[0], finished.folder.open(part).read_all()[0])
    strip = [[{k: v for k, v in row.items() if k != "seconds"} for row in rows(f)] for f in (folder, finished.folder)]
    assert strip[0] == strip[1]
    with np.load(folder / "learned.npz") as a, np.load(finished.folder.path / "learned.npz") as b:
        assert all(np.array_equal(a[name], b[name]) for name in b.files)
    assert plain(run.result.test) == plain(replace(finished.result.test, source=run.result.test.source))
    assert len(run.folder.environment().resumed) == 3


def test_dropout_and_augmentation_survive_too(tmp_path: Path) -> None:
    mine = replace(recipe("adafocal", epochs=3, augmentation="crop-flip"), batch_size=20, validate_every=0.5)
    mine.model = Model("timm:resnet18", {"drop_rate": 0.5, "drop_path_rate": 0.1})
    mine.data.limit = 40
    whole = fit(mine, tmp_path / "whole", quiet=True)
    step = Module.training_step
    stop = {"left": 1}

    def interrupted(self, item, batch_idx):
        if self.current_epoch == 1 and batch_idx and stop["left"]:  # after it has adapted within the epoch
            stop["left"] = 0
            raise RuntimeError("the power is out")
        return step(self, item, batch_idx)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Module, "training_step", interrupted)
        with pytest.raises(RuntimeError, match="the power is out"):
            fit(mine, tmp_path / "parts", quiet=True)
        torch.manual_seed(99)
        fit(mine, tmp_path / "parts", quiet=True)
    a, b = weights(whole.folder), weights(tmp_path / "parts")
    assert all(torch.equal(a[name], b[name]) for name in a)
    learned = [RunFolder(folder).learned() for folder in (whole.folder, tmp_path / "parts")]
    assert learned[0]["epoch"].tolist() == [0.5, 1, 1.5, 2, 2.5, 3]
    for name, path in learned[0].items():
        np.testing.assert_array_equal(path, learned[1][name])


def test_broken_and_foreign_checkpoints_are_named_and_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed(train_and_die_in_a_batch, folder, 3, 0)
    last, previous = (folder / "checkpoints" / f"{name}.ckpt" for name in ("last", "previous"))
    content = last.read_bytes()
    last.write_bytes(content[: len(content) // 2])
    with pytest.warns(UserWarning, match="last.ckpt cannot be read; it may be truncated .*; it is skipped"):
        assert newest_checkpoint(RunFolder(folder), recipe()) == previous
    torch.save({"state_dict": {}}, last)
    with pytest.warns(UserWarning, match="last.ckpt is not a calibrant checkpoint; it is skipped"):
        assert newest_checkpoint(RunFolder(folder), recipe()) == previous
    last.write_bytes(content)
    with pytest.raises(ValueError, match="belongs to another recipe \\(optimizer.lr was 0.003, now 0.1\\)"):
        load_checkpoint(last, replace(recipe(), optimizer=Optimizer("adam", lr=0.1)))
    last.write_bytes(content[:100])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = fit(recipe(), folder, quiet=True)
    assert len(rows(run.folder)) == 5


def test_a_full_disk_does_not_destroy_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    save = Keeper._save

    def full(self, trainer, *, better):
        if trainer.current_epoch == 2:
            self.folder.checkpoint("new").write_bytes(b"half of")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, trainer, better=better)

    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "_save", full)
        with pytest.raises(OSError, match="No space left"):
            fit(recipe(), folder, quiet=True)
    assert load_checkpoint(folder / "checkpoints" / "last.ckpt", recipe())["epoch"] == 1
    assert len(rows(fit(recipe(), folder, quiet=True).folder)) == 5


def test_divergence_stops_with_advice_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    mine = recipe("ce", epochs=4)
    mine.optimizer = Optimizer("sgd", lr=1e-2)
    mine.schedule = Schedule("step", milestones=[2], factor=1e12)
    with pytest.raises(
        DivergedError, match=r"in epoch 2, batch \d+; lower optimizer.lr \(now 1e\+10\)|not finite after epoch 2"
    ):
        fit(mine, tmp_path / "run", quiet=True)
    content = load_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt", mine)
    assert content["epoch"] == 1
    assert all(value.isfinite().all() for value in content["state_dict"].values() if value.is_floating_point())


def test_interrupted_by_hand_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Module.training_step

    def stop(self, item, batch_idx):
        if self.current_epoch == 2:
            raise KeyboardInterrupt
        return step(self, item, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(Module, "training_step", stop)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            fit(recipe(), tmp_path / "run", quiet=True)
    assert len(rows(tmp_path / "run")) == 2
    assert len(rows(fit(recipe(), tmp_path / "run", quiet=True).folder)) == 5


# Selection, schedule, options


@pytest.mark.parametrize("select", ["accuracy", "nll", "ece"])
def test_the_selected_checkpoint_is_reported(tmp_path: Path, select) -> None:
    mine = recipe("ce", epochs=6, select=select)
    mine.schedule = Schedule("step", milestones=[4], factor=30.0)  # gets worse in the end
    run = fit(mine, tmp_path / "run", quiet=True)
    values = [float(row[select]) for row in rows(run.folder)]
    best = values.index(max(values) if select == "accuracy" else min(values))
    assert run.result.reported == f"{select} checkpoint, epoch {best + 1} of 6"
    logits, target = run.folder.open("validation").read_all()
    measure = {"accuracy": cal.accuracy, "nll": cal.nll, "ece": cal.ece}[select]
    assert float(measure(logits, target)) == pytest.approx(values[best], rel=1e-6)


def test_schedules() -> None:
    mine = recipe(epochs=10)
    mine.optimizer.lr = 1.0
    mine.schedule = Schedule("step", milestones=[3, 6], factor=0.1)
    assert [learning_rate(mine, e) for e in (0, 2.9, 3, 5.5, 6, 9)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    mine.schedule = Schedule("cosine", warmup=2, warmup_lr=0.0, minimum=0.1)
    assert [learning_rate(mine, e) for e in (0, 1, 2, 6, 10)] == pytest.approx([0, 0.5, 1, 0.55, 0.1])
    assert learning_rate(recipe(), 3) == 3e-3


def test_weight_decay_may_leave_vectors_out() -> None:
    mine = recipe()
    mine.optimizer = Optimizer("adamw", lr=1e-3, weight_decay=0.1, decay_all=False)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    groups = engines.make_optimizer(network, mine).param_groups
    assert [(len(g["params"]), g["weight_decay"]) for g in groups] == [(1, 0.1), (3, 0.0)]


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_betas_of_the_optimizer(name: str, kind: Any) -> None:
    mine = Recipe.load("digits", optimizer={"name": name, "lr": 0.01, "betas": [0.5, 0.9], "eps": 1e-3, "weight_decay": 0.1})
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    steps = engines.make_optimizer(ours, mine), kind(theirs.parameters(), 0.01, (0.5, 0.9), 1e-3, weight_decay=0.1)
    for _ in range(3):
        x = torch.randn(5, 3)
        for network, optimizer in zip((ours, theirs), steps, strict=True):
            optimizer.zero_grad()
            network(x).square().sum().backward()
            optimizer.step()
    assert torch.equal(ours.weight, theirs.weight)
    for betas in ([0.9], [0.9, 1.0], [-0.1, 0.9]):
        with pytest.raises(InputError, match="optimizer.betas must be two numbers from 0 up to 1"):
            Recipe.load("digits", **{"optimizer.betas": betas}).check()


def test_moments_of_validation() -> None:
    """After the first batch at or beyond each multiple of the fraction, and after the last: n batches are n / all."""
    for batches in (1, 2, 7, 10, 391):
        for every in (1, 5, 0.5, 0.25, 1 / 3, 0.3, 0.99, 1e-12):
            expected, passed = set(), 0.0
            for number in range(1, batches + 1):
                if number / batches >= passed + every - 1e-12 or number == batches:
                    expected.add(number)
                    while passed + every <= number / batches + 1e-12 and every > 1e-3:
                        passed += every
            assert set(engines.validations(batches, every)) == expected, (batches, every)
    assert engines.validations(391, 100 / 391) == {100, 200, 300, 391}


def test_options_of_the_trainer(tmp_path: Path) -> None:
    mine = recipe(
        "ce", epochs=2, validate_every=2, trainer={"accumulate_grad_batches": 2, "gradient_clip_val": 1.0, "logger": "csv"}
    )
    run = fit(mine, tmp_path / "run", quiet=True)
    history = rows(run.folder)
    assert history[0]["ece"] == ""
    assert float(history[1]["ece"]) > 0
    logged = next((run.folder.path / "logs").rglob("metrics.csv")).read_text()
    assert "train_loss" in logged.splitlines()[0]


def test_recipes_of_ones_own_code_need_leave(tmp_path: Path) -> None:
    mine = recipe("ce", epochs=1)
    mine.model = Model("calibrant.models.mlp.MLP", {"hidden": [8]})
    with pytest.raises(
        ValueError, match="model.name: 'calibrant.models.mlp.MLP' is code outside calibrant, .* `allow_code=True`"
    ):
        fit(mine, tmp_path / "run", quiet=True)
    run = fit(mine, tmp_path / "run", quiet=True, allow_code=True)
    assert run.result.parameters == 64 * 8 + 8 + 80 + 10


@pytest.mark.parametrize("name", ["own_code.Squared", "own_code.Plain"])
def test_losses_of_ones_own(tmp_path: Path, name: str) -> None:
    """One that is told the number of classes, and one that is any module."""
    mine = recipe(name, epochs=2)
    mine.loss.options = {"scale": 2.0}
    run = fit(mine, tmp_path / "run", quiet=True, allow_code=True)
    assert (run.result.loss, run.folder.recipe().loss) == (name, LossChoice(name, {"scale": 2.0}))
    losses = [row["validation_loss"] for row in run.folder.history()]
    assert losses[1] < losses[0]
    trained = TrainedNetwork.load(run.folder, allow_code=True)
    torch.testing.assert_close(trained.in_order(trained.data.test)[0], run.folder.open().read_all()[0])
    with pytest.raises(InputError, match="is code outside calibrant"):
        TrainedNetwork.load(run.folder)


TWO = {"devices": 2, "accelerator": "cpu", "strategy": "ddp"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": LossChoice("zebra")}, "loss.name must be one of ce, ls"),
        ({"loss": LossChoice("mbls", {"margins": 3})}, "loss.margins is not known; allowed are loss.margin"),
        ({"methods": {"mbls": {"weigth": 1}}}, "methods.mbls.weigth is not known"),
        ({"model": Model("resnet5")}, "model.name must be one of .*did you mean 'resnet50'"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"trainer": {"device": 2}}, "trainer.device is not known; did you mean 'devices'"),
        ({"trainer": {"max_epochs": 2}}, "trainer.max_epochs is set by calibrant itself: `epochs`"),
        ({"trainer": {"enable_progress_bar": True}}, "trainer.enable_progress_bar is set by calibrant itself: `quiet=True`"),
        ({"trainer": {"max_time": 216000}}, "trainer.max_time must be .* in quotes"),
        ({"trainer": {"strategy": {"class_path": "own_code.Squared"}}}, "trainer.strategy takes no class_path"),
        ({"trainer": {"logger": {"class_path": "own_code.Squared"}}}, "'own_code.Squared' is code outside calibrant"),
        ({"trainer": {"logger": "Logger"}}, "trainer.logger must be one of wandb, mlflow, tensorboard, csv, trackio"),
        ({"trainer": {"logger": "comet"}}, "trainer.logger comet needs comet_ml, .*: pip install comet-ml"),
        ({"trainer": {"accelerator": "abacus"}}, "trainer: .*abacus"),
        ({"trainer": {"accumulate_grad_batches": 0}}, "trainer.accumulate_grad_batches must be more than 0"),
        ({"trainer": {"limit_train_batches": 0.0}}, "trainer.limit_train_batches must be more than 0"),
        ({"trainer": {"gradient_clip_val": -1}}, "trainer.gradient_clip_val must be at least 0"),
        ({"data": Data(validation=0)}, "the validation part"),
        (
            {"data": Data(limit=1), "trainer": TWO},
            r"validation part has fewer samples \(1\) than there are processes \(2\)",
        ),
        ({"batch_size": 1, "trainer": TWO}, r"training part has fewer samples \(1\) than .* set a larger `batch_size`"),
        ({"data": Data(options={"test": 0})}, "the test part"),
        ({"trainer": {"gradient_clip_algorithm": "scissors"}}, "trainer: .*scissors"),
        ({"select": "nll", "trainer": {"limit_val_batches": 0}}, "trainer.limit_val_batches = 0 there is no validation"),
        ({"model": Model("small-cnn", {"width": 0})}, "model small-cnn: "),
        ({"model": Model("small-cnn", {"width": 10**9})}, "model small-cnn: it would take more than .* GB"),
        ({"model": Model("gpool-cnn")}, "model gpool-cnn: "),
        ({"loss": LossChoice("ls", {"alpha": "x"})}, "loss ls: alpha must be a number|alpha must be"),
        ({"data": Data("digits", options={"test": 10**6})}, "test \\+ validation must be less than"),
        ({"optimizer": Optimizer(lr=-1.0)}, "optimizer.lr must be more than 0"),
    ],
)
def test_bad_recipes_are_refused_by_field(tmp_path: Path, change, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(replace(recipe(), **change), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_the_recipe_of_a_method_comes_from_one_place() -> None:
    mine = recipe("mbls")
    assert mine.build_loss(10).margin == 10
    mine.methods = {"mbls": {"margin": 6.0}, "ls": {"alpha": 0.2}}
    assert mine.build_loss(10).margin == 6
    mine.loss.options = {"margin": 4.0}
    assert mine.build_loss(10).margin == 4


# Several processes


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    fields = {
        "loss": "cals-alm",
        "loss.margin": 1,
        "model": "mlp",
        "epochs": 3,
        "batch_size": 30,
        "trainer.accelerator": "cpu",
    }
    command = [sys.executable, "-m", "calibrant", "train", "digits-lt", "--quiet", "--out", str(tmp_path / "two")]
    command += [word for name, value in fields.items() for word in (f"--{name}", str(value))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    two_processes = [*command, "--trainer.devices", "2", "--trainer.strategy", "ddp"]
    with subprocess.Popen(two_processes, env=environment) as process:
        fit(Recipe.load("digits-lt", **fields), tmp_path / "one", quiet=True)
        assert process.wait(timeout=200) == 0
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one["loss.multipliers"].std() > 0
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(two["loss.multipliers"], one["loss.multipliers"], rtol=0, atol=1e-6)
    a, b = (Run.load(tmp_path / name).result for name in ("one", "two"))
    assert a.validation.samples == b.validation.samples == 200
    accuracy = [[row["accuracy"] for row in rows(tmp_path / name)] for name in ("one", "two")]
    assert accuracy[0] == accuracy[1]  # no validation sample is counted twice
    assert not list(tmp_path.glob("two-*"))
