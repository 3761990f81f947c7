"""The protocol of losses that learn on validation data: observe, adapt, save, resume, several processes."""

import io
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from calibrant import losses
from calibrant.losses import METHODS, AdaptiveLoss
from processes import run_as_ranks

ADAPTIVE = [key for key, method in METHODS.items() if method.adaptive and not method.dense]
OPTIONS: dict[str, list[dict]] = {
    "cals-alm": [
        {"margin": 3.0, "rho_period": 2},
        {"margin": 3.0, "penalty": "p2", "rho_period": 1},
        {"margin": 3.0, "rho_period": 2, "per_class": False},
    ],
    "cals-hr": [{"margin": 3.0}],
    "cals-auto": [{"margin": 3.0, "rho_period": 2}, {"penalty": "p3", "multiplier_init": 0.1}],
    "mbls-auto": [{}],
    "ls-auto": [{}],
    "calfocal": [{}, {"per": "sample"}, {"binning": "width"}],
    "avuc": [{}, {"updates": 3, "threshold": 0.2}],
    "soft-avuc": [{"updates": None}],
    "adafocal": [{}, {"inverse": True}, {"momentum": 0.3}, {"num_bins": 4}, {"binning": "width", "gamma_init": 3.0}],
}
every_adaptive = pytest.mark.parametrize(("key", "options"), [(k, o) for k, os_ in OPTIONS.items() for o in os_], ids=str)


def validation(epoch: int, n: int = 101, k: int = 7) -> tuple[Tensor, Tensor]:
    """Validation logits that grow more confident from epoch to epoch, some of them to be ignored."""
    random = torch.Generator().manual_seed(epoch)
    target = torch.randint(k, (n,), generator=random)
    logits = torch.randn(n, k, generator=random) * (2 + epoch)
    logits[torch.arange(n), target] += 2
    target[torch.rand(n, generator=random) < 0.1] = -100
    return logits, target


def run_epochs(loss: AdaptiveLoss, epochs: range, batch_sizes: list[int] | None = None) -> None:
    for epoch in epochs:
        logits, target = validation(epoch)
        sizes = batch_sizes or [len(target)]
        for part, labels in zip(logits.split(sizes), target.split(sizes), strict=True):
            loss.observe(part, labels)
        loss.adapt()


def test_every_adaptive_loss_is_tested() -> None:
    assert set(OPTIONS) == set(ADAPTIVE)


@every_adaptive
@pytest.mark.parametrize("sizes", [[1] * 101, [40, 40, 21], [99, 2], [3, 0, 98]], ids=["1", "40", "99", "empty"])
def test_batches_of_any_size_give_the_result_of_one_big_batch(key: str, options: dict, sizes: list[int]) -> None:
    one, many = (losses.create(key, num_classes=7, **options) for _ in range(2))
    run_epochs(one, range(6))
    run_epochs(many, range(6), sizes)
    for (name, a), b in zip(one.named_buffers(), many.buffers(), strict=True):
        assert torch.equal(a, b), name


@every_adaptive
def test_dense_predictions_are_pixels(key: str, options: dict) -> None:
    rows, dense = (losses.create(key, num_classes=7, **options) for _ in range(2))
    for epoch in range(4):
        logits, target = validation(epoch, n=2 * 5 * 6)
        rows.observe(logits, target)
        dense.observe(logits.view(2, 5, 6, 7).movedim(-1, 1), target.view(2, 5, 6))
        rows.adapt()
        dense.adapt()
    for a, b in zip(rows.buffers(), dense.buffers(), strict=True):
        assert torch.equal(a, b)


