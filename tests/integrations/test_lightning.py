"""The callback in a user's own LightningModule, driven by the real Trainer."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant import losses, metrics
from calibrant.integrations.lightning import CalibrationCallback

CLASSES = 3


def samples(size: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(size) % CLASSES
    x = torch.randn(size, 5, generator=generator) + nn.functional.one_hot(y, 5)
    return TensorDataset(x, y)


TRAIN, VALIDATION = DataLoader(samples(48, 1), 16), DataLoader(samples(36, 2), 12)


class Net(pl.LightningModule):
    """What a user has; the answers of validation_step can be chosen."""

    def __init__(self, loss: nn.Module, *, inside: bool = True, answer: Any = None, rate: float = 0.1) -> None:
        super().__init__()
        self.network = nn.Linear(5, CLASSES)
        self.criterion = loss if inside else loss.__call__
        self.answer, self.rate = answer, rate

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        del batch_idx
        x, y = batch
        return self.criterion(self.network(x), y)

    def validation_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> Any:
        del batch_idx, dataloader_idx
        x, y = batch
        logits = self.network(x)
        return {"logits": logits, "target": y} if self.answer is None else self.answer(logits, y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.rate)


def trainer(folder: Path, *callbacks: pl.Callback, epochs: int = 2, **options: Any) -> pl.Trainer:
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    quiet |= {"accelerator": "cpu", "default_root_dir": folder, "enable_checkpointing": False}
    return pl.Trainer(max_epochs=epochs, callbacks=list(callbacks), **{**quiet, **options})


def expected(net: Net, loader: DataLoader = VALIDATION) -> tuple[Tensor, Tensor]:
    """Logits and labels of all validation samples, by hand."""
    x, y = loader.dataset.tensors
    with torch.no_grad():
        return net.network(x), y


def test_measures_and_multipliers_are_those_of_a_loop_by_hand(tmp_path: Path) -> None:
    torch.manual_seed(1)
    loss, by_hand = (losses.CALSALM(num_classes=CLASSES, margin=0.1) for _ in range(2))
    net, callback = Net(loss, rate=0.0), CalibrationCallback(loss)
    run = trainer(tmp_path, callback, epochs=3)  # with its sanity check
    run.fit(net, TRAIN, VALIDATION)
    logits, y = expected(net)
    for _ in range(3):
        by_hand.observe(logits, y)
        by_hand.adapt()
    assert int(loss.epoch) == 3
    torch.testing.assert_close(loss.multipliers, by_hand.multipliers)
    assert loss.multipliers.std() > 0
    found = run.callback_metrics
    assert float(found["val_ece"]) == pytest.approx(float(metrics.ece(logits, y)), abs=1e-6)
    assert float(found["val_nll"]) == pytest.approx(float(nn.functional.cross_entropy(logits, y)), abs=1e-5)
    assert float(found["val_multipliers_max"]) == pytest.approx(float(loss.multipliers.max()))
    assert callback.result is not None
    assert callback.result.samples == 36  # not those of the sanity check


def test_validate_measures_without_learning(tmp_path: Path) -> None:
    loss = losses.AdaFocal()
    run = trainer(tmp_path, CalibrationCallback(loss, metrics=["ece"], prefix="held-out/"))
    found = run.validate(Net(loss), VALIDATION, verbose=False)
    assert set(found[0]) == {"held-out/ece"}
    assert int(loss.epoch) == 0
    with pytest.raises(RuntimeError, match="nothing to learn from"):
        loss.adapt()  # nothing was observed either


def test_only_one_of_several_loaders_counts(tmp_path: Path) -> None:
    other = DataLoader(samples(30, 3), 10)
    callback = CalibrationCallback(dataloader=1, metrics=["accuracy"])
    trainer(tmp_path, callback, epochs=1).fit(Net(losses.MbLS()), TRAIN, [VALIDATION, other])
    assert callback.result is not None
    assert callback.result.samples == 30


@pytest.mark.parametrize("inside", [True, False], ids=["part of the module", "beside it"])
def test_learned_state_is_in_the_checkpoint(tmp_path: Path, inside: bool) -> None:
    def start(epochs: int) -> tuple[pl.Trainer, Net, losses.AdaFocal]:
        torch.manual_seed(0)
        loss = losses.AdaFocal(num_bins=5)
        saver = ModelCheckpoint(tmp_path, filename=f"{inside}-{{epoch}}", save_top_k=-1)
        callbacks = [saver, CalibrationCallback(loss, metrics=["ece"])]
        return trainer(tmp_path, *callbacks, epochs=epochs, enable_checkpointing=True), Net(loss, inside=inside), loss

    run, net, whole = start(4)
    run.fit(net, TRAIN, VALIDATION)
    again, resumed, loss = start(4)
    again.fit(resumed, TRAIN, VALIDATION, ckpt_path=tmp_path / f"{inside}-epoch=1.ckpt")
    assert int(loss.epoch) == 4
    assert whole.gammas.std() > 0
    torch.testing.assert_close(loss.gammas, whole.gammas)
    torch.testing.assert_close(resumed.network.weight, net.network.weight)


def test_tensorboard_gets_numbers_and_figures(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path, name="logs", version="")
    loss = losses.AdaFocal(num_bins=5)
    trainer(tmp_path, CalibrationCallback(loss, metrics=["ece"]), logger=logger).fit(Net(loss), TRAIN, VALIDATION)
    events = EventAccumulator(str(tmp_path / "logs")).Reload()
    assert {"val_ece", "val_gammas_min", "val_gammas_mean", "val_gammas_max"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("val_ece")] == [2, 5]
    figures = events.Images("val_reliability")
    assert len(figures) == 2
    assert figures[0].encoded_image_string.startswith(b"\x89PNG")


def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    found = []
    for options in ({}, {"strategy": "ddp_fork", "devices": 2}):
        torch.manual_seed(0)
        loss = losses.CALSALM(num_classes=CLASSES, margin=0.1)
        run = trainer(tmp_path, CalibrationCallback(loss, metrics=["ece"]), **options)
        net = Net(loss, rate=0.0)
        run.fit(net, TRAIN, VALIDATION)
        found.append((net.criterion.multipliers, run.callback_metrics["val_ece"]))
    assert found[0][0].std() > 0
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1], found[0][1])


def test_fewer_samples_than_processes(tmp_path: Path) -> None:
    """Lightning gives the only sample to both processes; one without any batch would leave the other waiting."""
    loss, by_hand = (losses.CALSALM(num_classes=CLASSES, margin=0.1) for _ in range(2))
    options = {"epochs": 1, "strategy": "ddp_fork", "devices": 2}
    net = Net(loss, rate=0.0)
    loader = DataLoader(samples(1, 2), 12)
    trainer(tmp_path, CalibrationCallback(loss), **options).fit(net, TRAIN, loader)
    by_hand.observe(*expected(net, loader))
    by_hand.adapt()
    torch.testing.assert_close(net.criterion.multipliers, by_hand.multipliers)
    assert by_hand.multipliers.std() > 0
    net.allow_zero_length_dataloader_with_multiple_devices = True
    callback = CalibrationCallback(loss)
    with pytest.raises(ValueError, match="needs a validation batch in every process, .* do not set allow_zero_length"):
        callback.setup(trainer(tmp_path, callback, **options), net, "fit")


def test_a_loss_that_does_not_learn_is_only_measured(tmp_path: Path) -> None:
    loss = losses.MbLS()
    run = trainer(tmp_path, CalibrationCallback(loss, metrics=["ece"]), epochs=1)
    run.fit(Net(loss), TRAIN, VALIDATION)
    assert set(run.callback_metrics) == {"val_ece"}


def fit(folder: Path, answer: Any, **options: Any) -> None:
    loss = losses.AdaFocal()
    trainer(folder, CalibrationCallback(loss, **options), epochs=1).fit(Net(loss, answer=answer), TRAIN, VALIDATION)


def test_other_answers_of_validation_step(tmp_path: Path) -> None:
    fit(tmp_path, lambda logits, _: logits, outputs=lambda logits, batch: (logits, batch[1]))
    with pytest.raises(TypeError, match=r'validation_step returned Tensor; return \{"logits": logits, "target": target\}'):
        fit(tmp_path, lambda logits, _: logits)
    with pytest.raises(TypeError, match="validation_step returned a dict with loss;"):
        fit(tmp_path, lambda logits, _: {"loss": logits.sum()})
    with pytest.raises(ValueError, match="logits are probabilities: .* remove its final softmax"):
        fit(tmp_path, lambda logits, y: {"logits": logits.softmax(1), "target": y})
    with pytest.raises(ValueError, match=r"target must have shape \(12,\)"):
        fit(tmp_path, lambda logits, y: {"logits": logits, "target": y[:5]})


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="metrics must be one of .*, got 'ecee'; did you mean 'ece'?"):
        CalibrationCallback(metrics=["ecee"])
    with pytest.raises(ValueError, match="'image_ece' cannot be computed"):
        CalibrationCallback(metrics=["image_ece"])
    with pytest.raises(TypeError, match="loss must be a loss, such as .*, got str"):
        CalibrationCallback("cals-alm")  # type: ignore[arg-type]
