"""Memory, which is the same on every machine; times are in benchmarks/."""

import pytest
import torch

import bench_losses as benchmark
from calibrant.losses import METHODS, create
from measuring import peak_memory


@pytest.mark.parametrize("shape", [(1024, 400), (2, 21, 128, 128)], ids=str)
@pytest.mark.parametrize("key", METHODS)
def test_peak_memory_is_at_most_what_the_table_says(key: str, shape: tuple[int, ...]) -> None:
    """Four times the logits, unless a method declares more in METHODS."""
    if METHODS[key].dense and len(shape) == 2:
        shape = (4, 20, 64, 80)
    logits = torch.randn(shape, requires_grad=True)
    target = torch.randint(shape[1], (shape[0], *shape[2:]))
    peak = peak_memory(benchmark.step(create(key, num_classes=shape[1]), logits, target)) / (4 * logits.numel())
    limit = METHODS[key].memory
    assert peak <= limit, f"a step takes {peak:.1f} times the memory of the logits; write memory={peak:.0f} into METHODS"


@pytest.mark.parametrize(("key", "options"), [("cals-alm", {"penalty": "p2"}), ("cals-alm", {"penalty": "p3"})])
def test_peak_memory_of_other_penalties(key: str, options: dict) -> None:
    logits = torch.randn(512, 400, requires_grad=True)
    step = benchmark.step(create(key, num_classes=400, **options), logits, torch.randint(400, (512,)))
    assert peak_memory(step) / (4 * logits.numel()) <= benchmark.MEMORY_LIMIT


def test_memory_of_mmce_is_linear_in_samples_and_of_cpc_in_classes() -> None:
    def peak(key: str, n: int, k: int) -> int:
        step = benchmark.step(create(key), torch.randn(n, k, requires_grad=True), torch.randint(k, (n,)))
        return peak_memory(step)

    assert peak("mmce", 40_000, 4) / peak("mmce", 10_000, 4) == pytest.approx(4, rel=0.05)
    assert peak("cpc", 8000, 80) / peak("cpc", 8000, 20) == pytest.approx(4, rel=0.2)


def test_cpc_of_few_samples_and_many_classes_is_bounded() -> None:
    """Not by a multiple of the logits, which are tiny here, but far below all pairs: 2 x 4000 x 4000 floats are 128 MB."""
    step = benchmark.step(create("cpc"), torch.randn(2, 4000, requires_grad=True), torch.randint(4000, (2,)))
    assert peak_memory(step) < 5e6


def test_memory_of_segmentation_at_the_papers_size() -> None:
    """CALS-ALM on crops of 512 with VOC's 21 classes, beside PyTorch's cross-entropy, which needs three times the logits."""
    logits = torch.randn(2, 21, 512, 512, requires_grad=True)
    target = torch.randint(21, (2, 512, 512))
    target[:, :60] = 255
    ours = peak_memory(benchmark.step(create("cals-alm", num_classes=21, ignore_index=255), logits, target))
    plain = peak_memory(benchmark.step(torch.nn.CrossEntropyLoss(ignore_index=255), logits, target))
    size = 4 * logits.numel()
    assert plain / size >= 2  # that memory is seen at all
    assert ours / size <= benchmark.MEMORY_LIMIT
    assert (ours - plain) / size <= 1
