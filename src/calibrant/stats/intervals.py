"""Confidence intervals, and those with a closed form."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from calibrant.inputs import as_tensor, like

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class Interval:
    """A measure with its confidence interval.

    Attributes:
        value: The measure itself.
        low: Lower end.
        high: Upper end.
        level: Confidence level.
        resamples: Number of resamples, 0 if there were none.
        method: How the interval was computed.

    Example:
        >>> from calibrant.stats import Interval
        >>> interval = Interval(0.1612, 0.142, 0.1805)
        >>> interval
        0.161 [0.142, 0.180]
        >>> value, low, high = interval
    """

    value: float
    low: float
    high: float
    level: float = 0.95
    resamples: int = 0
    method: str = ""

    def __repr__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def __iter__(self) -> Iterator[float]:
        """Value, lower and upper end."""
        return iter((self.value, self.low, self.high))

    def to_dict(self) -> dict[str, Any]:
        """As plain Python types."""
        return asdict(self)


def normal_quantile(level: float) -> float:
    """The z for which a normal variable lies in [-z, z] with probability ``level``."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))


def wilson(successes: T, trials: T, *, level: float = 0.95) -> tuple[T, T]:
    r"""Wilson's score interval of a probability from counts, for each entry; [0, 1] where there are no trials.

    With :math:`\hat p = k / n` and z the normal quantile: :math:`\big(\hat p + \frac{z^2}{2n} \pm
    z \sqrt{\frac{\hat p (1 - \hat p)}{n} + \frac{z^2}{4 n^2}}\big) / (1 + \frac{z^2}{n})`.

    Example:
        >>> from calibrant.stats import wilson
        >>> low, high = wilson(6, 8)
        >>> round(low, 4), round(high, 4)
        (0.4093, 0.9285)
    """
    z = normal_quantile(level)
    counts = as_tensor(trials, "trials").double()  # type: ignore[arg-type]
    n = counts.clamp(min=1)
    p = as_tensor(successes, "successes").double() / n  # type: ignore[arg-type]
    centre = p + z**2 / (2 * n)
    spread = z * (p * (1 - p) / n + z**2 / (4 * n**2)).sqrt()
    low, high = ((centre + sign * spread) / (1 + z**2 / n) for sign in (-1, 1))
    ends = low.clamp(0, 1).masked_fill(counts == 0, 0.0), high.clamp(0, 1).masked_fill(counts == 0, 1.0)
    return like(ends[0], trials), like(ends[1], trials)


def around(value: float, draws: np.ndarray, level: float) -> tuple[float, float]:
    """The basic bootstrap interval, corrected for the bias of the resampled values."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    mean = draws.mean()
    return float(value - (high - mean)), float(value + (mean - low))
