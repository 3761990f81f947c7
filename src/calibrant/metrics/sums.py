"""Sums over batches and processes: integer counts and float64 sums, so that states merge by addition.

Counts stay exact for billions of pixels, and memory does not grow with the number of samples. These classes are plain
Python; ``calibrant.metrics.modules`` turns them into ``torchmetrics.Metric`` classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant import inputs
from calibrant.binning import BinStatistics
from calibrant.distributed import sum_over_processes
from calibrant.inputs import Array, Given, complete
from calibrant.metrics import calibration, classwise, scores, segmentation
from calibrant.metrics.estimators import Grid, SortedOutcomes
from calibrant.outcomes import Softmax, judged
from calibrant.tensors import Block, Samples

if TYPE_CHECKING:
    from typing_extensions import Unpack

State = Mapping[str, Tensor]
#: Why sums over batches need labels.
COUNTED = ", which it counts (functions such as calibrant.functional.ece take soft targets)"


class Sums(ABC):
    """Sums over samples, and the value computed from them.

    Args:
        num_classes: Number of classes, if it matters.
        **given: ``ignore_index``, ``probs`` and ``task``; see :class:`calibrant.inputs.Given`.
    """

    def __init__(self, num_classes: int | None = None, **given: "Unpack[Given]") -> None:
        self.num_classes = num_classes
        self.given = complete(given)
        self.state: dict[str, Tensor] = {}

    @property
    def ignore_index(self) -> int:
        """Label of samples or pixels to ignore."""
        return self.given["ignore_index"]

    @abstractmethod
    def zeros(self) -> dict[str, Tensor]:
        """The sums over no samples."""

    @abstractmethod
    def of(self, samples: Samples) -> dict[str, Tensor]:
        """The sums over some samples."""

    @abstractmethod
    def value(self, state: State) -> Any:
        """The value computed from the sums."""

    def read(self, logits: Array, target: Array) -> Samples:
        """Check a batch of logits ``(N, K)`` or ``(N, K, *spatial)`` with their labels."""
        return inputs.for_measuring(logits, target, num_classes=self.num_classes, soft=COUNTED, **self.given)

    def update(self, logits: Array, target: Array) -> None:
        """Add a batch of logits ``(N, K)`` or ``(N, K, *spatial)`` with their labels."""
        self._add(self.of(self.read(logits, target)))

    def merge(self, other: "Sums") -> None:
        """Add the sums of another object of the same kind."""
        self._add(other.state)

    def reset(self) -> None:
        """Clear the sums."""
        self.state = {}

    def compute(self, *, sync: bool = False) -> Any:
        """The value over all samples so far; with ``sync``, a collective call, over those of all processes."""
        state = self.state or self.zeros()
        return self.value({name: sum_over_processes(part) for name, part in state.items()} if sync else state)

    def _add(self, parts: State) -> None:
        if not self.state:
            self.state = {name: zeros.to(parts[name].device) for name, zeros in self.zeros().items() if name in parts}
        for name, part in parts.items():
            self.state[name] += part.to(self.state[name].device)


def as_state(bins: BinStatistics, prefix: str = "") -> dict[str, Tensor]:
    """Bins as named sums."""
    return {prefix + name: part for name, part in bins._asdict().items()}


def as_bins(state: State, prefix: str = "") -> BinStatistics:
    """Named sums as bins."""
    return BinStatistics(*(state[prefix + name] for name in BinStatistics._fields))


class BinSums(Sums):
    """Equal-width bins of confidences, those of the predicted class or of events.

    Args:
        estimate: The formula.
        num_bins: Number of bins.
        **given: See :class:`calibrant.inputs.Given`.
    """

    def __init__(self, estimate: Callable[[BinStatistics], Tensor], num_bins: int, **given: "Unpack[Given]") -> None:
        super().__init__(**given)
        self.estimate, self.num_bins = estimate, num_bins

    def zeros(self) -> dict[str, Tensor]:
        """Empty bins."""
        return as_state(BinStatistics.zeros(self.num_bins))

    def of(self, samples: Samples) -> dict[str, Tensor]:
        """Bins of some samples."""
        return as_state(calibration.width_bins(judged(samples), self.num_bins))

    def value(self, state: State) -> Tensor:
        """The estimate."""
        return self.estimate(as_bins(state))


class ClassBinSums(Sums):
    """Equal-width bins of each class's probability.

    Args:
        estimate: The formula.
        num_classes: Number of classes.
        num_bins: Number of bins of each.
        **given: See :class:`calibrant.inputs.Given`.
    """

    def __init__(
        self, estimate: Callable[[BinStatistics], Tensor], num_classes: int, num_bins: int, **given: "Unpack[Given]"
    ) -> None:
        super().__init__(num_classes, **given)
        self.estimate, self.num_bins, self.classes = estimate, num_bins, num_classes

    def zeros(self) -> dict[str, Tensor]:
        """Empty bins."""
        return as_state(BinStatistics.zeros(self.classes, self.num_bins))

    def of(self, samples: Samples) -> dict[str, Tensor]:
        """Bins of some samples."""
        return as_state(classwise.class_bins(samples, self.num_bins))

    def value(self, state: State) -> Tensor:
        """The estimate."""
        return self.estimate(as_bins(state))


class GridSums(Sums):
    """Outcomes sorted by confidence, on the fine grid.

    Args:
        estimate: The formula.
        **given: See :class:`calibrant.inputs.Given`.
    """

    def __init__(self, estimate: Callable[[SortedOutcomes], Tensor], **given: "Unpack[Given]") -> None:
        super().__init__(**given)
        self.estimate = estimate

    def zeros(self) -> dict[str, Tensor]:
        """An empty grid."""
        return as_state(BinStatistics.zeros(Grid.size))

    def of(self, samples: Samples) -> dict[str, Tensor]:
        """The grid of some samples."""
        return as_state(Grid.sums(judged(samples)))

    def value(self, state: State) -> Tensor:
        """The estimate, NaN without samples."""
        ordered = Grid.filled(as_bins(state))
        return self.estimate(ordered) if len(ordered.confidence) else ordered.confidence.new_tensor(torch.nan)


class ScoreSums(Sums):
    """The mean of a per-sample score.

    Args:
        score: The score.
        **given: See :class:`calibrant.inputs.Given`.
    """

    def __init__(self, score: Callable[[Block, Softmax], Tensor], **given: "Unpack[Given]") -> None:
        super().__init__(**given)
        self.score = score

    def zeros(self) -> dict[str, Tensor]:
        """No samples."""
        return {"total": torch.zeros((), dtype=torch.float64), "count": torch.zeros((), dtype=torch.int64)}

    def of(self, samples: Samples) -> dict[str, Tensor]:
        """Sum and count over some samples."""
        return {"total": scores.of_samples(self.score, samples).sum(), "count": samples.kept.sum()}

    def value(self, state: State) -> Tensor:
        """The mean."""
        return state["total"] / state["count"]


class AreaSums(Sums):
    """Pixels of each class: labelled, predicted, and both.

    Args:
        num_classes: Number of classes.
        rule: How they are averaged; see :func:`mean_iou`.
        **given: See :class:`calibrant.inputs.Given`.
    """

    def __init__(self, num_classes: int, rule: segmentation.Rule, **given: "Unpack[Given]") -> None:
        super().__init__(num_classes, **given)
        self.rule, self.classes = rule, num_classes

    def zeros(self) -> dict[str, Tensor]:
        """No pixels."""
        return {"areas": torch.zeros(3, self.classes, dtype=torch.int64)}

    def of(self, samples: Samples) -> dict[str, Tensor]:
        """Areas of some images."""
        return {"areas": segmentation.areas(samples)}

    def value(self, state: State) -> Tensor:
        """Mean intersection over union."""
        return segmentation.iou_of(state["areas"], rule=self.rule)
