"""Losses on segmented images that look at the neighbours of pixels: what holds for every loss, and brute force."""

import copy
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from calibrant.functional import crac_loss
from calibrant.losses import METHODS, AdaptiveLoss, CRaC, Loss, create
from calibrant.losses.neighbours import neighbours
from calibrant.losses.targets import batch
from processes import run_as_ranks

K = 4


def _build(key: str, **options: object) -> Loss:
    loss = create(key, num_classes=K, **options)
    if isinstance(loss, AdaptiveLoss):  # as it may be after some epochs
        random = torch.Generator().manual_seed(1)
        loss.multipliers.copy_(0.05 + torch.rand(loss.multipliers.shape, generator=random))
        loss.rho.copy_(0.5 + torch.rand(loss.rho.shape, generator=random))
    return loss


VARIANTS: dict[str, Callable[..., Loss]] = {
    "nacl": partial(_build, "nacl"),
    "nacl l2": partial(_build, "nacl", norm="l2", kernel_size=5),
    "nacl released": partial(_build, "nacl", border="released"),
    "nacl zeros": partial(_build, "nacl", border="zeros"),
    "crac": partial(_build, "crac"),
    "crac p2": partial(_build, "crac", penalty="p2", margin=1.0, border="released"),
    "crac p3": partial(_build, "crac", penalty="p3"),
}
every_variant = pytest.mark.parametrize("name", VARIANTS)
every_method = pytest.mark.parametrize("key", [key for key, method in METHODS.items() if method.dense])


def test_every_method_is_tested() -> None:
    assert {name.split()[0] for name in VARIANTS} == {key for key, method in METHODS.items() if method.dense}


