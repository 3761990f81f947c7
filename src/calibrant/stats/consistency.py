"""A test of perfect calibration."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calibrant.checks import whole
from calibrant.inputs import Array, Given, shown
from calibrant.metrics import calibration
from calibrant.metrics.estimators import SortedOutcomes, debiased_bins, debiased_estimate, merge_neighbours
from calibrant.stats.resampling import ENTRIES

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class CalibrationTest:
    """Result of a test of perfect calibration.

    Attributes:
        p_value: Probability that a perfectly calibrated network shows at least the measured error.
        statistic: The measured error, squared and debiased.
        num_bins: Bins of equal mass.
        resamples: Number of simulated sets of labels.

    Example:
        >>> from calibrant.stats import calibration_test
        >>> test = calibration_test([[4.0, 0.0]] * 80, [0] * 78 + [1] * 2)  # 98% confident, 98% correct
        >>> test.p_value > 0.05, test.num_bins, test.resamples
        (True, 15, 1000)
    """

    p_value: float
    statistic: float
    num_bins: int
    resamples: int

    def to_dict(self) -> dict[str, Any]:
        """As plain Python types."""
        return asdict(self)


@shown
def calibration_test(
    logits: Array,
    target: Array,
    *,
    num_bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    **given: "Unpack[Given]",
) -> CalibrationTest:
    """Test whether the predictions could be perfectly calibrated, by consistency resampling.

    If they are, each is correct with a probability equal to its confidence. Outcomes are redrawn accordingly, many times,
    and the p-value is the fraction of draws whose calibration error (debiased, L2) is at least the measured one. Samples
    are assumed to be independent; the pixels of an image are not, so for segmentation the test rejects too often.

    Args:
        logits: ``(N, K)`` or ``(N, K, *spatial)``.
        target: Labels, ``(N,)`` or ``(N, *spatial)``.
        num_bins: Bins of equal mass.
        resamples: Number of simulated sets of labels.
        seed: Seed of the simulation.
        **given: ``ignore_index``, ``probs`` and ``task``; see :class:`calibrant.inputs.Given`.

    Example:
        >>> from calibrant.stats import calibration_test
        >>> logits, target = [[4.0, 0.0]] * 80, [0] * 60 + [1] * 20
        >>> round(calibration_test(logits, target).p_value, 3)
        0.001
    """
    ordered = calibration.ordered(logits, target, **given)
    return consistency_test(ordered, num_bins=num_bins, resamples=resamples, seed=seed)


def consistency_test(
    ordered: SortedOutcomes, *, num_bins: int = 15, resamples: int = 1000, seed: int = 0
) -> CalibrationTest:
    """The same test on outcomes sorted by confidence."""
    whole("num_bins", num_bins, 1)
    whole("resamples", resamples, 1)
    ordered = merge_neighbours(ordered.cpu(), ENTRIES)

    def error(some: SortedOutcomes) -> Tensor:
        return debiased_estimate(debiased_bins(some, num_bins=num_bins), norm=2)

    counts = ordered.counts.numpy().round().astype(np.int64)
    random = np.random.default_rng(seed)
    right = random.binomial(counts, ordered.confidence.clamp(0, 1).numpy(), size=(resamples, len(counts)))
    drawn = error(ordered._replace(counts=ordered.counts.expand(resamples, -1), correct=torch.from_numpy(right).double()))
    statistic = error(ordered)
    at_least = int((drawn >= statistic - 1e-15).sum())
    return CalibrationTest((1 + at_least) / (1 + resamples), float(statistic), num_bins, resamples)
