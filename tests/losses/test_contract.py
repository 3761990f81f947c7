"""What holds for every loss, whatever it computes."""

import copy
import inspect
import pickle
import re
import warnings

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from variants import BATCH_LEVEL, DETACHED, MULTICLASS_ONLY, PLAIN, RAW_LOGITS, VARIANTS

from calibrant import functional as cal, losses
from calibrant.losses import METHODS, AdaptiveLoss, Loss

every_variant = pytest.mark.parametrize("name", VARIANTS)
every_method = pytest.mark.parametrize("key", PLAIN)


def run(loss: Loss, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Value (summed if there are several) and gradient."""
    logits = logits.detach().clone().requires_grad_()
    value = loss(logits, target)
    value.sum().backward()
    return value.detach(), logits.grad


def data(*shape: int, scale: float = 5.0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return (scale * torch.randn(shape)).to(dtype), torch.randint(shape[1], (shape[0], *shape[2:]))


EXTREMES = {
    "logits of 1e4": lambda: (1e4 * torch.randn(16, 10).clamp(-1, 1), torch.randint(10, (16,))),
    "saturated and all right": lambda: (100 * torch.eye(10), torch.arange(10)),
    "saturated and all wrong": lambda: (100 * torch.eye(10), (torch.arange(10) + 1) % 10),
    "one sample": lambda: data(1, 10),
    "no sample": lambda: data(0, 10),
    "all logits equal": lambda: (torch.zeros(8, 10), torch.arange(8)),
    "ties of the largest logit": lambda: (torch.tensor([[3.0, 3.0, 1.0, 3.0]]).repeat(4, 1), torch.arange(4)),
    "K = 2": lambda: data(32, 2),
    "K = 1000": lambda: data(8, 1000),
    "float16": lambda: data(16, 10, dtype=torch.float16),
    "bfloat16": lambda: data(16, 10, dtype=torch.bfloat16),
    "float16, logits of 1e3": lambda: (1e3 * torch.randn(8, 10).sign().half(), torch.arange(8)),
    "dense, three dimensions": lambda: data(2, 5, 3, 4, 2),
}


@pytest.mark.parametrize("extreme", EXTREMES)
@every_variant
def test_value_and_gradient_are_finite(name: str, extreme: str) -> None:
    logits, target = EXTREMES[extreme]()
    value, gradient = run(VARIANTS[name](num_classes=logits.shape[1]), logits, target)
    assert value.isfinite()
    assert gradient.isfinite().all()
    assert gradient.dtype == logits.dtype
    assert value.dtype == torch.float32  # half precision is computed with in float32


@every_variant
def test_everything_ignored_gives_zero_and_leaves_statistics_alone(name: str) -> None:
    logits, _ = data(3, 7, 4)
    target = torch.full((3, 4), 255)
    for reduction in ("mean", "sum", "none"):
        loss = VARIANTS[name](num_classes=7, ignore_index=255, reduction=reduction)
        value, gradient = run(loss, logits, target)
        assert (value == 0).all()
        assert (gradient == 0).all()
    if isinstance(loss, AdaptiveLoss):
        loss.observe(logits, target)
        with pytest.raises(RuntimeError, match="observe"):
            loss.adapt()
        other, labels = data(3, 7, 4)
        reference = copy.deepcopy(loss)
        reference.observe(other, labels)
        reference.adapt()
        loss.observe(other, labels)
        loss.observe(logits, target)
        loss.adapt()
        assert_same_state(loss, reference)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in DETACHED])
def test_gradcheck(name: str) -> None:
    logits, target = data(5, 4, 2, scale=3.0, dtype=torch.float64)
    target[0, 0] = -100
    for reduction in ("mean", "none"):
        loss = VARIANTS[name](num_classes=4, reduction=reduction, **margin_of(name, 2.0)).double()
        assert torch.autograd.gradcheck(lambda x, loss=loss: loss(x, target), logits.requires_grad_())


MARGINS = ("mbls", "mbls-auto", "cals-hr", "cals-alm", "cals-auto", "acls")


def margin_of(name: str, margin: float) -> dict[str, float]:
    """A margin that random logits of the test exceed about half of the time."""
    return {"margin": margin} if name.split(maxsplit=1)[0] in MARGINS else {}


@every_variant
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ignored_pixels_are_as_if_they_were_not_there(name: str, reduction: str) -> None:
    logits, target = data(4, 6, 5, 3)
    ignored = torch.rand(target.shape) < 0.3
    target[ignored] = 255
    loss = VARIANTS[name](num_classes=6, ignore_index=255, reduction=reduction)
    value, gradient = run(loss, logits, target)
    kept_value, kept_gradient = run(loss, logits.movedim(1, -1)[~ignored], target[~ignored])
    if reduction == "none":
        assert value.shape == target.shape
        assert (value[ignored] == 0).all()
        value = value[~ignored]
    torch.testing.assert_close(value, kept_value)
    torch.testing.assert_close(gradient.movedim(1, -1)[~ignored], kept_gradient)
    assert (gradient.movedim(1, -1)[ignored] == 0).all()


@every_variant
def test_reductions_agree(name: str) -> None:
    logits, target = data(20, 6)
    target[::7] = -100
    build = VARIANTS[name]
    none = build(num_classes=6, reduction="none")(logits, target)
    torch.testing.assert_close(build(num_classes=6, reduction="sum")(logits, target), none.sum())
    torch.testing.assert_close(build(num_classes=6)(logits, target), none.sum() / (target != -100).sum())


@every_variant
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**20), shift=st.floats(-50, 50), n=st.integers(1, 20), k=st.integers(2, 12))
def test_only_differences_of_logits_matter_and_no_order(name: str, seed: int, shift: float, n: int, k: int) -> None:
    torch.manual_seed(seed)
    logits, target = data(n, k, dtype=torch.float64)
    loss = VARIANTS[name](num_classes=k, **margin_of(name, 4.0)).double()
    value, gradient = run(loss, logits, target)
    if name not in RAW_LOGITS:
        shifted, shifted_gradient = run(loss, logits + shift, target)
        torch.testing.assert_close(shifted, value, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(shifted_gradient, gradient, rtol=1e-6, atol=1e-9)
        if not name.startswith("acls"):
            torch.testing.assert_close(gradient.sum(dim=1), torch.zeros(n, dtype=torch.float64), rtol=0, atol=1e-9)
    order = torch.randperm(n)
    permuted, permuted_gradient = run(loss, logits[order], target[order])
    torch.testing.assert_close(permuted, value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(permuted_gradient, gradient[order], rtol=1e-9, atol=1e-12)


@every_variant
def test_equal_samples_get_equal_gradients(name: str) -> None:
    """Also where confidences tie, which sorts of MMCE's running sums must not see."""
    logits, target = data(3, 5, dtype=torch.float64)
    _, gradient = run(VARIANTS[name](num_classes=5).double(), logits.repeat(4, 1), target.repeat(4))
    torch.testing.assert_close(gradient, gradient[:3].repeat(4, 1), rtol=1e-12, atol=1e-14)


@every_variant
def test_without_gradient_the_value_is_the_same(name: str) -> None:
    logits, target = data(8, 6)
    loss = VARIANTS[name](num_classes=6)
    with torch.no_grad():
        plain = loss(logits, target)
    assert not plain.requires_grad
    torch.testing.assert_close(plain, run(loss, logits, target)[0])


@every_variant
def test_gradient_scales_with_what_comes_from_above(name: str) -> None:
    logits, target = data(8, 6)
    weights = torch.rand(8)
    loss = VARIANTS[name](num_classes=6, reduction="none")
    logits.requires_grad_()
    value = loss(logits, target)
    (weighted,) = torch.autograd.grad((value * weights).sum(), logits, retain_graph=True)
    parts = [torch.autograd.grad(v, logits, retain_graph=True)[0] for v in value]
    torch.testing.assert_close(weighted, sum(w * part for w, part in zip(weights, parts, strict=True)))


@every_variant
def test_autocast(name: str) -> None:
    """A network under autocast gives bfloat16 logits; the loss computes with them in float32."""
    network = nn.Linear(12, 6)
    loss = VARIANTS[name](num_classes=6)
    target = torch.randint(6, (10,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = network(torch.randn(10, 12))
        assert logits.dtype == torch.bfloat16
        value = loss(logits, target)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(logits.float(), target))
    value.backward()
    assert network.weight.grad.isfinite().all()


@every_variant
def test_integer_types_of_target(name: str) -> None:
    logits, target = data(8, 6)
    loss = VARIANTS[name](num_classes=6)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        assert loss(logits, target.to(dtype)) == loss(logits, target)


@every_variant
def test_copies_are_equal_and_independent(name: str) -> None:
    logits, target = data(8, 6)
    loss = VARIANTS[name](num_classes=6)
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):  # noqa: S301
        assert torch.equal(other(logits, target), loss(logits, target))
        assert_same_state(other, loss)
        if isinstance(loss, AdaptiveLoss):
            other.observe(logits, target)
            other.adapt()
            assert other.epoch == 1
            assert loss.epoch == 0


@every_variant
def test_double_and_half(name: str) -> None:
    logits, target = data(8, 6)
    loss = VARIANTS[name](num_classes=6)
    single = loss(logits, target)
    double = loss.double()(logits.double(), target)
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single)
    for buffer in loss.half().buffers():
        assert buffer.dtype in (torch.float64, torch.int64)  # learned state never loses precision


