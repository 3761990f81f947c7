"""Formulas over outcomes in order of confidence, against loops over single samples."""

import itertools
from bisect import bisect_left
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings, strategies as st

from calibrant.metrics.estimators import SortedOutcomes, merge_neighbours, smooth_error, sort_outcomes, sweep
from calibrant.outcomes import Outcomes

#: Confidence in twentieths, samples and correct ones among them.
entries = st.lists(
    st.tuples(st.integers(1, 20), st.integers(1, 40), st.floats(0, 1)),
    min_size=1,
    max_size=4,
    unique_by=lambda entry: entry[0],
)


def outcomes_of(rows: list[tuple[int, int, int]]) -> SortedOutcomes:
    confidence, counts, correct = zip(*sorted(rows), strict=True)
    parts = [[c / 20 for c in confidence], counts, correct]
    return SortedOutcomes(*(torch.tensor(part, dtype=torch.float64) for part in parts))


def sweep_by_loops(ordered: SortedOutcomes, binning: str, norm: int) -> tuple[float, int]:
    """Sample by sample: of those of equal confidence, each is correct by the share of all that are."""
    rows = zip(*(part.tolist() for part in ordered), strict=True)
    samples = [(c, Fraction(int(right), int(n))) for c, n, right in rows for _ in range(int(n))]
    size = len(samples)

    def split(number: int) -> list[list[tuple[float, Fraction]]]:
        bins: list[list[tuple[float, Fraction]]] = [[] for _ in range(number)]
        edges = [k / number for k in range(1, number)]
        for rank, (c, a) in enumerate(samples):
            bins[bisect_left(edges, c) if binning == "width" else rank * number // size].append((c, a))
        return [own for own in bins if own]

    chosen = 1
    for number in range(2, size):
        accuracies = [sum(a for _, a in own) / len(own) for own in split(number)]
        if any(low > high for low, high in itertools.pairwise(accuracies)):
            break
        chosen = number
    gaps = [
        (len(own), sum(c for c, _ in own) / len(own) - float(sum(a for _, a in own) / len(own))) for own in split(chosen)
    ]
    return sum(n / size * abs(gap) ** norm for n, gap in gaps) ** (1 / norm), chosen


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("binning", ["mass", "width"])
@settings(max_examples=40, deadline=None)
@given(rows=entries, ascending=st.booleans())
def test_sweep_of_many_equal_confidences(
    binning: str, norm: int, rows: list[tuple[int, int, float]], ascending: bool
) -> None:
    """If the entries' accuracies ascend, there are N - 1 bins: many more than entries."""
    shares = [share for _, _, share in rows]
    order = sorted(rows)
    if ascending:
        order = [(c, n, share) for (c, n, _), share in zip(order, sorted(shares), strict=True)]
    ordered = outcomes_of([(c, n, int(share * n)) for c, n, share in order])
    value, number = sweep(ordered, binning=binning, norm=norm)
    expected, chosen = sweep_by_loops(ordered, binning, norm)
    assert int(number) == chosen
    assert float(value) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("binning", ["mass", "width"])
def test_sweep_with_more_bins_than_entries(binning: str, norm: int) -> None:
    ordered = outcomes_of([(7, 61, 5), (13, 97, 40), (14, 1, 1), (19, 83, 83)])
    value, number = sweep(ordered, binning=binning, norm=norm)
    assert int(number) == 61 + 97 + 1 + 83 - 1
    assert (float(value), int(number)) == pytest.approx(sweep_by_loops(ordered, binning, norm), abs=1e-12)


@pytest.mark.parametrize("binning", ["mass", "width"])
def test_sweep_of_resamples_is_that_of_each(binning: str) -> None:
    """Different totals, entries that were not drawn, few bins and many."""
    rows = [
        [(7, 60, 5), (13, 90, 40), (19, 80, 80)],
        [(7, 0, 0), (13, 50, 20), (19, 30, 11)],
        [(7, 9, 9), (13, 7, 1), (19, 0, 0)],
    ]
    several = [outcomes_of(own) for own in rows]
    together = SortedOutcomes(several[0].confidence, *(torch.stack(parts) for parts in list(zip(*several, strict=True))[1:]))
    values, numbers = sweep(together, binning=binning)
    for own, value, number in zip(rows, values.tolist(), numbers.tolist(), strict=True):
        expected = sweep_by_loops(outcomes_of([row for row in own if row[1]]), binning, 1)
        assert (value, number) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("binning", ["mass", "width"])
def test_sweep_of_a_billion_samples_in_three_entries(binning: str) -> None:
    """One bin after the other would take 8 GB; all but two of them lie within an entry."""
    ordered = outcomes_of([(7, 3 * 10**8, 10**8), (13, 4 * 10**8, 2 * 10**8), (19, 3 * 10**8, 3 * 10**8)])
    value, number = sweep(ordered, binning=binning)
    assert int(number) == 10**9 - 1
    assert float(value) == pytest.approx(0.3 * (0.35 - 1 / 3) + 0.4 * (0.65 - 0.5) + 0.3 * (1 - 0.95), abs=1e-8)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=60))
def test_sorted_outcomes_by_a_loop(samples: list[tuple[int, bool]]) -> None:
    found = sort_outcomes(Outcomes(torch.tensor([c / 8 for c, _ in samples]), torch.tensor([right for _, right in samples])))
    groups = [[right for other, right in samples if other == c] for c in sorted({c for c, _ in samples})]
    assert found.confidence.tolist() == sorted({c / 8 for c, _ in samples})
    assert found.counts.tolist() == [len(group) for group in groups]
    assert found.correct.tolist() == [sum(group) for group in groups]
    assert found.total == len(samples)


@pytest.mark.parametrize("most", [1, 7, 64, 1000])
def test_neighbours_are_merged_and_nothing_is_lost(most: int) -> None:
    confidence = torch.rand(500, dtype=torch.float64)
    ordered = sort_outcomes(Outcomes(confidence, torch.rand(500) < confidence))
    merged = merge_neighbours(ordered, most)
    assert len(merged.confidence) == min(most, 500)
    assert (merged.confidence.diff() > 0).all()
    assert merged.counts.max() <= -(-500 // most)
    for weight in ("counts", "correct"):
        assert getattr(merged, weight).sum() == getattr(ordered, weight).sum()
    assert float(merged.counts @ merged.confidence) == pytest.approx(float(confidence.sum()))


def test_smooth_error_of_resamples_is_that_of_each() -> None:
    """Some meet their width early, some late, one at once."""
    confidence = torch.rand(50, dtype=torch.float64).sort().values
    counts = torch.randint(0, 100, (6, 50)).double()
    correct = torch.stack(
        [counts[0] * confidence, *torch.binomial(counts[1:], (confidence - 0.1).clamp(min=0).expand(5, -1))]
    )
    together = smooth_error(SortedOutcomes(confidence, counts, correct))
    alone = [float(smooth_error(SortedOutcomes(confidence, *row))) for row in zip(counts, correct, strict=True)]
    assert together.tolist() == pytest.approx(alone, abs=1e-8)
    assert alone[0] == pytest.approx(0, abs=1e-8)