@every_adaptive
def test_a_resumed_run_continues(key: str, options: dict, tmp_path: Path) -> None:
    whole, first, second = (losses.create(key, num_classes=7, **options) for _ in range(3))
    run_epochs(whole, range(12))
    run_epochs(first, range(5))
    torch.save(first.state_dict(), tmp_path / "loss.pt")
    second.load_state_dict(torch.load(tmp_path / "loss.pt", weights_only=True))
    run_epochs(second, range(5, 12))
    assert second.epoch == 12
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    logits, target = validation(99)
    assert torch.equal(whole(logits, target), second(logits, target))
    for name, path in whole.history().items():  # what was loaded, then one row for each further epoch
        assert torch.equal(path[5:], second.history()[name])


@every_adaptive
def test_training_resumed_in_the_middle_is_bit_equal(key: str, options: dict) -> None:
    """Train 4 epochs, or train 2, save, load, train 2: the same network and the same learned weights."""

    def build() -> tuple[nn.Module, AdaptiveLoss, torch.optim.Optimizer]:
        torch.manual_seed(3)
        model = nn.Linear(5, 4)
        return model, losses.create(key, num_classes=4, **options), torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)

    def train(state: tuple[nn.Module, AdaptiveLoss, torch.optim.Optimizer], epochs: range) -> None:
        model, loss, optimizer = state
        for epoch in epochs:
            random = torch.Generator().manual_seed(epoch)
            x, y = torch.randn(64, 5, generator=random), torch.randint(4, (64,), generator=random)
            for _ in range(5):
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()
            loss.observe(model(x), y)
            loss.adapt()

    whole, first, second = build(), build(), build()
    train(whole, range(4))
    train(first, range(2))
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    file.seek(0)
    for part, state in zip(second, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(second, range(2, 4))
    for a, b in zip(whole[:2], second[:2], strict=True):
        for name, value in a.state_dict().items():
            assert torch.equal(value, b.state_dict()[name]), name


@every_adaptive
def test_state_is_tensors_only(key: str, options: dict, tmp_path: Path) -> None:
    """So that it can be saved as safetensors, which cannot run code."""
    from safetensors.torch import load_file, save_file

    loss, other = (losses.create(key, num_classes=7, **options) for _ in range(2))
    run_epochs(loss, range(3))
    save_file(loss.state_dict(), tmp_path / "loss.safetensors")
    other.load_state_dict(load_file(tmp_path / "loss.safetensors"))
    for name, value in loss.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)


@every_adaptive
def test_history_is_the_path_of_what_is_learned(key: str, options: dict) -> None:
    loss = losses.create(key, num_classes=7, **options)
    start = {name: buffer.clone() for name, buffer in loss.named_buffers()}
    history = loss.history()
    assert set(history) == {"epoch", *loss.learned} == set(start)
    for name, path in history.items():
        assert torch.equal(path, start[name][None])
    run_epochs(loss, range(3))
    for name, path in loss.history().items():
        assert path.shape == (4, *start[name].shape)
        assert torch.equal(path[0], start[name])
        assert torch.equal(path[-1], getattr(loss, name))
    assert loss.history()["epoch"].tolist() == [0, 1, 2, 3]
    assert any(not torch.equal(loss.history()[name][0], loss.history()[name][-1]) for name in loss.learned)


@every_adaptive
def test_adapt_without_observation_says_what_to_do(key: str, options: dict) -> None:
    loss = losses.create(key, num_classes=7, **options)
    with pytest.raises(RuntimeError, match=r"adapt\(\).*call observe\(logits, target\)"):
        loss.adapt()
    run_epochs(loss, range(1))
    with pytest.raises(RuntimeError, match="observe"):
        loss.adapt()  # what was learned from is forgotten
    assert loss.epoch == 1


@every_adaptive
def test_observing_needs_no_graph_and_keeps_none(key: str, options: dict) -> None:
    loss = losses.create(key, num_classes=7, **options)
    logits, target = validation(0)
    logits.requires_grad_()
    loss.observe(logits, target)
    loss.adapt()
    assert not any(buffer.requires_grad for buffer in loss.buffers())
    assert not list(loss.parameters())  # nothing for an optimizer to decay or clip


