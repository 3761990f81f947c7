import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from calibrant.binning import bin_index, bin_statistics, equal_mass_edges, equal_width_edges

confidences = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=60)


def test_edges_belong_to_the_bin_below() -> None:
    edges = equal_width_edges(4)
    assert edges.tolist() == [0.25, 0.5, 0.75]
    assert edges.dtype == torch.float64
    values = torch.tensor([0.0, 0.25, 0.25 + 1e-12, 0.5, 0.75, 1.0, np.nextafter(0.5, 1)], dtype=torch.float64)
    assert bin_index(values, edges).tolist() == [0, 0, 1, 1, 2, 3, 2]


def test_one_bin_holds_everything() -> None:
    assert bin_index(torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64), equal_width_edges(1)).tolist() == [0, 0, 0]
    assert equal_mass_edges(torch.rand(5), 1).shape == (0,)


@given(values=confidences, num_bins=st.integers(1, 20), seed=st.integers(0, 100))
def test_statistics_are_those_of_a_loop(values: list[float], num_bins: int, seed: int) -> None:
    confidence = torch.tensor(values, dtype=torch.float64)
    correct = torch.rand(len(values), generator=torch.Generator().manual_seed(seed)) < 0.5
    statistics = bin_statistics(confidence, correct, equal_width_edges(num_bins))
    counts, sums, right = [0] * num_bins, [0.0] * num_bins, [0] * num_bins
    for c, a in zip(values, correct.tolist(), strict=True):
        index = next(i for i in range(num_bins) if c <= (i + 1) / num_bins or i == num_bins - 1)
        counts[index] += 1
        sums[index] += c
        right[index] += a
    assert statistics.counts.tolist() == counts
    assert statistics.correct.tolist() == right
    assert statistics.confidence.tolist() == pytest.approx(sums)
    assert statistics.counts.dtype == statistics.correct.dtype == torch.int64
    assert statistics.confidence.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(values=confidences, num_bins=st.integers(2, 20))
def test_equal_mass_edges_are_those_of_numpy(dtype: torch.dtype, values: list[float], num_bins: int) -> None:
    ordered, n = sorted(values), len(values)
    expected = np.interp(np.linspace(0, n, num_bins + 1), np.arange(n), ordered)[1:-1]
    edges = equal_mass_edges(torch.tensor(values, dtype=dtype), num_bins)
    assert edges.tolist() == pytest.approx(expected.tolist(), rel=1e-12, abs=1e-12)


def test_equal_mass_bins_hold_equally_many() -> None:
    confidence = torch.rand(3000)
    statistics = bin_statistics(confidence, confidence > 0.5, equal_mass_edges(confidence, 15).float())
    assert statistics.counts.sum() == 3000
    assert (statistics.counts - 200).abs().max() <= 1


def test_statistics_of_nothing_can_be_added_to_others() -> None:
    nothing = bin_statistics(torch.zeros(0), torch.zeros(0, dtype=torch.bool), equal_width_edges(3).float())
    assert [part.dtype for part in nothing] == [torch.int64, torch.float64, torch.int64]
    assert [part.tolist() for part in nothing] == [[0, 0, 0]] * 3
    assert [part.tolist() for part in nothing.means()] == [[0, 0, 0]] * 2


def test_counts_beyond_what_float32_can_count() -> None:
    """2^24 + 2 equal confidences: float32 sums would stop at 2^24."""
    n = 2**24 + 2
    statistics = bin_statistics(torch.full((n,), 0.9), torch.ones(n, dtype=torch.bool), equal_width_edges(10).float())
    assert statistics.counts.sum() == n
    assert float(statistics.confidence.sum()) == pytest.approx(n * float(np.float32(0.9)), rel=1e-12)