def data(*spatial: int, n: int = 2, ignored: float = 0.2, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Logits, and labels in patches."""
    coarse = torch.randint(K, (n, *(-(-size // 3) for size in spatial)))
    for dim, size in enumerate(spatial, start=1):
        coarse = coarse.repeat_interleave(3, dim=dim).narrow(dim, 0, size)
    coarse[torch.rand(coarse.shape) < ignored] = -100
    return 3 * torch.randn(n, K, *spatial, dtype=dtype), coarse


def run(loss: Loss, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.detach().clone().requires_grad_()
    value = loss(logits, target)
    value.sum().backward()
    return value.detach(), logits.grad


def windows(target: Tensor, border: str, size: int) -> tuple[Tensor, Tensor]:
    """Shares of classes in the window of each pixel, and whether it holds several, by loops."""
    n, height, width = target.shape
    shares, boundary = torch.zeros(n, K, height, width, dtype=torch.float64), torch.zeros(n, height, width, dtype=torch.bool)
    for i in range(n):
        for y in range(height):
            for x in range(width):
                seen, inside = [], 0
                for v in range(y - size // 2, y + size // 2 + 1):
                    for u in range(x - size // 2, x + size // 2 + 1):
                        if 0 <= v < height and 0 <= u < width:
                            inside += 1
                            seen += [int(target[i, v, u])]
                        elif border == "released":
                            seen += [0]
                seen = [label for label in seen if label >= 0]
                for label in seen:
                    shares[i, label, y, x] += 1 / (inside if border == "valid" else size**2)
                boundary[i, y, x] = len(set(seen)) > 1 and target[i, y, x] >= 0
    return shares, boundary


@pytest.mark.parametrize("border", ["valid", "released", "zeros"])
@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("shape", [(5, 7), (1, 2)])
def test_windows_by_brute_force(border: str, size: int, shape: tuple[int, int]) -> None:
    logits, target = data(*shape)
    found = neighbours(batch(logits, target), size, border, {})
    shares, boundary = windows(target, border, size)
    torch.testing.assert_close(found.shares, shares)
    assert torch.equal(found.boundary, boundary)


def test_windows_of_lines_and_volumes() -> None:
    logits, target = data(9, ignored=0)
    found = neighbours(batch(logits, target), 3, "valid", {})
    flat = neighbours(batch(logits.unsqueeze(2), target.unsqueeze(1)), 3, "valid", {})
    torch.testing.assert_close(found.shares, flat.shares.squeeze(2))
    logits, target = data(4, 5, 3, ignored=0)
    found = neighbours(batch(logits, target), 3, "valid", {})
    patch = target[0, 0:3, 1:4, 1:3]
    torch.testing.assert_close(found.shares[0, :, 1, 2, 2], one_hot(patch, K).double().flatten(0, 2).mean(0))


@every_method
def test_samples_without_pixels_are_refused(key: str) -> None:
    loss = create(key, num_classes=3)
    calls = [loss, loss.observe] if isinstance(loss, AdaptiveLoss) else [loss]
    for call in calls:
        with pytest.raises(ValueError, match=r"is for segmented images.*\(N, K, \*spatial\), got \(4, 3\)"):
            call(torch.randn(4, 3), torch.randint(3, (4,)))


@every_variant
@pytest.mark.parametrize("scale", [0.0, 3.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_value_and_gradient_are_finite(name: str, scale: float, dtype: torch.dtype) -> None:
    logits, target = data(6, 5)
    scale = min(scale, 30.0) if dtype is torch.float16 else scale  # in which the gradient of a cube may be infinite
    value, gradient = run(VARIANTS[name](), (scale * logits.clamp(-1, 1)).to(dtype), target)
    assert value.isfinite()
    assert gradient.isfinite().all()
    assert (value.dtype, gradient.dtype) == (torch.float32, dtype)


@every_variant
def test_ignored_pixels_do_not_matter(name: str) -> None:
    logits, target = data(6, 5)
    ignored = target == -100
    value, gradient = run(VARIANTS[name](), logits, target)
    assert (gradient.movedim(1, -1)[ignored] == 0).all()
    changed = torch.where(ignored.unsqueeze(1), float("nan"), logits)
    torch.testing.assert_close(VARIANTS[name]()(changed, target), value)
    everything = torch.full_like(target, 255)
    for reduction in ("mean", "sum", "none"):
        nothing, gradient = run(VARIANTS[name](ignore_index=255, reduction=reduction), logits, everything)
        assert (nothing == 0).all()
        assert (gradient == 0).all()


@every_variant
def test_reductions_agree(name: str) -> None:
    logits, target = data(6, 5)
    none = VARIANTS[name](reduction="none")(logits, target)
    assert none.shape == target.shape
    torch.testing.assert_close(VARIANTS[name](reduction="sum")(logits, target), none.sum())
    torch.testing.assert_close(VARIANTS[name]()(logits, target), none.sum() / (target != -100).sum())
    weights = torch.tensor([1.0, 2.0, 0.0, 0.5])
    own = torch.where(target < 0, 0, weights[target.clamp(min=0)]).double()
    weighted = VARIANTS[name](class_weights=weights)
    torch.testing.assert_close(weighted(logits, target), (own * none).sum() / own.sum())
    hard = target.clamp(min=0)
    soft = one_hot(hard, K).movedim(-1, 1).double()
    torch.testing.assert_close(weighted(logits, soft) * hard.numel(), weighted(logits, hard) * weights[hard].double().sum())


@every_variant
def test_gradients_are_those_of_differences(name: str) -> None:
    logits, target = data(3, 3, n=1)
    for reduction in ("mean", "none"):
        loss = VARIANTS[name](reduction=reduction).double()
        assert torch.autograd.gradcheck(lambda x, loss=loss: loss(x, target), logits.requires_grad_())
        soft = torch.randn(1, K, 3, 3, dtype=torch.float64).softmax(1)
        assert torch.autograd.gradcheck(lambda x, loss=loss, soft=soft: loss(x, soft), logits.requires_grad_())


@every_variant
def test_images_of_a_batch_are_independent(name: str) -> None:
    logits, target = data(6, 5, n=3)
    loss = VARIANTS[name](reduction="none")
    each = torch.cat([loss(z[None], y[None]) for z, y in zip(logits, target, strict=True)])
    torch.testing.assert_close(loss(logits, target), each)
    together = torch.func.vmap(lambda z, y: loss(z[None], y[None])[0])(logits, target)
    torch.testing.assert_close(together, each)
    total = VARIANTS[name](reduction="sum")
    gradients = torch.func.vmap(torch.func.grad(lambda z, y: total(z[None], y[None])))(logits, target)
    torch.testing.assert_close(gradients, run(total, logits, target)[1])


@every_variant
def test_formats_types_and_copies(name: str) -> None:
    logits, target = data(6, 5, dtype=torch.float32)
    loss = VARIANTS[name]()
    value, gradient = run(loss, logits, target)
    other, other_gradient = run(loss, logits.to(memory_format=torch.channels_last), target.to(torch.int16))
    torch.testing.assert_close(other, value)
    torch.testing.assert_close(other_gradient, gradient)
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):  # noqa: S301
        assert torch.equal(twin(logits, target), value)
    with torch.no_grad():
        torch.testing.assert_close(loss(logits, target), value)
    certain = one_hot(target.clamp(min=0), K).movedim(-1, 1).float()
    torch.testing.assert_close(loss(logits, certain), loss(logits, target.clamp(min=0)))


def epochs(loss: AdaptiveLoss, numbers: range, size: int) -> AdaptiveLoss:
    """Observe the validation images of some epochs in batches of a size."""
    for epoch in numbers:
        torch.manual_seed(epoch)
        logits, target = data(6, 5, n=6, dtype=torch.float32)
        for part, labels in zip(((epoch + 1) * logits).split(size), target.split(size), strict=True):
            loss.observe(part, labels)
        loss.adapt()
    return loss


@pytest.mark.parametrize("options", [{"rho_period": 2}, {"penalty": "p2", "region_means": True, "rho_period": 1}])
def test_crac_learns_the_same_in_any_batches_and_after_a_restart(options: dict) -> None:
    whole = epochs(CRaC(K, **options), range(6), 6)
    first = epochs(CRaC(K, **options), range(3), 1)
    second = CRaC(K, **options)
    second.load_state_dict(first.state_dict())
    epochs(second, range(3, 6), 4)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert whole.history()["multipliers"].shape == (7, 2, K)
    assert sorted(whole.state_dict()) == ["constraint", "epoch", "multipliers", "rho"]
    assert (whole.rho > 0.1).any()
    assert "on boundaries" in whole.summary()


PROCESS = """
import sys
import torch
import torch.distributed as dist
from calibrant.losses import CRaC
from test_neighbours import DISTRIBUTED, K, data

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
for number, options in enumerate(DISTRIBUTED):
    loss = CRaC(K, **options)
    for epoch in range(6):
        torch.manual_seed(epoch)
        logits, target = data(6, 5, n=6, dtype=torch.float32)
        cut = [2, 6, 0, 1, 5, 3][epoch]  # uneven; in epochs 1 and 2 one process has no images at all
        part = slice(cut) if rank == 0 else slice(cut, None)
        if len(target[part]):
            loss.observe((epoch + 1) * logits[part], target[part])
        loss.adapt()
    torch.save(loss.state_dict(), f"{folder}/{number}-{rank}.pt")
dist.destroy_process_group()
"""
DISTRIBUTED: list[dict] = [{"rho_period": 2}, {"penalty": "p2", "region_means": True, "rho_period": 1}]


def test_two_processes_learn_what_one_learns_from_all(tmp_path: Path) -> None:
    assert run_as_ranks(PROCESS, tmp_path) == [0, 0]
    for number, options in enumerate(DISTRIBUTED):
        alone = epochs(CRaC(K, **options), range(6), 6).state_dict()
        states = [torch.load(tmp_path / f"{number}-{rank}.pt", weights_only=True) for rank in range(2)]
        for name, value in alone.items():
            assert torch.equal(states[0][name], states[1][name]), name
            torch.testing.assert_close(states[0][name], value, rtol=1e-6, atol=1e-12, msg=name)


@pytest.mark.parametrize("region_means", [False, True])
def test_what_crac_learns_by_brute_force(region_means: bool) -> None:
    loss = CRaC(K, margin=2.0, multiplier_init=0.3, rho_init=0.5, region_means=region_means).double()
    logits, target = data(7, 6)
    loss.observe(logits, target)
    loss.adapt()
    shares, boundary = windows(target, "valid", 3)
    sums, count = torch.zeros(2, K, dtype=torch.float64), [0, 0]
    for i, y, x in (target >= 0).nonzero().tolist():
        region = 0 if boundary[i, y, x] else 1
        count[region] += 1
        for k in range(K):
            sums[region, k] += abs((1.0, 2.0)[region] * shares[i, k, y, x] - logits[i, k, y, x])
    pixels = torch.tensor(count).double()[:, None] if region_means else sum(count)
    torch.testing.assert_close(loss.constraint, sums / pixels)
    torch.testing.assert_close(loss.multipliers, 0.3 + 0.5 * sums / pixels, rtol=1e-6, atol=1e-8)


def test_crac_needs_states_for_both_regions() -> None:
    logits, target = data(4, 4)
    with pytest.raises(
        ValueError, match=r"must have shape \(2, K\), for boundaries and for the inside, got \(4,\) and \(4,\)"
    ):
        crac_loss(logits, target, torch.ones(K), torch.ones(K))
    with pytest.raises(ValueError, match=r"logits have 4 classes.*num_classes=5"):
        CRaC(5)(logits, target)
    with pytest.raises(ValueError, match="each decision is between two classes"):
        CRaC(5, task="binary")


@every_method
def test_compiles_in_one_graph(key: str) -> None:
    torch._dynamo.reset()
    logits, target = data(6, 5, dtype=torch.float32)
    loss = _build(key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value, gradient = run(torch.compile(loss, fullgraph=True, backend="aot_eager"), logits, target)
    expected, expected_gradient = run(loss, logits, target)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, expected_gradient)


@every_method
def test_binary_and_multilabel_images(key: str) -> None:
    """One logit is the two logits (0, z); the labels of a pixel are no neighbours of each other."""
    z, target = torch.randn(2, 3, 6, 5, dtype=torch.float64), torch.randint(2, (2, 3, 6, 5))
    two = torch.stack([torch.zeros_like(z[:, 0]), z[:, 0]], dim=1)
    options = {"num_classes": 2, "reduction": "none"}
    expected = create(key, **options)(two, target[:, 0])
    binary = create(key, task="binary", **options)
    torch.testing.assert_close(binary(z[:, :1], target[:, :1]), expected)
    torch.testing.assert_close(binary(z[:, :1], target[:, :1].double()), expected)
    many = create(key, task="multilabel", **options)(z, target)
    torch.testing.assert_close(many, torch.stack([binary(z[:, i : i + 1], target[:, i : i + 1]) for i in range(3)], dim=1))


@every_method
def test_bad_options(key: str) -> None:
    with pytest.raises(ValueError, match="kernel_size must be odd, so that the window has a centre, got 4"):
        create(key, num_classes=3, kernel_size=4)
    with pytest.raises(ValueError, match="border must be one of 'valid', 'released', 'zeros', got 'same'"):
        create(key, num_classes=3, border="same")


@every_method
def test_a_masked_class_is_refused(key: str) -> None:
    logits, target = data(4, 4, ignored=0)
    logits[0, 3, 0, 0] = -torch.inf
    target[0, 0, 0] = 0
    with pytest.raises(ValueError, match="1 of 32 samples have a logit of -infinity"):
        create(key, num_classes=K)(logits, target)