@every_adaptive
def test_as_part_of_a_model_it_moves_and_saves_with_it(key: str, options: dict) -> None:
    model = nn.ModuleDict({"net": nn.Linear(3, 7), "loss": losses.create(key, num_classes=7, **options)})
    run_epochs(model["loss"], range(2))
    model.bfloat16()
    assert model["net"].weight.dtype == torch.bfloat16
    fresh = nn.ModuleDict({"net": nn.Linear(3, 7), "loss": losses.create(key, num_classes=7, **options)})
    fresh.load_state_dict(model.state_dict())
    for a, b in zip(model["loss"].buffers(), fresh["loss"].buffers(), strict=True):
        assert torch.equal(a, b)


@every_adaptive
def test_loading_forgets_what_was_observed_before(key: str, options: dict) -> None:
    fresh, used = (losses.create(key, num_classes=7, **options) for _ in range(2))
    saved = losses.create(key, num_classes=7, **options)
    run_epochs(saved, range(2))
    used.observe(*validation(77))
    for loss in (fresh, used):
        loss.load_state_dict(saved.state_dict())
        run_epochs(loss, range(2, 3))
    for name, value in fresh.state_dict().items():
        assert torch.equal(used.state_dict()[name], value), name


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@every_adaptive
def test_state_keeps_its_shape(key: str, options: dict, tmp_path: Path) -> None:
    """Distributed checkpoints load in place, and averaged models copy entry by entry: nothing in it may grow."""
    from torch.distributed import checkpoint

    loss, other = (losses.create(key, num_classes=7, **options) for _ in range(2))
    run_epochs(loss, range(3))
    shapes = {name: value.shape for name, value in other.state_dict().items()}
    assert {name: value.shape for name, value in loss.state_dict().items()} == shapes
    checkpoint.save({"loss": loss.state_dict()}, checkpoint_id=tmp_path, no_dist=True)
    state = {"loss": other.state_dict()}
    checkpoint.load(state, checkpoint_id=tmp_path, no_dist=True)
    other.load_state_dict(state["loss"])
    for name, value in loss.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)


@every_adaptive
def test_inference_mode_here_and_there(key: str, options: dict) -> None:
    mixed, plain = (losses.create(key, num_classes=7, **options) for _ in range(2))
    for epoch in range(3):
        logits, target = validation(epoch)
        for loss, here, there in ((plain, False, False), (mixed, epoch == 1, epoch == 0)):
            with torch.inference_mode(here):
                loss.observe(logits[:50], target[:50])
            loss.observe(logits[50:], target[50:])
            with torch.inference_mode(there):
                loss.adapt()
    assert torch.equal(mixed.state_dict()["epoch"], plain.epoch)
    for a, b in zip(mixed.buffers(), plain.buffers(), strict=True):
        assert torch.equal(a, b)
    logits, target = validation(9)
    loss = mixed(logits.requires_grad_(), target)
    loss.backward()


@every_adaptive
def test_built_under_another_default_type_or_device(key: str, options: dict) -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        loss = losses.create(key, num_classes=7, **options)
    finally:
        torch.set_default_dtype(torch.float32)
    expected = losses.create(key, num_classes=7, **options)
    with torch.device("meta"):
        empty = losses.create(key, num_classes=7, **options)
    empty.to_empty(device="cpu")
    empty.load_state_dict(expected.state_dict())
    for some in (loss, expected, empty):
        run_epochs(some, range(3))
    for other in (loss, empty):
        for (name, a), b in zip(other.named_buffers(), expected.buffers(), strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b), name


