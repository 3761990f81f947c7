"""What people hand to losses: masked classes, per-sample transforms, a softmax too many, and no validation at all."""

import copy
import math
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from variants import BATCH_LEVEL, PLAIN, VARIANTS

from calibrant import functional as cal, losses
from calibrant.losses import METHODS, AdaptiveLoss
from calibrant.losses.base import Epochs

ADAPTIVE = [key for key in PLAIN if METHODS[key].adaptive]
#: Functions of the probabilities alone, or with limits where one of them is 0.
WITH_LIMIT = {
    "ce",
    "ecp",
    "fl",
    "flsd",
    "brier",
    "mmce",
    "calfocal",
    "adafocal",
    "dfl",
    "bsce",
    "mdca",
    "dca",
    "esd",
    "sbece",
    "avuc",
    "soft-avuc",
}
INFINITE = {"ls", "ls-auto", "cpc", "mbls", "mbls-auto", "cals-hr", "cals-alm", "cals-auto", "acls", "logitnorm"}
every_variant = pytest.mark.parametrize("name", VARIANTS)


def masked(value: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Logits of which some have a wrong class masked; the last sample is to be ignored."""
    random = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(9, 5, generator=random)).to(dtype)
    target = torch.randint(4, (9,), generator=random)
    logits[::2, 4] = value
    logits[4, :4] = torch.where(torch.arange(4) == target[4], logits[4, :4], value)  # only the true class is left
    target[8] = -100
    return logits, target


def test_every_method_is_one_or_the_other() -> None:
    assert set(PLAIN) == WITH_LIMIT | INFINITE
    assert not WITH_LIMIT & INFINITE


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.split()[0] in WITH_LIMIT])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_masked_class_is_the_limit(name: str, reduction: str) -> None:
    loss = VARIANTS[name](num_classes=5, reduction=reduction).double()
    found = []
    for value in (-torch.inf, -2000.0):
        logits, target = masked(value)
        logits.requires_grad_()
        result = loss(logits, target)
        result.sum().backward()
        assert result.isfinite().all()
        assert logits.grad.isfinite().all()
        found.append((result.detach(), logits.grad))
    for exact, close in zip(*found, strict=True):
        torch.testing.assert_close(exact, close)


@pytest.mark.parametrize("weight", [0.1, 30.0])
def test_the_confidence_penalty_of_a_masked_class_by_hand(weight: float) -> None:
    logits, target = masked(-torch.inf)
    found = cal.confidence_penalty_loss(logits, target, weight=weight, reduction="none")
    for row, label, value in zip(logits.tolist(), target.tolist(), found.tolist(), strict=True):
        weights = [math.exp(x) for x in row]
        s = [x / sum(weights) for x in weights]
        entropy = -sum(p * math.log(p) for p in s if p > 0)
        expected = 0.0 if label == -100 else -math.log(s[label]) - weight * entropy
        assert value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.split()[0] in INFINITE])
def test_where_there_is_no_limit_a_sentence_says_so(name: str) -> None:
    loss = VARIANTS[name](num_classes=5)
    for shape in ((9, 5), (1, 5, 9)):
        logits, target = masked(-torch.inf, torch.float32)
        logits, target = (logits, target) if len(shape) == 2 else (logits.T[None], target[None])
        with pytest.raises(ValueError, match="4 of 8 samples have a logit of -infinity, as of a masked class.*CrossEntropy"):
            loss(logits.requires_grad_(), target)
    logits, target = masked(-1e4, torch.float32)
    assert loss(logits, target).isfinite()
    diverged, target = masked(float("nan"), torch.float32)  # which is another matter
    assert loss(diverged, target).isnan()


def test_terms_of_weight_zero_do_not_matter() -> None:
    logits, target = masked(-torch.inf)
    plain = cal.cross_entropy_loss(logits, target)
    torch.testing.assert_close(cal.label_smoothing_loss(logits, target, alpha=0.0), plain)
    pairs = [
        sum(nn.functional.softplus(row[j] - row[y]) for j in range(5) if j != y) / 4
        for row, y in zip(logits, target.tolist(), strict=True)
        if y != -100
    ]
    expected = plain + 10 * torch.stack(pairs).mean()
    torch.testing.assert_close(cal.cpc_loss(logits, target, exclusion=0.0), expected)


@pytest.mark.parametrize("key", PLAIN)
def test_a_masked_true_class_has_probability_zero(key: str) -> None:
    """An infinite loss, as cross-entropy has it, or the bounded one of Brier; never NaN."""
    logits = torch.tensor([[1.0, 2.0, -torch.inf]])
    value = losses.create(key, num_classes=3)(logits, torch.tensor([2]))
    assert value == torch.inf or (key == "brier" and 1 < value <= 2)


# Transforms of torch.func


@every_variant
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_over_samples(name: str) -> None:
    random = torch.Generator().manual_seed(0)
    logits, target = 5 * torch.randn(7, 6, generator=random), torch.randint(6, (7,), generator=random)
    target[3] = -100
    loss = VARIANTS[name](num_classes=6)

    def of_one(row: Tensor, label: Tensor) -> Tensor:
        return loss(row[None], label[None])

    one_by_one = torch.stack([of_one(row, label) for row, label in zip(logits, target, strict=True)])
    found = torch.func.vmap(of_one)(logits, target)
    torch.testing.assert_close(found, one_by_one)
    if name not in BATCH_LEVEL:
        torch.testing.assert_close(found, VARIANTS[name](num_classes=6, reduction="none")(logits, target))
    gradients = torch.func.vmap(torch.func.grad(of_one))(logits, target)
    expected = torch.stack([torch.func.grad(of_one)(row, label) for row, label in zip(logits, target, strict=True)])
    torch.testing.assert_close(gradients, expected)
    logits.requires_grad_()
    (plain,) = torch.autograd.grad(torch.stack([of_one(*pair) for pair in zip(logits, target, strict=True)]).sum(), logits)
    torch.testing.assert_close(gradients, plain)


@pytest.mark.parametrize("key", PLAIN)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_each_sample_through_a_network(key: str) -> None:
    """As differentially private training and influence functions need them."""
    network, loss = nn.Linear(3, 4), losses.create(key, num_classes=4)
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 0])
    parameters = {name: value.detach() for name, value in network.named_parameters()}

    def of_one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(torch.func.functional_call(network, parameters, (x[None],)), y[None])

    found = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, 0, 0))(parameters, x, y)
    for i in range(5):
        network.zero_grad()
        loss(network(x[i : i + 1]), y[i : i + 1]).backward()
        torch.testing.assert_close(found["weight"][i], network.weight.grad)


# Probabilities


@pytest.mark.parametrize("key", ADAPTIVE)
def test_a_network_that_ends_in_a_softmax_is_noticed(key: str) -> None:
    loss = losses.create(key, num_classes=4, ignore_index=255)
    logits, target = torch.randn(12, 4), torch.randint(4, (12,))
    with pytest.raises(ValueError, match="logits are probabilities.*remove its final softmax"):
        loss.observe(logits.softmax(1), target)
    with pytest.raises(ValueError, match="are probabilities"):
        loss.observe(logits.T.reshape(1, 4, 3, 4).softmax(1).half(), target.view(1, 3, 4))
    probs = logits.softmax(1)
    probs[3] = torch.nan  # what is ignored may be anything
    with pytest.raises(ValueError, match="are probabilities"):
        loss.observe(probs, target.index_fill(0, torch.tensor([3]), 255))
    loss.observe(logits.log_softmax(1), target)
    loss.observe(logits, torch.full_like(target, 255))
    loss.observe(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    loss.adapt()


# Nobody calls adapt


def train(loss: AdaptiveLoss, sizes: list[int], epochs: int) -> list[str]:
    """What is said while training for some epochs of batches of given sizes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(epochs):
            for size in sizes:
                loss(torch.randn(size, 4, requires_grad=True), torch.randint(4, (size,))).backward()
    assert all(issubclass(warning.category, UserWarning) and warning.filename == __file__ for warning in caught)
    return [str(warning.message) for warning in caught]


EPOCH = [8] * 6 + [3]


@pytest.mark.parametrize("key", ADAPTIVE)
def test_a_warning_names_the_missing_lines_once(key: str) -> None:
    loss = losses.create(key, num_classes=4)
    assert not train(loss, EPOCH, 1)
    loss = pickle.loads(pickle.dumps(copy.deepcopy(loss)))  # noqa: S301
    (said,) = train(loss, EPOCH, 5)
    assert f"{type(loss).__name__} has been training for 14 steps, more than an epoch" in said
    assert "loss.observe(model(x), y)" in said
    assert "loss.adapt()" in said


def test_only_what_is_missing_is_named() -> None:
    loss = losses.CALSALM(4)
    loss.observe(torch.randn(5, 4), torch.randint(4, (5,)))
    (said,) = train(loss, EPOCH, 3)
    assert "observe" not in said
    assert "loss.adapt()" in said


@pytest.mark.parametrize("key", ADAPTIVE)
def test_no_warning_where_it_adapts(key: str) -> None:
    def adapted(loss: AdaptiveLoss) -> AdaptiveLoss:
        loss.observe(torch.randn(5, 4), torch.randint(4, (5,)))
        loss.adapt()
        return loss

    loss = losses.create(key, num_classes=4)
    assert not train(loss, EPOCH, 1)
    assert not train(adapted(loss), EPOCH, 5)
    resumed = losses.create(key, num_classes=4)
    resumed.load_state_dict(loss.state_dict())
    assert not train(resumed, EPOCH, 5)
    ours = losses.create(key, num_classes=4)  # calibrant's own training adapts when it validates
    ours.scheduled()
    assert not train(ours, EPOCH, 5)


def test_no_warning_where_nothing_is_trained() -> None:
    loss = losses.AdaFocal()
    for _ in range(3):
        for size in EPOCH:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("error")
                loss(torch.randn(size, 4, requires_grad=True), torch.randint(4, (size,)))


@pytest.mark.parametrize(
    "sizes",
    {
        "a long first epoch": [64] * 20_018,
        "two sizes in turn": [64, 32] * 500,
        "batches by length": torch.randint(1, 65, (2000,), generator=torch.Generator().manual_seed(0)).tolist(),
        "one epoch": [64] * 700 + [13],
    }.values(),
    ids=["a long first epoch", "two sizes in turn", "batches by length", "one epoch"],
)
def test_what_may_be_one_epoch_is_no_reason_to_warn(sizes: list[int]) -> None:
    epochs = Epochs()
    for size in sizes:
        epochs.step(size)
    assert not epochs.passed


def test_signs_of_an_epoch() -> None:
    many = Epochs()
    for _ in range(25_001):
        many.step(64)
    assert many.passed
    loss = losses.CALSALM(4)
    whole = nn.ModuleList([nn.Linear(2, 4), loss])  # as in a Lightning module, which is set to eval() and train()
    said = []
    for _ in range(4):
        whole.train()
        whole.train()
        said.append(len(train(loss, [8] * 3, 1)))
        whole.eval()
    assert said == [0, 0, 1, 0]


def test_compiled_losses_are_not_counted_and_not_compiled_again() -> None:
    torch._dynamo.reset()
    loss = losses.CALSALM(4)
    compiled = torch.compile(loss, backend="eager", fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(4):
            for size in EPOCH:
                compiled(torch.randn(size, 4, requires_grad=True), torch.randint(4, (size,))).backward()
    assert loss._epochs is not None
    assert loss._epochs.steps == 0


def test_no_warning_in_calibrants_own_training(tmp_path: Path) -> None:
    """Which may validate, and adapt, every few epochs only."""
    from calibrant.recipes import Data, LongTail, LossChoice, Recipe
    from calibrant.train import fit

    data, loss = Data(long_tail=LongTail(20)), LossChoice("cals-alm")
    recipe = Recipe(name="test", data=data, loss=loss, epochs=3, batch_size=32, validate_every=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert fit(recipe, tmp_path / "run", quiet=True) is not None
    assert not [warning for warning in caught if "more than an epoch" in str(warning.message)]
