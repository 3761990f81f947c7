"""Platt scaling."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from calibrant.posthoc.base import rows
from calibrant.posthoc.linear import minimise
from calibrant.posthoc.mixture import Mixed
from calibrant.posthoc.piecewise import number_of_maps
from calibrant.tensors import Samples


class PlattScaling(Mixed):
    r"""A sigmoid of the log-odds: :math:`\sigma(a\, o + b)`, :math:`o = \log \frac{s}{1 - s}` (Platt, 1999).

    With two classes it maps the probability of the second; with more, one sigmoid per class (one-vs-rest), then normalised.
    The labels are Platt's: :math:`\frac{n_+ + 1}{n_+ + 2}` and :math:`\frac{1}{n_- + 2}` instead of 1 and 0, which keeps
    a and b finite.

    Example:
        >>> from calibrant.posthoc import PlattScaling
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> calibrator = PlattScaling().fit(logits, target)
        >>> round(calibrator.predict_proba([[4.0, 0.0]])[0][0], 2)
        0.72
    """

    key = "platt"
    learned: ClassVar[tuple[str, ...]] = ("slope_", "intercept_")
    slope_: Tensor
    intercept_: Tensor

    def _learn(self, samples: Samples) -> None:
        logits, target = rows(samples)
        maps = number_of_maps(logits.shape[1])
        members = torch.bincount(target, minlength=logits.shape[1])[-maps:].double()
        positive, negative = (members + 1) / (members + 2), 1 / (len(target) - members + 2)

        def loss(scores: Tensor, labels: Tensor) -> Tensor:
            own = functional.one_hot(labels, logits.shape[1])[:, -maps:].bool()
            wanted = torch.where(own, positive, negative)
            return functional.binary_cross_entropy_with_logits(scores, wanted, reduction="sum")

        self.slope_, self.intercept_ = minimise(
            [torch.ones_like(members), torch.zeros_like(members)],
            lambda part, a, b: log_odds(part) * a + b,
            None,
            logits,
            target,
            loss,
        )

    def _log_probs(self, logits: Tensor) -> Tensor:
        scores = log_odds(logits) * self.slope_.to(logits.dtype) + self.intercept_.to(logits.dtype)
        if logits.shape[-1] == 2:
            return log_of_two(scores)
        return functional.logsigmoid(scores).log_softmax(dim=-1)


def log_of_two(scores: Tensor) -> Tensor:
    """Log-probabilities of both classes from the log-odds of the second, ``(..., 1)``."""
    return torch.cat([functional.logsigmoid(-scores), functional.logsigmoid(scores)], dim=-1)


def log_odds(logits: Tensor) -> Tensor:
    """Log-odds log(s / (1 - s)) of every class, or of the second of two."""
    if logits.shape[-1] == 2:
        return logits[..., 1:] - logits[..., :1]
    inside, outside = log_both(logits)
    return inside - outside


def log_both(logits: Tensor) -> tuple[Tensor, Tensor]:
    """log(s) and log(1 - s) of every class, or of the second of two."""
    if logits.shape[-1] == 2:
        odds = logits[..., 1:] - logits[..., :1]
        return functional.logsigmoid(odds), functional.logsigmoid(-odds)
    log_probs = logits.log_softmax(dim=-1)
    # 1 - s of the largest class is summed over the others, so that it does not round to 0.
    top = log_probs.argmax(dim=-1, keepdim=True)
    others = log_probs.scatter(-1, top, -torch.inf).logsumexp(dim=-1, keepdim=True)
    rest = torch.log1p(-log_probs.exp().clamp(max=0.75)).scatter(-1, top, others)
    return log_probs, rest