@pytest.mark.parametrize("name", [name for name in VARIANTS if not name.endswith((" learned", " detached"))])
def test_compiles_in_one_graph(name: str) -> None:
    torch._dynamo.reset()  # losses share code, of which only a few versions are kept
    logits, target = data(8, 6, 5)
    target[0, 0] = -100
    loss = VARIANTS[name](num_classes=6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        value, gradient = run(compiled, logits, target)
        expected, expected_gradient = run(loss, logits, target)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(gradient, expected_gradient)
        if isinstance(loss, AdaptiveLoss):  # new weights are seen, without compiling again
            loss.observe(logits, target)
            loss.adapt()
            with torch.compiler.set_stance("fail_on_recompile"):
                new, _ = run(compiled, logits, target)
            torch.testing.assert_close(new, loss(logits, target))


@pytest.mark.parametrize("key", ["cals-alm", "mmce"])
def test_compiles_to_machine_code(key: str) -> None:
    logits, target = data(8, 6, 5)
    loss = losses.create(key, num_classes=6)
    # Finding out what the CPU can do, vector code, and processes that compile take longer than the rest.
    with torch._inductor.config.patch({"cpp.vec_isa_ok": False, "compile_threads": 1}):
        value, gradient = run(torch.compile(loss), logits, target)
    expected, expected_gradient = run(loss, logits, target)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, expected_gradient)


