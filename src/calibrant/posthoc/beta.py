"""Beta calibration."""

import math
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from calibrant.checks import one_of
from calibrant.posthoc.base import rows
from calibrant.posthoc.linear import minimise
from calibrant.posthoc.mixture import Mixed
from calibrant.posthoc.piecewise import number_of_maps
from calibrant.posthoc.platt import log_both, log_of_two
from calibrant.tensors import Samples

#: Which parameters are free: a, b and the constant c (through m, where the map gives one half).
Form = Literal["abm", "ab", "am", "a"]


class BetaCalibration(Mixed):
    r"""A sigmoid of two logarithms: :math:`\sigma(a \log s - b \log(1 - s) + c)` (Kull et al., AISTATS 2017).

    Unlike Platt scaling, which has a = b, it can correct a network that is overconfident on one side and
    underconfident on the other, and with a = b = 1, c = 0 it changes nothing. With two classes it maps the probability
    of the second; with more, one map per class (one-vs-rest), then normalised. A negative a, else a negative b, is set to 0
    and the rest refitted, so that the map does not decrease.

    Args:
        form: ``"abm"``, all three; ``"ab"``, with one half mapped to itself, :math:`c = (a - b) \log 2`; ``"am"``, with
            a = b; ``"a"``, both.

    Example:
        >>> from calibrant.posthoc import BetaCalibration
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> calibrator = BetaCalibration().fit(logits, target)
        >>> round(calibrator.predict_proba([[4.0, 0.0]])[0][0], 2)
        0.75
    """

    key = "beta"
    learned: ClassVar[tuple[str, ...]] = ("slopes_", "intercept_")
    slopes_: Tensor  # (2, maps): a and b
    intercept_: Tensor

    def __init__(self, *, form: Form = "abm") -> None:
        super().__init__()
        self.form: Form = one_of("form", form, get_args(Form))

    def _learn(self, samples: Samples) -> None:
        logits, target = rows(samples)
        maps = number_of_maps(logits.shape[1])
        free = torch.ones(2, maps, dtype=torch.float64, device=logits.device)
        self.slopes_, self.intercept_ = self._fitted(logits, target, free)
        if self.form != "abm":
            return
        negative = self.slopes_ < 0
        negative[1] &= ~negative[0]
        if bool(negative.any()):
            self.slopes_, self.intercept_ = self._fitted(logits, target, free.masked_fill(negative, 0))
            self.slopes_ = self.slopes_.clamp(min=0)

    def _fitted(self, logits: Tensor, target: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
        classes, maps = logits.shape[1], free.shape[1]

        def parameters(slopes: Tensor, constant: Tensor) -> tuple[Tensor, Tensor]:
            slopes = slopes[:1].expand(2, -1) if "b" not in self.form else slopes * free
            fixed = (slopes[0] - slopes[1]) * math.log(2)
            return slopes, constant if "m" in self.form else fixed

        def loss(scores: Tensor, labels: Tensor) -> Tensor:
            own = functional.one_hot(labels, classes)[:, -maps:].to(scores.dtype)
            return functional.binary_cross_entropy_with_logits(scores, own, reduction="sum")

        def penalty(slopes: Tensor, constant: Tensor) -> Tensor:  # the authors': next to nothing, but separable data end
            return 5e-12 / len(logits) * (slopes.square().sum() + constant.square().sum())

        start = [torch.ones_like(free), torch.zeros_like(free[0])]
        found = minimise(start, lambda part, *x: _scores(part, *parameters(*x)), penalty, logits, target, loss)
        return parameters(*found)

    def _log_probs(self, logits: Tensor) -> Tensor:
        scores = _scores(logits, self.slopes_.to(logits.dtype), self.intercept_.to(logits.dtype))
        return log_of_two(scores) if logits.shape[-1] == 2 else functional.logsigmoid(scores).log_softmax(dim=-1)


def _scores(logits: Tensor, slopes: Tensor, intercept: Tensor) -> Tensor:
    inside, outside = log_both(logits)
    return slopes[0] * inside - slopes[1] * outside + intercept
