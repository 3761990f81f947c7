"""Fast forms against the papers' formulas, written out with loops, where the golden vectors are too small to tell."""

import math

import pytest
import torch
from torch import Tensor

from calibrant import losses


def reference_mmce(logits: Tensor, target: Tensor, *, weighted: bool) -> float:
    r, prediction = logits.softmax(1).max(1)
    c = (prediction == target).double()
    n = [float((c == 0).sum()), float((c == 1).sum())]
    square = 0.0
    for i in range(len(r)):
        for j in range(len(r)):
            scale = n[int(c[i])] * n[int(c[j])] if weighted else len(r) ** 2
            square += float((c[i] - r[i]) * (c[j] - r[j])) * math.exp(-abs(float(r[i] - r[j])) / 0.4) / scale
    return math.sqrt(square)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "k"), [(150, 3), (60, 1000)])
def test_mmce(weighted: bool, n: int, k: int) -> None:
    logits, target = 4 * torch.randn(n, k, dtype=torch.float64), torch.randint(k, (n,))
    logits[:10] = logits[10:20]  # equal confidences
    logits[torch.arange(n // 2), target[: n // 2]] += 12
    value = losses.MMCE(weight=1.0, weighted=weighted)(logits, target) - losses.CrossEntropy()(logits, target)
    assert float(value) == pytest.approx(reference_mmce(logits, target, weighted=weighted), rel=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
def test_mmce_gradient_on_ties_is_that_of_the_double_sum(weighted: bool) -> None:
    logits, target = 2 * torch.randn(40, 5, dtype=torch.float64), torch.randint(5, (40,))
    logits[:15] = logits[15:30]
    logits.requires_grad_()
    r, prediction = logits.softmax(1).max(1)
    c = (prediction == target).double()
    kernel = torch.exp(-(r[:, None] - r[None]).abs() / 0.4)  # autograd takes 0 for the slope of |x| at 0, as we do
    a = (c - r) / (torch.where(c == 1, c.sum(), (1 - c).sum()) if weighted else 40)
    (expected,) = torch.autograd.grad((a @ kernel @ a).sqrt(), logits)
    loss = losses.MMCE(weight=1.0, weighted=weighted)
    (gradient,) = torch.autograd.grad(loss(logits, target) - losses.CrossEntropy()(logits, target), logits)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("width", [0.4, 0.05, 0.01, 0.002])
def test_mmce_of_narrow_kernels(width: float) -> None:
    logits, target = 4 * torch.randn(80, 5, dtype=torch.float64), torch.randint(5, (80,))
    logits.requires_grad_()
    r, prediction = logits.softmax(1).max(1)
    a = ((prediction == target).double() - r) / 80
    expected = (a @ torch.exp(-(r[:, None] - r[None]).abs() / width) @ a).sqrt()
    value = losses.MMCE(weight=1.0, width=width)(logits, target) - losses.CrossEntropy()(logits, target)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    gradients = [torch.autograd.grad(v, logits, retain_graph=True)[0] for v in (value, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-11)


def test_flsd_keeps_the_digits_of_gamma() -> None:
    logits, target = 4 * torch.randn(20, 5, dtype=torch.float64), torch.randint(5, (20,))
    p = logits.softmax(1)[torch.arange(20), target]
    gamma = torch.tensor([5.3 if q < 0.2 else 2.1 for q in p.tolist()], dtype=torch.float64)
    torch.testing.assert_close(
        losses.FocalSD(gamma=2.1, gamma_hard=5.3)(logits, target), (-((1 - p) ** gamma) * p.log()).mean(), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("classes", [2, 4])
def test_strengths_that_follow_the_temperature(classes: int, scale: float) -> None:
    smoothing, both, margin, alpha = losses.LabelSmoothingAuto(), (losses.MbLSAuto(), losses.CALSAuto(classes)), 10.0, 0.05
    for _ in range(3):
        logits, target = scale * torch.randn(50, classes), torch.randint(classes, (50,))
        g = h = reach = 0.0
        for row, y in zip(logits.tolist(), target.tolist(), strict=True):
            total = sum(math.exp(v) for v in row)
            s = [math.exp(v) / total for v in row]
            mean = sum(p * v for p, v in zip(s, row, strict=True))
            g += mean - row[y]
            h += sum(p * (v - mean) ** 2 for p, v in zip(s, row, strict=True))
            reach += (max(row) - min(row)) / 50
        log_t, weight = g / (h + abs(g) + 16), 16 / (h + abs(g) + 16)
        step = log_t + weight * math.log(margin / 10)
        margin = min(30.0, max(1.0, (min(margin, 2 * reach) if step > 0 else margin) * math.exp(-step / 2)))
        alpha = min(0.5, max(0.001, alpha * math.exp(2 * log_t - weight / 2 * math.log(alpha / 0.05))))
        for loss in (*both, smoothing):
            loss.observe(logits, target)
            loss.adapt()
            assert float(loss.temperature) == pytest.approx(math.exp(log_t), rel=1e-5)
        assert [float(loss.margin) for loss in both] == pytest.approx([margin] * 2, rel=1e-5)
        assert float(smoothing.alpha) == pytest.approx(alpha, rel=1e-5)


@pytest.mark.parametrize("shape", [(30, 7), (5, 100), (2, 4, 5, 3), (1, 700)])
def test_cpc(shape: tuple[int, ...]) -> None:
    logits = 4 * torch.randn(shape, dtype=torch.float64)
    target = torch.randint(shape[1], (shape[0], *shape[2:]))
    k = shape[1]
    total, count = 0.0, 0
    for row, y in zip(logits.movedim(1, -1).reshape(-1, k), target.flatten().tolist(), strict=True):
        others = [float(v) for j, v in enumerate(row) if j != y]
        log_sigmoid = lambda x: -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))  # noqa: E731
        discrimination = -sum(log_sigmoid(float(row[y]) - v) for v in others) / (k - 1)
        exclusion = -sum(log_sigmoid(a - b) / 2 for a in others for b in others) / ((k - 1) * (k - 2))
        total += -float(row.log_softmax(0)[y]) + 10 * discrimination + exclusion
        count += 1
    assert float(losses.CPC()(logits, target)) == pytest.approx(total / count, rel=1e-12)


@pytest.mark.parametrize("penalty", ["phr", "p2", "p3"])
def test_alm_statistics(penalty: str) -> None:
    """Eq. 12 and the mean constraint, sample by sample and class by class."""
    logits = 6 * torch.randn(25, 4, dtype=torch.float64)
    loss = losses.CALSALM(4, margin=5.0, penalty=penalty, multiplier_init=0.3, rho_init=2.0).double()
    loss.observe(logits, torch.zeros(25, dtype=torch.int64))
    loss.adapt()
    for k in range(4):
        slopes, constraints = [], []
        for row in logits.tolist():
            z = (max(row) - row[k]) / 5 - 1
            constraints.append(z)
            if penalty == "phr":
                slopes.append(max(0.0, 0.3 + 2 * z))
            elif z >= 0:
                slopes.append(0.3 + 2 * 0.3 * 2 * z + (2.0 * z * z if penalty == "p2" else 0))
            else:
                slopes.append(0.3 / (1 - 2 * z) ** 2)
        assert float(loss.multipliers[k]) == pytest.approx(sum(slopes) / 25, rel=1e-6)
        assert float(loss.constraint[k]) == pytest.approx(sum(constraints) / 25, rel=1e-6)


def test_adafocal_in_bins_of_equal_width() -> None:
    """Eq. 4 with bins (0, 1/5], ..., (4/5, 1], written out; bins without samples keep their gamma."""
    loss = losses.AdaFocal(num_bins=5, binning="width", gamma_init=2.0).double()
    expected = [2.0] * 5
    for epoch in range(3):
        logits, target = (1 + epoch) * torch.randn(40, 3, dtype=torch.float64), torch.randint(3, (40,))
        loss.observe(logits, target)
        loss.adapt()
        bins: list[list[tuple[float, bool]]] = [[] for _ in range(5)]
        for row, label in zip(logits.softmax(1).tolist(), target.tolist(), strict=True):
            bins[math.ceil(5 * max(row)) - 1].append((max(row), row.index(max(row)) == label))
        assert not bins[0]  # a third is the least of three
        for b, own in enumerate(bins):
            if own:
                confidence, accuracy = (sum(column) / len(own) for column in zip(*own, strict=True))
                expected[b] = min(20.0, expected[b] * math.exp(confidence - accuracy))
        torch.testing.assert_close(loss.gammas, torch.tensor(expected).double(), rtol=1e-5, atol=0)
        torch.testing.assert_close(loss.edges, torch.tensor([0.2, 0.4, 0.6, 0.8]).double())
    assert loss.gammas[0] == 2
    assert losses.AdaFocal(gamma_init=3.0, gamma_max=2.0).gammas.unique().tolist() == [2.0]


def test_one_multiplier_for_all_classes() -> None:
    """Algorithm 2 with two numbers instead of two vectors, over epochs of growing logits."""
    loss = losses.CALSALM(4, margin=5.0, rho_period=2, gamma=1.5, per_class=False).double()
    multiplier, rho, before = 1e-6, 1.0, 0.0
    grown = 0
    for epoch in range(1, 9):
        logits = (3 + epoch) * torch.randn(25, 4, dtype=torch.float64)
        loss.observe(logits, torch.zeros(25, dtype=torch.int64))
        loss.adapt()
        z = [(max(row) - value) / 5 - 1 for row in logits.tolist() for value in row]
        multiplier, constraint = sum(max(0.0, multiplier + rho * x) for x in z) / 100, sum(z) / 100
        if epoch % 2 == 0 and constraint > 0.9 * max(0.0, before):
            rho, grown = min(10.0, 1.5 * rho), grown + 1
        before = constraint
        torch.testing.assert_close(loss.multipliers, torch.full((4,), multiplier).double(), rtol=1e-6, atol=0)
        torch.testing.assert_close(loss.rho, torch.full((4,), rho).double(), rtol=1e-6, atol=0)
    assert grown
    assert multiplier > 0.1


def test_large_k_margin_losses_against_autograd() -> None:
    """The written-out gradient against autograd on the formula, K = 1000, with ties."""
    logits = (6 * torch.randn(40, 1000)).round().double().requires_grad_()
    target = torch.randint(1000, (40,))
    lam, rho = torch.rand(1000).double(), 0.5 + torch.rand(1000).double()
    distance = logits.amax(1, keepdim=True) - logits
    entropy = torch.nn.functional.cross_entropy(logits, target)
    z = distance / 10 - 1
    phr = torch.where(lam + rho * z >= 0, lam * z + rho * z**2 / 2, -(lam**2) / (2 * rho))
    alm, hr = losses.CALSALM(1000).double(), losses.CALSHR(1000).double()
    alm.multipliers, alm.rho, hr.multipliers = lam, rho, lam
    for loss, expected in [
        (alm, entropy + phr.mean()),
        (hr, entropy + (lam * (distance - 10).relu()).mean()),
        (losses.MbLS(), entropy + 0.1 * (distance - 10).relu().mean()),
        (losses.MbLS(class_reduction="sum"), entropy + 0.1 * (distance - 10).relu().sum(1).mean()),
    ]:
        value = loss(logits, target)
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
        gradients = [torch.autograd.grad(v, logits, retain_graph=True)[0] for v in (value, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-14)
