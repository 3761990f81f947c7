"""Venn-Abers calibration."""

from itertools import combinations
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from calibrant.checks import one_of
from calibrant.posthoc.base import rows
from calibrant.posthoc.mixture import Mixed
from calibrant.posthoc.piecewise import padded, steps
from calibrant.tensors import Samples

Multiclass = Literal["one-vs-rest", "one-vs-one"]


class VennAbers(Mixed):
    r"""Inductive Venn-Abers prediction (Vovk, Petej and Fedorova, NeurIPS 2015).

    The sample to be calibrated is added to the calibration set twice, labelled 0 and labelled 1; isotonic regression then
    gives it the probabilities :math:`p_0 \le p_1`, one of which is calibrated whatever the data, and
    :math:`\frac{p_1}{1 - p_0 + p_1}` is what minimises the regret under log loss. Both are step functions of the score,
    computed once. It never gives a probability of 0 or 1.

    Args:
        multiclass: For more than two classes: ``"one-vs-rest"``, each class's probability on its own, normalised; or
            ``"one-vs-one"``, :math:`\frac{s_i}{s_i + s_j}` of each pair on the samples of those two classes, combined as
            :math:`p_k \propto 1 / (\sum_{j \ne k} \frac1{p_{kj}} - (K - 2))`.

    Example:
        >>> from calibrant.posthoc import VennAbers
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> calibrator = VennAbers().fit(logits, target)
        >>> round(calibrator.predict_proba([[4.0, 0.0]])[0][0], 2)
        0.7
    """

    key = "venn-abers"
    learned: ClassVar[tuple[str, ...]] = ("points_", "lower_", "upper_")
    points_: Tensor  # (maps, P): distinct scores, ascending
    lower_: Tensor  # (maps, P + 1): p0 below the first score, and from each score on
    upper_: Tensor  # (maps, P + 1): p1 up to each score, and beyond the last

    def __init__(self, *, multiclass: Multiclass = "one-vs-rest") -> None:
        super().__init__()
        self.multiclass: Multiclass = one_of("multiclass", multiclass, get_args(Multiclass))

    def _learn(self, samples: Samples) -> None:
        logits, target = rows(samples)
        scores = self._scores(logits.double()).cpu().numpy()  # (n, maps)
        labels, classes = target.cpu().numpy(), logits.shape[1]
        found = []
        for k, (first, second) in enumerate(self._pairs(classes)):
            kept = slice(None) if first is None else (labels == first) | (labels == second)
            found.append(_both(scores[kept, k], labels[kept] == second))
        if not all(len(points) for points, _, _ in found):
            raise ValueError("VennAbers with one-vs-one needs samples of every pair of classes; use one-vs-rest")
        parts = [padded([torch.from_numpy(part[i]) for part in found], shortest=1) for i in range(3)]
        self.points_, self.lower_, self.upper_ = (part.to(logits.device) for part in parts)

    def _pairs(self, classes: int) -> list[tuple[int | None, int]]:
        """What each map tells apart: a class from the rest, or the second class from the first."""
        if classes == 2:
            return [(None, 1)]
        if self.multiclass == "one-vs-rest":
            return [(None, k) for k in range(classes)]
        return list(combinations(range(classes), 2))

    def _scores(self, logits: Tensor) -> Tensor:
        """The score of each map, ``(..., maps)``."""
        classes = logits.shape[-1]
        if classes == 2 or self.multiclass == "one-vs-rest":
            return logits.softmax(dim=-1)[..., 1 if classes == 2 else 0 :]
        first, second = torch.combinations(torch.arange(classes, device=logits.device)).T
        return (logits[..., second] - logits[..., first]).sigmoid()

    def _bounds(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """p0 and p1 of each map, ``(..., maps)``."""
        scores = self._scores(logits.double())
        at = scores.reshape(-1, scores.shape[-1]).T.contiguous()
        lower = self.lower_.gather(1, torch.searchsorted(self.points_, at, right=True))
        upper = steps(at, self.points_, self.upper_)
        return lower.T.reshape(scores.shape), upper.T.reshape(scores.shape)

    def _log_probs(self, logits: Tensor) -> Tensor:
        classes = logits.shape[-1]
        lower, upper = self._bounds(logits)
        merged = upper / (1 - lower + upper)
        if classes == 2:
            probs = torch.cat([1 - merged, merged], dim=-1)
        elif self.multiclass == "one-vs-rest":
            probs = merged
        else:
            first, second = torch.combinations(torch.arange(classes, device=logits.device)).T
            inverse = merged.new_zeros(logits.shape)
            inverse = inverse.index_add(-1, second, 1 / merged).index_add(-1, first, 1 / (1 - merged))
            probs = 1 / (inverse - (classes - 2))
        return (probs / probs.sum(dim=-1, keepdim=True)).log().to(logits.dtype)


def _both(scores: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct scores, and the steps of p0 and p1."""
    points, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    right = np.bincount(place, weights=own, minlength=len(points))
    upper = _raised(counts.astype(float), right)
    # Label 0 is label 1 with scores and labels turned round.
    lower = 1 - _raised(counts[::-1].astype(float), (counts - right)[::-1])[::-1]
    return points, np.append(0.0, lower), np.append(upper, 1.0)


def _raised(counts: np.ndarray, right: np.ndarray) -> np.ndarray:
    r"""The isotonic fit at each distinct score if one more sample there has label 1.

    The fit is the slope of the greatest convex minorant of the points :math:`P_i = (\sum_{j \le i} n_j, \sum_{j \le i}
    m_j)`. A new sample at score i moves all points before it by (-1, -1). From score to score, one more point is moved, and
    can only take the place of those to its left; the minorant is kept on a stack (Vovk et al., Algorithms 1 and 2).
    """
    points = list(zip(counts.cumsum().tolist(), right.cumsum().tolist(), strict=True))
    stack: list[tuple[float, float]] = []
    for point in reversed([(-1.0, -1.0), (0.0, 0.0), *points]):
        while len(stack) > 1 and _turn(point, stack[-1], stack[-2]) <= 0:
            stack.pop()
        stack.append(point)
    found = []
    for x, y in points:
        (x0, y0), (x1, y1) = stack[-1], stack[-2]
        found.append((y1 - y0) / (x1 - x0))
        moved = (x - 1, y - 1)
        if _turn(stack[-1], stack[-2], moved) >= 0:  # on or above the line: it changes nothing
            continue
        stack.pop()
        while len(stack) > 1 and _turn(moved, stack[-1], stack[-2]) <= 0:
            stack.pop()
        stack.append(moved)
    return np.array(found)


def _turn(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    """Positive if c lies to the left of the line from a to b."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