PROCESS = """
import sys
import torch
import torch.distributed as dist
from calibrant import losses
from test_adaptive import OPTIONS, validation

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
for key, variants in OPTIONS.items():
    for i, options in enumerate(variants):
        loss = losses.create(key, num_classes=7, **options)
        for epoch in range(6):
            logits, target = validation(epoch)
            cut = [70, 101, 0, 1, 50, 33][epoch]  # uneven; in epoch 1 and 2 one process has nothing at all
            part = slice(cut) if rank == 0 else slice(cut, None)
            if len(target[part]):
                loss.observe(logits[part], target[part])
            loss.adapt()
        torch.save(loss.state_dict(), f"{folder}/{key}-{i}-{rank}.pt")
try:
    losses.create("adafocal").adapt()
except RuntimeError as error:
    assert "observe" in str(error)
else:
    raise SystemExit("adapt() of two processes without data went through")
dist.destroy_process_group()
"""


def test_two_processes_learn_what_one_learns_from_all(tmp_path: Path) -> None:
    assert run_as_ranks(PROCESS, tmp_path) == [0, 0]
    for key, variants in OPTIONS.items():
        for i, options in enumerate(variants):
            alone = losses.create(key, num_classes=7, **options)
            run_epochs(alone, range(6))
            states = [torch.load(tmp_path / f"{key}-{i}-{rank}.pt", weights_only=True) for rank in range(2)]
            for name, value in alone.state_dict().items():
                assert torch.equal(states[0][name], states[1][name]), (key, name)
                torch.testing.assert_close(states[0][name], value, rtol=1e-6, atol=1e-12, msg=f"{key} {name}")


def test_alm_resumes_between_changes_of_rho() -> None:
    """The period is counted over the whole run, not from the restart."""
    loss = losses.CALSALM(3, margin=1.0, rho_period=4)
    grow = torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]])
    target = torch.tensor([0, 1])
    changes = []
    for epoch in range(8):
        loss.observe(grow, target)
        loss.adapt()
        changes.append(float(loss.rho.max()))
        if epoch == 2:
            state = loss.state_dict()
            loss = losses.CALSALM(3, margin=1.0, rho_period=4)
            loss.load_state_dict(state)
    assert changes == pytest.approx([1, 1, 1, 1.2, 1.2, 1.2, 1.2, 1.44])


def test_alm_rho_is_capped_and_can_be_fixed() -> None:
    violated = (torch.tensor([[50.0, 0.0]]), torch.tensor([0]))
    capped = losses.CALSALM(2, rho_period=1, rho_max=1.5)
    fixed = losses.CALSALM(2, rho_period=0)
    free = losses.CALSALM(2, rho_period=1, rho_max=None)
    for _ in range(20):
        for loss in (capped, fixed, free):
            loss.observe(*violated)
            loss.adapt()
    assert capped.rho.tolist() == [1.0, 1.5]
    assert fixed.rho.tolist() == [1.0, 1.0]
    assert float(free.rho[1]) == pytest.approx(1.2**19, rel=1e-5)


def test_adafocal_moving_average() -> None:
    """Appendix K: gamma^alpha exp((1 - alpha) E)."""
    logits, target = validation(3)
    average, plain = losses.AdaFocal(momentum=0.25), losses.AdaFocal()
    for epoch in range(3):
        before = average.gammas.clone()
        for loss in (average, plain):
            loss.observe(logits, target)
            loss.adapt()
        error = average.confidences - average.accuracies
        torch.testing.assert_close(average.gammas, before**0.25 * torch.exp(0.75 * error))
        torch.testing.assert_close(plain.gammas, torch.exp((epoch + 1) * error).clamp(max=20))


def test_adafocal_without_limit_stays_finite() -> None:
    """Wrong with full confidence, epoch after epoch: gamma grows by e each time, and the loss has to bear it."""
    loss = losses.AdaFocal(num_bins=2, gamma_max=float("inf"))
    logits = torch.tensor([[30.0, 0.0], [0.0, 30.0]]).requires_grad_()
    for _ in range(200):
        loss.observe(logits, torch.tensor([1, 0]))
        loss.adapt()
    value = loss(logits, torch.tensor([1, 0]))
    value.backward()
    assert value.isfinite()
    assert logits.grad.isfinite().all()
