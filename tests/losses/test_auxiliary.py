"""Penalties on a batch as a whole, by hand, and added to other losses."""

import pytest
import torch
from torch import Tensor

from calibrant import losses
from calibrant.losses.auxiliary import PenalisedLoss

PENALISED = [key for key, method in losses.METHODS.items() if issubclass(method.loss, PenalisedLoss)]
every_penalty = pytest.mark.parametrize("key", PENALISED)


def data(n: int = 30, k: int = 4) -> tuple[Tensor, Tensor]:
    logits, target = 2 * torch.randn(n, k, dtype=torch.float64), torch.randint(k, (n,))
    target[::5] = -100
    return logits, target


def penalty_of(loss: PenalisedLoss, logits: Tensor, target: Tensor) -> Tensor:
    """What a loss adds to cross-entropy."""
    return loss(logits, target) - losses.CrossEntropy()(logits, target)


@every_penalty
def test_any_loss_can_be_the_base(key: str) -> None:
    logits, target = data()
    penalty = penalty_of(losses.create(key, weight=1.5), logits, target)
    assert float(penalty) > 0
    base = losses.MbLS(margin=1.0, class_weights=[1.0, 2.0, 3.0, 1.0])
    torch.testing.assert_close(losses.create(key, weight=1.5, base=base)(logits, target), base(logits, target) + penalty)
    torch.testing.assert_close(
        losses.create(key, weight=1.5, base="brier", reduction="sum")(logits, target),
        losses.Brier(reduction="sum")(logits, target) + 24 * penalty,
    )


@every_penalty
def test_the_base_brings_its_options(key: str) -> None:
    base = losses.MbLS(ignore_index=1, reduction="sum")
    loss = losses.create(key, base=base)
    assert (loss.ignore_index, loss.reduction) == (1, "sum")
    assert f"base={base!r}" in repr(loss)
    with pytest.raises(ValueError, match="ignore_index: these options are those of the base, pass them to MbLS"):
        losses.create(key, base=base, ignore_index=1)
    with pytest.raises(TypeError, match="base must be a loss that learns nothing from validation data, which CALSALM does"):
        losses.create(key, base=losses.CALSALM(4))
    with pytest.raises(TypeError, match=r'base must be the key of a loss, such as "ce", or a loss, got BCELoss'):
        losses.create(key, base=torch.nn.BCELoss())
    with pytest.raises(ValueError, match="base must be one of"):
        losses.create(key, base="cross")
    with pytest.raises(TypeError, match=r"base must be the key of a loss or a loss, not its class: pass MbLS\(\)"):
        losses.create(key, base=losses.MbLS)


@every_penalty
def test_a_weight_of_zero_is_the_base(key: str) -> None:
    logits, target = data()
    torch.testing.assert_close(losses.create(key, weight=0.0)(logits, target), losses.CrossEntropy()(logits, target))
    with pytest.raises(ValueError, match="weight must be at least 0"):
        losses.create(key, weight=-1.0)


def test_mdca_of_soft_targets_and_pixels() -> None:
    logits, q = torch.randn(3, 4, 5, dtype=torch.float64), torch.randn(3, 4, 5, dtype=torch.float64).softmax(1)
    s = logits.softmax(1)
    expected = sum(abs(s[:, k].mean() - q[:, k].mean()) for k in range(4)) / 4
    torch.testing.assert_close(penalty_of(losses.MDCA(), logits, q), expected)
    weighted = losses.MDCA(class_weights=[1.0, 0.0, 2.0, 3.0])(logits, q)  # which weight the cross-entropy only
    plain = losses.CrossEntropy(weight=torch.tensor([1.0, 0.0, 2.0, 3.0]))(logits, q)
    torch.testing.assert_close(weighted - plain, expected)


def test_dca_by_hand() -> None:
    logits, target = data()
    kept = target != -100
    confidence, prediction = logits[kept].softmax(1).max(1)
    expected = (confidence.mean() - (prediction == target[kept]).double().mean()).abs()
    torch.testing.assert_close(penalty_of(losses.DCA(), logits, target), expected)


def test_esd_by_its_definition() -> None:
    """Mean and variance over all others, sample by sample; confidences that are equal count both ways."""
    logits, target = data(25)
    logits[10:15] = logits[6:11].clone()
    logits.requires_grad_()
    kept = target != -100
    r, prediction = logits[kept].softmax(1).max(1)
    gaps = (prediction == target[kept]).double() - r
    n = len(r)
    total = 0
    for i in range(n):
        g = torch.stack([gaps[j] if r[j] <= r[i] else gaps[j] * 0 for j in range(n) if j != i])
        total = total + g.mean().square() - g.var() / (n - 1)
    expected = (total / n).sqrt()
    found = penalty_of(losses.ESD(weight=1.0), logits, target)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (found, expected)))


def test_esd_apart_from_the_base() -> None:
    logits, target = data(100)
    plain = losses.CrossEntropy()(logits[:60], target[:60])
    penalty = penalty_of(losses.ESD(), logits[60:], target[60:])
    assert float(penalty) > 0
    torch.testing.assert_close(losses.ESD(apart=0.4)(logits, target), plain + penalty)
    each = losses.ESD(apart=0.4, reduction="none")(logits, target)
    assert each.shape == (100,)
    assert (each[60:] == 0).all()
    torch.testing.assert_close(each.sum() / (target[:60] != -100).sum(), plain + penalty)
    pixels = losses.ESD(apart=0.5, reduction="none")(torch.randn(4, 3, 5, 6), torch.randint(3, (4, 5, 6)))
    assert pixels.shape == (4, 5, 6)
    assert (pixels[2:] == 0).all()
    assert (pixels[:2] > 0).all()
    tiny = losses.ESD(apart=0.2)(logits[:4], target[:4])  # one sample is too few for a penalty
    torch.testing.assert_close(tiny, losses.CrossEntropy()(logits[:3], target[:3]))


@pytest.mark.parametrize(("kind", "scale"), [(losses.AvUC, 1.0), (losses.SoftAvUC, torch.tensor(4.0).log())])
def test_the_threshold_is_halfway_between_correct_and_wrong(kind: type[losses.AvUC], scale: Tensor | float) -> None:
    loss = kind(updates=2)
    thresholds = []
    for _ in range(3):
        logits, target = data(200)
        loss.observe(logits[:70], target[:70])
        loss.observe(logits[70:], target[70:])
        loss.adapt()
        kept = target != -100
        s = logits[kept].softmax(1)
        entropy, right = -(s * s.log()).sum(1) / scale, s.argmax(1) == target[kept]
        thresholds.append(float(entropy[right].mean() + entropy[~right].mean()) / 2)
    assert loss.history()["threshold"][1:].tolist() == pytest.approx([*thresholds[:2], thresholds[1]], rel=1e-3)
    perfect = kind()
    perfect.observe(logits, logits.argmax(1))  # no wrong prediction
    perfect.adapt()
    s = logits.softmax(1)
    assert float(perfect.threshold) == pytest.approx(float((-(s * s.log()).sum(1) / scale).mean()), rel=1e-3)


@every_penalty
def test_a_penalty_is_on_what_the_base_predicts(key: str) -> None:
    logits, target = data()
    base = losses.LogitNorm(temperature=0.3)
    loss = losses.create(key, base=base)
    expected = penalty_of(losses.create(key), base.predictive(logits), target)
    torch.testing.assert_close(loss(logits, target), base(logits, target) + expected)
    torch.testing.assert_close(loss.predictive(logits), base.predictive(logits))
