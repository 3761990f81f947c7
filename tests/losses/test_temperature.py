"""Margins that follow the temperature of validation data."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from calibrant import losses, posthoc
from calibrant.losses import CALSALM, AdaptiveLoss, CALSAuto, LabelSmoothing, LabelSmoothingAuto, Loss, MbLS, MbLSAuto
from calibrant.losses.targets import batch
from calibrant.losses.temperature import TemperatureSums, logit_distances

#: With the option that is learned, its usual value, and what it is by default without.
AUTO = {"mbls-auto": ("margin", 10.0, "mbls"), "cals-auto": ("margin", 10.0, "cals-alm"), "ls-auto": ("alpha", 0.05, "ls")}
every_auto = pytest.mark.parametrize("key", AUTO)


def adapted(loss: Loss, logits: Tensor, target: Tensor, epochs: int = 1) -> AdaptiveLoss:
    assert isinstance(loss, AdaptiveLoss)
    for _ in range(epochs):
        loss.observe(logits, target)
        loss.adapt()
    return loss


def overconfident(scale: float, n: int = 4000, k: int = 5) -> tuple[Tensor, Tensor]:
    """Logits whose best temperature is ``scale``, as far as n samples can tell."""
    random = torch.Generator().manual_seed(7)
    calibrated = 2 * torch.randn(n, k, generator=random)
    target = torch.multinomial(calibrated.softmax(1), 1, generator=random).squeeze(1)
    return scale * calibrated, target


def test_asking_for_auto_builds_the_adaptive_loss() -> None:
    assert type(MbLS(margin="auto")) is type(losses.create("mbls", margin="auto")) is MbLSAuto
    assert type(CALSALM(3, margin="auto", gamma=1.5)) is type(losses.create("cals-alm", 3, margin="auto")) is CALSAuto
    assert type(LabelSmoothing(alpha="auto")) is type(losses.create("ls", alpha="auto")) is LabelSmoothingAuto
    assert CALSALM(3, margin="auto", gamma=1.5).gamma == 1.5
    assert not isinstance(MbLS(), AdaptiveLoss)
    assert not isinstance(LabelSmoothing(), AdaptiveLoss)
    assert float(LabelSmoothing(alpha="auto").alpha) == pytest.approx(0.05)
    assert float(CALSAuto(3).margin) == float(MbLS(margin="auto").margin) == 10
    assert float(CALSAuto(3, margin=6).margin) == 6


@every_auto
def test_it_may_adapt_between_forward_and_backward(key: str) -> None:
    logits, target = overconfident(2.0, n=50)
    loss, gradients = losses.create(key, num_classes=5), []
    for adapts in (False, True):
        given = logits.clone().requires_grad_()
        value = loss(given, target)
        if adapts:
            adapted(loss, logits, target)
        value.backward()
        gradients.append(given.grad)
    torch.testing.assert_close(*gradients)


def test_learned_numbers_are_shown_as_short_as_they_are() -> None:
    assert repr(LabelSmoothing(alpha="auto")) == "LabelSmoothingAuto(alpha=0.05)"
    assert repr(MbLS(margin="auto")).startswith("MbLSAuto(margin=10.0, ")


@pytest.mark.parametrize("wrong", [6.0, "auto", 0, True])
def test_the_second_argument_of_create_is_the_number_of_classes(wrong: object) -> None:
    with pytest.raises((TypeError, ValueError), match="num_classes must be"):
        losses.create("mbls", wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(300, 7), (3, 4, 5, 6)], ids=str)
def test_sums_are_derivatives_of_the_likelihood(shape: tuple[int, ...]) -> None:
    logits = 4 * torch.randn(shape, dtype=torch.float64)
    target = torch.randint(shape[1], (shape[0], *shape[2:]))
    target[target == 2] = 255
    soft = torch.randn(shape, dtype=torch.float64).softmax(1)
    beta = torch.ones((), dtype=torch.float64, requires_grad=True)
    for labels, ignored in ((target, 255), (soft, -100)):
        sums = TemperatureSums()
        for rows, own in zip(logits.split(2), labels.split(2), strict=True):
            for block in batch(rows, own, ignore_index=ignored).blocks():
                sums.add(block, logit_distances(block.logits))
        (slope,) = torch.autograd.grad(
            cross_entropy(beta * logits, labels, ignore_index=ignored, reduction="sum"), beta, create_graph=True
        )
        (curvature,) = torch.autograd.grad(slope, beta)
        torch.testing.assert_close(sums.totals()[:2], (slope.detach(), curvature), rtol=1e-10, atol=1e-10)


@every_auto
@pytest.mark.parametrize("temperature", [0.8, 0.95, 1.05, 1.3, 2.0])
def test_temperature_points_where_temperature_scaling_goes(key: str, temperature: float) -> None:
    logits, target = overconfident(temperature)
    loss = adapted(losses.create(key, 5), logits, target)
    fitted = float(posthoc.TemperatureScaling().fit(logits, target).temperature_)
    assert fitted == pytest.approx(temperature, rel=0.05)
    assert math.log(float(loss.temperature)) / math.log(fitted) == pytest.approx(1, abs=0.4)
    if abs(temperature - 1) < 0.1:  # a Newton step is exact nearby
        assert float(loss.temperature) == pytest.approx(fitted, rel=0.01)
    if key == "ls-auto":
        assert float(loss.alpha) == pytest.approx(0.05 * float(loss.temperature) ** 2, rel=1e-4)
        return
    largest = float((logits.amax(1) - logits.amin(1)).mean())
    start = min(10, 2 * largest) if temperature > 1 else 10
    assert float(loss.margin) == pytest.approx(start / math.sqrt(float(loss.temperature)), rel=1e-4)


@every_auto
@pytest.mark.parametrize("times", [0.3, 3.0])
def test_a_network_becomes_calibrated_wherever_the_strength_starts(key: str, times: float) -> None:
    """A network of one row of logits learns frequencies of 0.9, 0.05 and 0.05; validation has 0.86, 0.07 and 0.07."""
    train, validation = (torch.tensor([row], dtype=torch.float64) for row in ([0.9, 0.05, 0.05], [0.86, 0.07, 0.07]))
    logits = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    option, usual, _ = AUTO[key]
    loss = losses.create(key, 3, **{option: times * usual}).double()
    for _ in range(25):
        for _ in range(20):
            (gradient,) = torch.autograd.grad(loss(logits, train), logits)
            logits = (logits - gradient).detach().requires_grad_()
        adapted(loss, logits.expand(10_000, 3), validation.expand(10_000, 3))
    torch.testing.assert_close(logits.softmax(1), validation, rtol=0, atol=0.01)
    assert float(loss.temperature) == pytest.approx(1, abs=0.05)


@every_auto
def test_few_samples_and_a_perfect_fit_move_nothing(key: str) -> None:
    """Nothing can be learned about the temperature from samples that are all right and sure."""
    sure = (20 * torch.eye(5).repeat(200, 1), torch.arange(5).repeat(200))
    option, usual, _ = AUTO[key]
    assert float(adapted(losses.create(key, 5), *sure, epochs=100).get_buffer(option)) == pytest.approx(usual, rel=0.01)
    for logits in ([4.0, 0.0], [0.0, 4.0]):  # a single sample, right or wrong, again and again
        loss = adapted(losses.create(key, 2), torch.tensor([logits]), torch.tensor([0]), epochs=100)
        assert 0.69 < (float(loss.get_buffer(option)) / usual) ** abs(loss.strength.gain) < 1.31


@every_auto
def test_strength_stays_within_its_bounds(key: str) -> None:
    wrong = (100 * torch.eye(5).repeat(200, 1), (torch.arange(5).repeat(200) + 1) % 5)
    unsure = (0.1 * torch.eye(5).repeat(200, 1), torch.arange(5).repeat(200))
    option, low, high = ("alpha", 0.5, 1e-3) if key == "ls-auto" else ("margin", 1, 30)
    assert float(adapted(losses.create(key, 5), *wrong, epochs=20).get_buffer(option)) == low
    loss = adapted(losses.create(key, 5), *unsure, epochs=20)
    assert float(loss.get_buffer(option)) == pytest.approx(high)
    assert all(buffer.isfinite().all() for buffer in loss.buffers())


@every_auto
def test_value_and_gradient_are_those_of_a_fixed_strength(key: str) -> None:
    logits, target = overconfident(3.0, n=50)
    auto = adapted(losses.create(key, 5), logits, target)
    option, _, fixed = AUTO[key]
    other = losses.create(fixed, 5, **{option: float(auto.get_buffer(option))})
    if isinstance(other, CALSALM):
        other.multipliers.copy_(auto.multipliers)
    values, gradients = [], []
    for loss in (auto, other):
        leaf = logits.clone().requires_grad_()
        values.append(loss(leaf, target))
        gradients.append(torch.autograd.grad(values[-1], leaf)[0])
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients)
    assert values[0] > cross_entropy(logits, target)
