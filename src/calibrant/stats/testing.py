from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.metrics import calibration
from calibrant.metrics import cells as on_cells
from calibrant.metrics.cells import Cells
from calibrant.metrics.ood import Score, placements, uncertainty
from calibrant.stats.resampling import CELLS, Interval
from calibrant.validation import whole


@dataclass(frozen=True)
class CalibrationTest:
    """Result of a test of perfect calibration.

    Attributes:
        p_value: Probability that a perfectly calibrated network shows at least the measured error.
        statistic: The measured error, squared and debiased.
        num_bins: Bins of equal mass.
        resamples: Number of simulated sets of labels.
    """

    p_value: float
    statistic: float
    num_bins: int
    resamples: int

    def to_dict(self) -> dict[str, Any]:
        """In plain Python types."""
        return asdict(self)


def calibration_test(
    logits: Tensor,
    target: Tensor,
    *,
    num_bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    ignore_index: int = -100,
) -> CalibrationTest:
    """Test whether the predictions could be perfectly calibrated, by consistency resampling.

    If they are, each is right with the probability that its confidence says. Outcomes are drawn anew accordingly, many
    times, and the p-value is the share of these draws whose calibration error (the debiased L2 one) is at least the
    measured one. Samples are taken to be independent; pixels of one image are not, so that the test of a segmentation
    rejects too easily.

    Args:
        logits: ``(N, K)`` or ``(N, K, *spatial)``.
        target: Labels, ``(N,)`` or ``(N, *spatial)``.
        num_bins: Bins of equal mass.
        resamples: Number of simulated sets of labels.
        seed: Makes it repeatable.
        ignore_index: Label of samples or pixels to leave out.
    """
    cells = calibration.ordered(logits, target, ignore_index)
    return consistency_test(cells, num_bins=num_bins, resamples=resamples, seed=seed)


def consistency_test(cells: Cells, *, num_bins: int = 15, resamples: int = 1000, seed: int = 0) -> CalibrationTest:
    """The same test of outcomes in order of confidence."""
    whole("num_bins", num_bins, 1)
    whole("resamples", resamples, 1)
    cells = on_cells.merged(Cells(*(x.cpu() for x in cells)), CELLS)

    def error(some: Cells) -> Tensor:
        return on_cells.debiased_error(on_cells.bins_of_equal_mass(some, num_bins, split=True), norm=2)

    counts = cells.counts.numpy().round().astype(np.int64)
    random = np.random.default_rng(seed)
    right = random.binomial(counts, cells.confidence.clamp(0, 1).numpy(), size=(resamples, len(counts)))
    drawn = error(Cells(cells.confidence, cells.counts.expand(resamples, -1), torch.from_numpy(right).double()))
    statistic = error(cells)
    at_least = int((drawn >= statistic - 1e-15).sum())
    return CalibrationTest((1 + at_least) / (1 + resamples), float(statistic), num_bins, resamples)


def wilson(successes: Tensor, trials: Tensor, level: float = 0.95) -> tuple[Tensor, Tensor]:
    r"""Wilson's score interval of a probability from counts, for each entry; [0, 1] where there are no trials.

    With :math:`\hat p = k / n` and z the normal quantile: :math:`\big(\hat p + \frac{z^2}{2n} \pm
    z \sqrt{\frac{\hat p (1 - \hat p)}{n} + \frac{z^2}{4 n^2}}\big) / (1 + \frac{z^2}{n})`.
    """
    z = 2**0.5 * torch.erfinv(torch.tensor(level, dtype=torch.float64))
    n = trials.double().clamp(min=1)
    p = successes.double() / n
    centre = p + z**2 / (2 * n)
    spread = z * (p * (1 - p) / n + z**2 / (4 * n**2)).sqrt()
    low, high = ((centre + sign * spread) / (1 + z**2 / n) for sign in (-1, 1))
    nothing = trials == 0
    return low.clamp(0, 1).masked_fill(nothing, 0.0), high.clamp(0, 1).masked_fill(nothing, 1.0)


def auroc_interval(in_logits: Tensor, out_logits: Tensor, score: Score = "entropy", *, level: float = 0.95) -> Interval:
    r"""Interval of :func:`calibrant.metrics.ood_auroc`, from the variance of DeLong et al. (Biometrics 1988).

    With :math:`u_j` the share of known samples that the unknown sample j exceeds and :math:`k_i` that of unknown samples
    that exceed the known sample i, ties counting half, the variance of the area is :math:`s_u^2 / n_u + s_k^2 / n_k`.
    """
    known, unknown = (uncertainty(logits, score, name) for logits, name in ((in_logits, "in"), (out_logits, "out")))
    exceeded, exceeding = placements(unknown, known) / len(known), 1 - placements(known, unknown) / len(unknown)
    area = float(exceeded.mean())
    variance = sum(float(part.var()) / len(part) if len(part) > 1 else 0.25 for part in (exceeded, exceeding))
    half = 2**0.5 * float(torch.erfinv(torch.tensor(level, dtype=torch.float64))) * variance**0.5
    return Interval(area, max(0.0, area - half), min(1.0, area + half), level, 0, "DeLong")
