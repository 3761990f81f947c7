"""Maps of probabilities that are given by their values at points: step functions and piecewise linear ones."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.posthoc.base import rows
from calibrant.posthoc.mixture import Mixed
from calibrant.tensors import Samples


class ClassMaps(Mixed):
    """A map of each class's probability, one class against the rest; for two classes, of the second one's only.

    The results are normalised, and no probability is below 1 / (n + 2): n samples cannot distinguish a smaller one from 0.
    """

    learned: ClassVar[tuple[str, ...]] = ("points_", "values_", "floor_")
    points_: Tensor  # (maps, P), ascending; a map with fewer points repeats the last
    values_: Tensor
    floor_: Tensor

    def _learn(self, samples: Samples) -> None:
        logits, target = rows(samples)
        probs = logits.double().softmax(dim=1)
        maps = number_of_maps(logits.shape[1])
        classes = range(logits.shape[1] - maps, logits.shape[1])
        found = [self._fit_map(probs[:, k].contiguous(), target == k) for k in classes]
        self.points_ = padded([points for points, _ in found])
        self.values_ = padded([values for _, values in found])
        self.floor_ = torch.tensor(1 / (len(target) + 2), dtype=torch.float64, device=logits.device)

    @abstractmethod
    def _fit_map(self, probs: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Points and values of one map, from probabilities ``(n,)`` and whether each sample is of the class."""

    @abstractmethod
    def _evaluate(self, probs: Tensor) -> Tensor:
        """Map probabilities ``(maps, n)``."""

    def _log_probs(self, logits: Tensor) -> Tensor:
        maps = self.points_.shape[0]
        probs = logits.double().softmax(dim=-1)[..., -maps:]
        mapped = self._evaluate(probs.reshape(-1, maps).T.contiguous()).T.reshape(probs.shape)
        mapped = mapped.clamp(min=self.floor_)
        if maps == 1:
            mapped = mapped.minimum(1 - self.floor_)
            mapped = torch.cat([1 - mapped, mapped], dim=-1)
        return (mapped.log() - mapped.sum(dim=-1, keepdim=True).log()).to(logits.dtype)


def number_of_maps(classes: int) -> int:
    """Two classes share one map, as their probabilities add up to 1."""
    return 1 if classes == 2 else classes


def steps(at: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Evaluate step functions, one per row: ``values[0]`` up to and including ``edges[0]``, and so on.

    Args:
        at: ``(maps, n)``.
        edges: ``(maps, E)``, ascending.
        values: ``(maps, E + 1)``.
    """
    return values.gather(1, torch.searchsorted(edges, at))


def lines(at: Tensor, points: Tensor, values: Tensor) -> Tensor:
    """Evaluate piecewise linear functions, one per row, that are constant beyond their first and last points.

    Args:
        at: ``(maps, n)``.
        points: ``(maps, P)``, ascending.
        values: ``(maps, P)``.
    """
    right = torch.searchsorted(points, at).clamp(1, points.shape[1] - 1)
    x0, x1, y0, y1 = (
        points.gather(1, right - 1),
        points.gather(1, right),
        values.gather(1, right - 1),
        values.gather(1, right),
    )
    width = x1 - x0
    share = torch.where(width > 0, (at - x0) / width.where(width > 0, 1), 1.0).clamp(0, 1)
    return y0 + share * (y1 - y0)


def padded(vectors: list[Tensor], shortest: int = 2) -> Tensor:
    """Vectors of different lengths as rows of at least the ``shortest`` length, the last value of each repeated."""
    longest = max(shortest, *(len(vector) for vector in vectors))
    return torch.stack([torch.cat([vector, vector[-1:].expand(longest - len(vector))]) for vector in vectors])