WRITTEN_OUT = ("ecp", "brier", "mmce", "cpc", "avuc", "soft-avuc", "dca", "esd", "sbece", "logitnorm", *MARGINS)


@every_variant
def test_second_derivatives_are_right_or_refused(name: str) -> None:
    """Never silently wrong: through a network, with a gradient that is differentiated again."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5)).double()
    x, target = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.randint(5, (6,))
    loss = VARIANTS[name](num_classes=5).double()
    for reduction in ("mean", "sum"):
        loss.reduction = reduction
        (gradient,) = torch.autograd.grad(loss(network(x), target), x, create_graph=True)
        if name.split(maxsplit=1)[0] in WRITTEN_OUT:
            with pytest.raises(RuntimeError, match="no second derivative"):
                gradient.square().sum().backward()
        elif name not in DETACHED:
            assert torch.autograd.gradgradcheck(lambda x, loss=loss: loss(network(x), target), x)


@every_variant
def test_what_is_ignored_may_be_anything(name: str) -> None:
    logits, target = data(8, 6)
    target[2] = -100
    loss = VARIANTS[name](num_classes=6)
    value, gradient = run(loss, logits, target)
    logits[2] = float("nan")
    torch.testing.assert_close(loss(logits, target), value)
    _, spoilt = run(loss, logits, target)
    others = torch.arange(8) != 2
    torch.testing.assert_close(spoilt[others], gradient[others])


@every_variant
def test_memory_formats_and_the_users_tensors(name: str) -> None:
    logits, target = data(2, 6, 5, 4)
    loss = VARIANTS[name](num_classes=6)
    value, gradient = run(loss, logits, target)
    for other in (
        logits.to(memory_format=torch.channels_last),
        logits.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0),
        torch.stack([logits, logits], dim=-1)[..., 0],
    ):
        before = other.clone()
        other_value, other_gradient = run(loss, other, target)
        torch.testing.assert_close(other_value, value)
        torch.testing.assert_close(other_gradient, gradient)
        assert torch.equal(other, before)


@every_method
def test_functional_transforms(key: str) -> None:
    logits, target = data(8, 6)
    loss = losses.create(key, num_classes=6)
    torch.testing.assert_close(torch.func.grad(lambda x: loss(x, target))(logits), run(loss, logits, target)[1])


@every_method
def test_constructor_arguments_are_kept_and_shown(key: str) -> None:
    loss = losses.create(key, num_classes=6, ignore_index=7, reduction="sum")
    for argument in inspect.signature(type(loss)).parameters:
        if argument not in ("class_weights", "task") and (key, argument) != ("ce", "weight"):
            value = getattr(loss, argument)
            if isinstance(value, Tensor):  # in single precision
                shown = re.search(rf"\b{argument}=([^,)]+)", repr(loss))
                assert shown
                assert torch.equal(torch.tensor(float(shown[1])), value)
            else:
                assert f"{argument}={value!r}" in repr(loss)
    assert "ignore_index=7, reduction='sum'" in repr(loss)
    assert repr(losses.create(key, num_classes=2, class_weights=[1, 2])).endswith("class_weights=[1.0, 2.0])")
    if key not in MULTICLASS_ONLY:
        assert repr(losses.create(key, num_classes=2, task="binary")).endswith("task='binary')")


def assert_same_state(a: Loss, b: Loss) -> None:
    first, second = a.state_dict(), b.state_dict()
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def bad_inputs() -> dict[str, tuple[tuple[object, object], type[Exception], str]]:
    logits, target = data(4, 6)
    return {
        "floats as labels": (
            (logits, target.float()),
            ValueError,
            r"shape of the logits, \(4, 6\); got \(4,\).*target.long",
        ),
        "scores as target": ((logits, logits), ValueError, r"not probabilities that add up to 1"),
        "bool target": ((logits, target > 2), TypeError, r"target.*bool"),
        "list target": ((logits, [1, 2, 3, 4]), TypeError, "target.*list"),
        "integer logits": ((logits.long(), target), TypeError, "logits.*int64"),
        "one-dimensional logits": ((logits[0], target[:1]), ValueError, r"logits.*\(6,\).*unsqueeze.*task=.binary"),
        "one class": ((logits[:, :1], target), ValueError, r"at least 2 classes.*\(4, 1\).*task=.binary"),
        "wrong number of samples": ((logits, target[:3]), ValueError, r"target.*\(4,\).*\(4, 6\).*\(3,\)"),
        "wrong spatial shape": ((logits[..., None].repeat(1, 1, 3), target), ValueError, r"target.*\(4, 3\).*\(4,\)"),
        "label too large": ((logits, target.index_fill(0, torch.tensor([1]), 6)), ValueError, r"value 6.*0\.\.5.*index=6"),
        "negative label": ((logits, target.index_fill(0, torch.tensor([1]), -1)), ValueError, r"value -1.*ignore_index=-1"),
    }


@every_method
def test_bad_input_is_refused_with_a_cure(key: str) -> None:
    loss = losses.create(key, num_classes=6)
    for arguments, error, message in bad_inputs().values():
        for call in [loss, loss.observe] if isinstance(loss, AdaptiveLoss) else [loss]:
            with pytest.raises(error, match=message):
                call(*arguments)


@pytest.mark.parametrize("key", [key for key in PLAIN if METHODS[key].adaptive])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_are_not_learned_from(key: str, value: float) -> None:
    loss = losses.create(key, num_classes=6, ignore_index=255)
    logits, target = data(4, 6)
    logits[2, 3] = value
    with pytest.raises(ValueError, match="1 of 4 samples have a NaN or infinite logit.*diverged"):
        loss.observe(logits, target)
    target[2] = 255  # what is ignored may be anything
    loss.observe(logits, target)
    loss.adapt()
    assert all(buffer.isfinite().all() for buffer in loss.buffers())


@pytest.mark.parametrize("key", ["cals-hr", "cals-alm", "cals-auto"])
def test_number_of_classes_has_to_fit(key: str) -> None:
    loss = losses.create(key, num_classes=5)
    for call in (loss, loss.observe):
        with pytest.raises(ValueError, match=r"logits have 6 classes.*num_classes=5"):
            call(*data(4, 6))


BAD_OPTIONS = [
    ("cals-alm", {"margin": -1.0}, ValueError, "margin must be more than 0 and finite, got -1"),
    ("cals-alm", {"margin": 0.0}, ValueError, "margin"),
    ("cals-alm", {"penalty": "relu"}, ValueError, "penalty must be one of phr, p2, p3, got 'relu'"),
    ("cals-alm", {"gamma": 0.5}, ValueError, "gamma"),
    ("cals-alm", {"rho_init": 20.0}, ValueError, "rho_init"),
    ("cals-alm", {"rho_period": 2.5}, TypeError, "rho_period must be an integer"),
    ("cals-alm", {"num_classes": 1}, ValueError, "num_classes must be at least 2"),
    ("cals-hr", {"margin": -0.1}, ValueError, "margin"),
    ("cals-hr", {"multiplier_init": 0.0}, ValueError, "multiplier_init"),
    ("cals-hr", {"factor": 0.9}, ValueError, "factor"),
    ("mbls", {"margin": -10}, ValueError, "margin"),
    ("mbls", {"margin": "10"}, TypeError, "margin must be a number, got str '10'"),
    ("mbls-auto", {"margin": "atuo"}, TypeError, "margin must be a number, got str 'atuo'"),
    ("cals-auto", {"margin": 50.0}, ValueError, "margin must be at least 1 and at most 30, got 50"),
    ("ls-auto", {"alpha": 0.9}, ValueError, "alpha must be at least 0.001 and at most 0.5, got 0.9"),
    ("cals-hr", {"margin": "auto"}, TypeError, "margin must be a number, got str 'auto'"),
    ("mbls", {"class_reduction": "max"}, ValueError, "class_reduction must be one of 'mean', 'sum'"),
    ("cals-alm", {"rho_max": float("nan")}, ValueError, "rho_max must be more than 0"),
    ("cals-alm", {"rho_max": "10"}, TypeError, "rho_max must be a number"),
    ("adafocal", {"binning": "equal"}, ValueError, "binning must be one of 'mass', 'width', got 'equal'"),
    ("adafocal", {"gamma_init": 0}, ValueError, "gamma_init must be more than 0"),
    ("mbls", {"weight": float("inf")}, ValueError, "weight must be at least 0 and finite, got inf"),
    ("mmce", {"width": 0.0}, ValueError, "width must be at least 0.002"),
    ("adafocal", {"gamma_min": 0.0}, ValueError, "gamma_min must be at least -inf and at most -0.2"),
    ("ce", {"ignore_index": None}, TypeError, "ignore_index must be an integer, got NoneType"),
    ("ce", {"ignore_index": "255"}, TypeError, "ignore_index must be an integer"),
    ("ls", {"alpha": 1.5}, ValueError, "alpha must be at least 0 and at most 1, got 1.5"),
    ("fl", {"gamma": -1}, ValueError, "gamma"),
    ("fl", {"gamma": float("nan")}, ValueError, "gamma"),
    ("flsd", {"threshold": 2}, ValueError, "threshold"),
    ("mmce", {"form": "code"}, ValueError, "form must be one of 'paper', 'released'"),
    ("adafocal", {"num_bins": 0}, ValueError, "num_bins must be at least 1"),
    ("adafocal", {"inverse": True, "momentum": 0.5}, ValueError, "momentum.*inverse"),
    ("calfocal", {"per": "class"}, ValueError, "per must be one of 'bin', 'sample'"),
    ("ce", {"reduction": "avg"}, ValueError, "reduction must be one of 'mean', 'sum', 'none', got 'avg'"),
    ("ce", {"margin": 3}, TypeError, "'ce' takes no option 'margin'; its options are label_smoothing, weight, ignore_index"),
    ("cals", {}, ValueError, "key must be one of ce, .*got 'cals'; did you mean 'cals-"),
]


@pytest.mark.parametrize(("key", "options", "error", "message"), BAD_OPTIONS)
def test_bad_options_are_refused(key: str, options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        losses.create(key, **{"num_classes": 6, **options})


BAD_CALLS = [
    (cal.margin_loss, {"class_reduction": "max"}, ValueError, "class_reduction must be one of 'mean', 'sum', got 'max'"),
    (cal.margin_loss, {"margin": -1}, ValueError, "margin"),
    (cal.confidence_penalty_loss, {"class_reduction": "maen"}, ValueError, "class_reduction"),
    (cal.label_smoothing_loss, {"alpha": 2}, ValueError, "alpha"),
    (cal.mmce_loss, {"form": "relased"}, ValueError, "form must be one of 'paper', 'released'"),
    (cal.focal_loss, {"gamma": -1}, ValueError, "gamma"),
    (cal.focal_sd_loss, {"threshold": 7}, ValueError, "threshold"),
    (cal.cpc_loss, {"exclusion": -1}, ValueError, "exclusion"),
    (cal.cals_alm_loss, {"multipliers": torch.ones(6), "rho": torch.ones(6), "penalty": "relu"}, ValueError, "penalty"),
    (cal.cals_alm_loss, {"multipliers": torch.ones(6), "rho": torch.ones(6), "margin": 0}, ValueError, "margin"),
    (cal.cals_hr_loss, {"multipliers": torch.ones(6), "margin": -1}, ValueError, "margin"),
    (cal.adafocal_loss, {"gammas": torch.ones(6), "edges": torch.ones(6)}, ValueError, "gammas .* edges one fewer"),
    (cal.calfocal_loss, {"accuracies": torch.ones(6), "edges": torch.ones(6), "scale": 1}, ValueError, "accuracies"),
    (cal.brier_loss, {"reduction": "avg"}, ValueError, "reduction"),
]


@pytest.mark.parametrize(("function", "options", "error", "message"), BAD_CALLS)
def test_functions_refuse_bad_options_too(function, options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        function(*data(4, 6), **options)


def test_class_adaptive_losses_need_the_number_of_classes() -> None:
    with pytest.raises(TypeError, match="'cals-alm'.*num_classes"):
        losses.create("cals-alm")
    assert isinstance(losses.create("ce"), losses.CrossEntropy)


def test_batch_level_penalty_is_added_to_each_sample() -> None:
    logits, target = data(20, 6)
    target[3] = -100
    for name in BATCH_LEVEL:
        loss = VARIANTS[name](num_classes=6, reduction="none")
        added = loss(logits, target) - losses.CrossEntropy(reduction="none")(logits, target)
        torch.testing.assert_close(added[target != -100], added[0].expand(19))
        assert added[0] > 0
        assert added[3] == 0
