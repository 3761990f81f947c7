"""Distributions, class weights, one logit for two classes and several labels, in every loss."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from variants import BATCH_LEVEL, DETACHED, MULTICLASS_ONLY, VARIANTS

from calibrant.losses import AdaFocal, AdaptiveLoss, CrossEntropy, LabelSmoothing, create

CLASSES = 5
every_loss = pytest.mark.parametrize("name", VARIANTS)
every_task = pytest.mark.parametrize("name", [name for name in VARIANTS if name not in MULTICLASS_ONLY])
per_sample = pytest.mark.parametrize("name", [name for name in VARIANTS if name not in BATCH_LEVEL])
own_gradient = pytest.mark.parametrize(
    "name", [name for name in VARIANTS if "focal" not in name and name not in BATCH_LEVEL | DETACHED]
)


def logits_of(*shape: int) -> Tensor:
    return (4 * torch.randn(*shape, dtype=torch.float64)).requires_grad_()


def distributions(*shape: int) -> Tensor:
    """Over dimension 1, some of them certain."""
    q = torch.randn(*shape, dtype=torch.float64).mul(2).softmax(dim=1)
    return torch.where(torch.rand(shape[0], *[1] * (len(shape) - 1)) < 0.3, one_hot_of(q.argmax(1), shape[1]), q)


def one_hot_of(labels: Tensor, classes: int = CLASSES) -> Tensor:
    return one_hot(labels, classes).movedim(-1, 1).double()


def same(a: Tensor, b: Tensor, logits: Tensor) -> None:
    """Equal values and gradients."""
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
    grad = [torch.autograd.grad(value.sum(), logits, retain_graph=True)[0] for value in (a, b)]
    torch.testing.assert_close(*grad, rtol=1e-6, atol=1e-9)


@every_loss
@pytest.mark.parametrize("shape", [(12, CLASSES), (3, CLASSES, 2, 3)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_certain_distribution_is_a_label(name: str, shape: tuple[int, ...], reduction: str) -> None:
    loss = VARIANTS[name](CLASSES, reduction=reduction)
    logits, labels = logits_of(*shape), torch.randint(CLASSES, (shape[0], *shape[2:]))
    same(loss(logits, one_hot_of(labels)), loss(logits, labels), logits)


@per_sample
def test_the_loss_of_a_distribution_is_the_expected_loss(name: str) -> None:
    loss = VARIANTS[name](CLASSES, reduction="none")
    logits, q = logits_of(9, CLASSES), distributions(9, CLASSES)
    each = torch.stack([loss(logits, torch.full((9,), k)) for k in range(CLASSES)], dim=1)
    same(loss(logits, q), (q * each).sum(dim=1), logits)


@pytest.mark.parametrize("name", ["mmce", "mmce weighted"])
def test_mmce_of_distributions(name: str) -> None:
    """A distribution (a/m, b/m, ...) stands for m samples with these labels, as far as correctness goes."""
    loss = VARIANTS[name](2)
    logits = logits_of(6, 2)
    q = torch.tensor([[1, 3], [2, 2], [4, 0], [0, 4], [3, 1], [1, 3]]).double() / 4
    repeated = torch.cat([torch.tensor([0] * int(4 * a) + [1] * int(4 * b)) for a, b in q.tolist()])
    same(loss(logits, q), loss(logits.repeat_interleave(4, dim=0), repeated), logits)


@per_sample
@pytest.mark.parametrize("soft", [False, True])
def test_a_class_of_weight_two_counts_twice(name: str, soft: bool) -> None:
    """As if its samples were there twice; the mean of distributions is over samples, as in torch.nn.CrossEntropyLoss."""
    weights = torch.tensor([1.0, 2.0, 0.0, 0.5, 1.0])
    weighted, plain = VARIANTS[name](CLASSES, class_weights=weights), VARIANTS[name](CLASSES, reduction="none")
    logits, labels = logits_of(20, CLASSES), torch.randint(CLASSES, (20,))
    if isinstance(weighted, LabelSmoothing):
        expected = nn.CrossEntropyLoss(weight=weights.double(), label_smoothing=float(weighted.alpha))
        target = distributions(20, CLASSES) if soft else labels
        same(weighted(logits, target), expected(logits, target), logits)
        return
    if not soft:
        own = weights[labels].double()
        same(weighted(logits, labels), (own * plain(logits, labels)).sum() / own.sum(), logits)
        return
    q = distributions(20, CLASSES)
    each = torch.stack([plain(logits, torch.full((20,), k)) for k in range(CLASSES)], dim=1)
    same(weighted(logits, q), (q * weights * each).sum(dim=1).mean(), logits)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_is_that_of_torch(soft: bool, smoothing: float, reduction: str, weighted: bool) -> None:
    options = {"label_smoothing": smoothing, "reduction": reduction}
    weight = torch.tensor([1.0, 2.0, 0.25, 0.5, 3.0], dtype=torch.float64) if weighted else None
    logits, labels = logits_of(7, CLASSES, 3), torch.randint(CLASSES, (7, 3))
    if not soft:
        labels[0] = -100
    target = distributions(7, CLASSES, 3) if soft else labels
    ours, theirs = CrossEntropy(weight=weight, **options), nn.CrossEntropyLoss(weight=weight, **options)
    same(ours(logits, target), theirs(logits, target), logits)


@every_task
@pytest.mark.parametrize("shape", [(11,), (11, 1), (3, 1, 4, 2)])
def test_one_logit_is_two(name: str, shape: tuple[int, ...]) -> None:
    """Binary: the logits (0, z); labels are integers, booleans or probabilities."""
    one, two = VARIANTS[name](2, task="binary", ignore_index=9), VARIANTS[name](2, ignore_index=9)
    z = logits_of(*shape)
    columns = torch.stack([torch.zeros_like(z), z], dim=1)
    columns = columns.squeeze(2) if len(shape) > 1 else columns
    target = torch.randint(2, shape)
    flat = target.squeeze(1) if len(shape) > 1 else target
    expected = two(columns, flat)
    for given in (target, target.bool(), target.double(), flat):
        same(one(z, given), expected, z)
    target[:2] = 9
    same(one(z, target), two(columns, target.squeeze(1) if len(shape) > 1 else target), z)
    same(one(z, target.double()), one(z, target), z)


@every_task
def test_many_labels_are_as_many_decisions(name: str) -> None:
    """Multilabel: the mean over samples and labels of the binary loss."""
    many = VARIANTS[name](2, task="multilabel", reduction="none")
    z, target = logits_of(8, 3), torch.randint(2, (8, 3))
    if name in BATCH_LEVEL:
        same(many(z, target).flatten(), VARIANTS[name](2, task="binary", reduction="none")(z.flatten(), target.flatten()), z)
        return
    binary = VARIANTS[name](2, task="binary", reduction="none")
    same(many(z, target), torch.stack([binary(z[:, k], target[:, k]) for k in range(3)], dim=1), z)
    soft = torch.rand(8, 3, dtype=torch.float64)
    same(many(z, soft), soft * many(z, torch.ones_like(target)) + (1 - soft) * many(z, torch.zeros_like(target)), z)


@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_where_a_task_has_no_meaning_a_sentence_says_so(task: str) -> None:
    with pytest.raises(ValueError, match=f'LogitNorm does not support task="{task}": normalising a single logit leaves'):
        create("logitnorm", task=task)


def test_binary_cross_entropy_is_that_of_torch() -> None:
    z, target = logits_of(9, 4), torch.rand(9, 4, dtype=torch.float64)
    same(create("ce", task="multilabel")(z, target), nn.BCEWithLogitsLoss()(z, target), z)
    positive = create("ce", task="multilabel", class_weights=[1.0, 3.0], reduction="sum")
    same(positive(z, target), nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0), reduction="sum")(z, target), z)


ADAPTIVE = [name for name in VARIANTS if isinstance(VARIANTS[name](CLASSES), AdaptiveLoss)]


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_losses_observe_distributions(name: str) -> None:
    """A certain one is a label; one of thirds is three samples."""
    logits, labels = logits_of(60, CLASSES).detach().float(), torch.randint(CLASSES, (60,))
    losses = [VARIANTS[name](CLASSES) for _ in range(2)]
    for loss, target in zip(losses, (labels, one_hot_of(labels).float()), strict=True):
        loss.observe(logits, target)
        loss.adapt()
    for mine, theirs in zip(*(loss.buffers() for loss in losses), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_adafocal_learns_expected_accuracies() -> None:
    logits = 3 * torch.randn(300, CLASSES)
    q = torch.tensor([0.5, 0.25, 0.25, 0.0, 0.0])
    loss = AdaFocal(num_bins=1)
    loss.observe(logits, q.expand(300, -1))
    loss.adapt()
    assert float(loss.accuracies) == pytest.approx(float(q[logits.argmax(1)].mean()), abs=1e-6)


@own_gradient
def test_gradients_are_those_of_differences(name: str) -> None:
    loss = VARIANTS[name](3, class_weights=[0.5, 1.0, 2.0])
    q = distributions(4, 3)
    assert torch.autograd.gradcheck(lambda x: loss(x, q), (torch.randn(4, 3, dtype=torch.float64).requires_grad_(),))


def test_half_precision_devices_and_state() -> None:
    loss = create("mbls", class_weights=[1.0, 2.0, 3.0])
    assert "class_weights" not in loss.state_dict()
    assert loss.to(torch.float64).class_weights.dtype is torch.float64
    logits, target = torch.randn(6, 3), torch.randint(3, (6,))
    exact = loss(logits.double(), target)
    assert float(loss(logits.bfloat16(), target)) == pytest.approx(float(exact), rel=2e-2)
    assert float(copy.deepcopy(loss)(logits, target)) == pytest.approx(float(exact), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "logits", "target", "message"),
    [
        ({}, (4, 3), torch.zeros(4), r"in the shape of the logits, \(4, 3\); got \(4,\); class labels are integers"),
        ({}, (4, 3), torch.eye(4)[:, :3], r"row 3 holds \[0.0, 0.0, 0.0\], which are not probabilities"),
        ({}, (4, 3), -torch.ones(4, 3), "which are not probabilities that add up to 1"),
        ({"task": "binary"}, (4, 3), torch.zeros(4), r"\(N,\) or \(N, 1, \*spatial\), got \(4, 3\); for several labels"),
        ({"task": "binary"}, (4,), torch.zeros(3), r'with task="binary", target must have the shape of the logits, \(4,\)'),
        ({"task": "multilabel"}, (4, 3), torch.zeros(4), r"target must have the shape of the logits, \(4, 3\), got \(4,\)"),
        ({"task": "multilabel"}, (4, 3), 2 * torch.ones(4, 3), "which are not probabilities"),
        ({"task": "binary"}, (4,), torch.full((4,), 3), "target has value 3 but logits have 2 classes"),
        ({"task": "other"}, (4, 3), torch.zeros(4), "task must be"),
        ({"class_weights": [1.0, 2.0]}, (4, 3), torch.zeros(4).long(), "one weight for each of 3 classes"),
        ({"class_weights": [1.0, -2.0, 1.0]}, (4, 3), torch.zeros(4).long(), "vector of non-negative numbers"),
    ],
)
def test_what_does_not_fit_is_named(options: dict, logits: tuple[int, ...], target: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create("fl", **options)(torch.randn(*logits), target)


def test_weight_and_class_weights_are_the_same() -> None:
    with pytest.raises(ValueError, match="pass one of them"):
        CrossEntropy(weight=torch.ones(3), class_weights=[1.0, 1.0, 1.0])
    with pytest.raises(TypeError, match="CrossEntropy.. got an unexpected keyword argument 'wieght'; did you mean 'weight'"):
        CrossEntropy(wieght=torch.ones(3))
