"""The task in timm's own training loop, with its Mixup, its average of weights and its checkpoints."""

from pathlib import Path

import pytest
import timm
import torch
from timm.data import Mixup
from timm.task import ClassificationTask, resume_task_checkpoint
from torch import Tensor, nn

from calibrant import functional, losses
from calibrant.integrations.timm import CalibratedTask

CLASSES = 3
VALIDATION = [
    (torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(i)), torch.arange(8) % CLASSES) for i in (0, 1)
]


def network() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=CLASSES)


def logits_of(model: nn.Module) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return torch.cat([model.eval()(x) for x, _ in VALIDATION]), torch.cat([y for _, y in VALIDATION])


@pytest.mark.parametrize("key", ["ce", "mbls", "cals-alm", "adafocal"])
def test_training_with_mixup(key: str) -> None:
    """The loss is what the formula says of the mixed targets, and training lowers it."""
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, label_smoothing=0.0, num_classes=CLASSES)
    loss = losses.create(key, num_classes=CLASSES)
    for task in (CalibratedTask(network(), loss, verbose=False), ClassificationTask(network(), loss, verbose=False)):
        optimizer = torch.optim.SGD(task.parameters(), lr=0.05)
        x, y = VALIDATION[0]
        mixed, target = mixup(x.clone(), y)
        assert target.shape == (8, CLASSES)
        values = []
        for _ in range(5):
            result = task(mixed, target.float())
            if key in ("ce", "mbls"):  # a margin of 10 that no logit exceeds
                expected = nn.functional.cross_entropy(result["output"], target)
                torch.testing.assert_close(result["loss"], expected, rtol=1e-4, atol=1e-5)
            optimizer.zero_grad()
            result["loss"].backward()
            optimizer.step()
            values.append(float(result["loss"].detach()))
        assert values[-1] < values[0]


def test_validation_measures_and_adapts() -> None:
    loss, by_hand = (losses.CALSALM(num_classes=CLASSES, margin=0.001) for _ in range(2))
    task = CalibratedTask(network(), loss, verbose=False).train()
    found = task.validate(VALIDATION)
    assert task.trainable_module.training  # as before
    logits, y = logits_of(task.trainable_module)
    assert found.panel.ece == pytest.approx(float(functional.ece(logits, y)), abs=1e-6)
    by_hand.observe(logits, y)
    by_hand.adapt()
    assert by_hand.multipliers.std() > 0
    torch.testing.assert_close(loss.multipliers, by_hand.multipliers, rtol=1e-4, atol=0)
    assert found.scalars["multipliers_max"] == pytest.approx(float(loss.multipliers.max()))
    task.validate(VALIDATION, adapt=False)
    assert int(loss.epoch) == 1
    with pytest.raises(ValueError, match="there are no EMA weights: call"):
        task.validate(VALIDATION, ema=True)
    task.setup_ema()
    assert task.validate(VALIDATION, ema=True, adapt=False).panel.samples == 16


def test_checkpoints_hold_what_was_learned(tmp_path: Path) -> None:
    task = CalibratedTask(network(), losses.AdaFocal(num_bins=3), verbose=False)
    task.validate(VALIDATION)
    torch.save({**task.get_checkpoint_state(), "epoch": 0}, tmp_path / "last.pth.tar")
    again = CalibratedTask(network(), losses.AdaFocal(num_bins=3), verbose=False)
    resume_task_checkpoint(again, tmp_path / "last.pth.tar")
    assert int(again.criterion.epoch) == 1
    assert task.criterion.gammas.std() > 0
    assert torch.equal(again.criterion.gammas, task.criterion.gammas)


def test_bad_input() -> None:
    task = CalibratedTask(nn.Sequential(network(), nn.Softmax(1)), losses.MbLS(), verbose=False)
    with pytest.raises(ValueError, match="logits are probabilities: .* remove its final softmax"):
        task.validate(VALIDATION)
    with pytest.raises(TypeError, match="loss must be a loss, such as .*, got str"):
        CalibratedTask(network(), "mbls", verbose=False)  # type: ignore[arg-type]
