"""Equal-mass bins of training and validation samples over the epochs of a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant import tensors
from calibrant.binning import BinStatistics
from calibrant.checks import one_of, whole
from calibrant.distributed import sum_over_processes, world_size
from calibrant.metrics.estimators import Grid, SortedOutcomes, cut, sort_outcomes
from calibrant.outcomes import Outcomes

Part = Literal["train", "validation"]
PARTS: Final[tuple[Part, ...]] = ("train", "validation")
#: Which probability is binned: that of the predicted class, or that of the true class.
Label = Literal["top", "true"]
LABELS: Final[tuple[Label, ...]] = ("top", "true")
#: Training samples are binned by their own quantiles, or by the bins of the validation samples.
Binning = Literal["independent", "common"]

#: The bins of each row. Common ones are those of the validation samples' predicted classes, as in AdaFocal.
SERIES: Final[tuple[tuple[Part, Label, Binning], ...]] = (
    ("validation", "top", "independent"),
    ("validation", "true", "independent"),
    ("train", "top", "independent"),
    ("train", "true", "independent"),
    ("train", "top", "common"),
    ("train", "true", "common"),
)
#: Logits buffered before they are measured together, which is faster than batch by batch.
WAITING: Final = 2**22
#: Maximum number of confidences that are kept; beyond it, or with several processes, they are binned on the fine grid.
EXACT: Final = 2**20
#: Maximum number of pixels measured per batch in segmentation: neighbouring pixels are nearly redundant.
PIXELS: Final = 2**16


class BinRecorder:
    """Bins the confidences of training and validation batches, in constant memory.

    Bins are exact for up to a million samples. Beyond that, or with several processes, confidences are binned on the fine
    grid (:class:`calibrant.metrics.estimators.Grid`), and its cells are merged into bins. In segmentation, a regular grid
    of at most 65,536 pixels per batch is measured.

    Args:
        num_bins: Number M of bins.
        ignore_index: Label of samples or pixels to ignore.

    Example:
        >>> import torch
        >>> from calibrant.metrics import BinRecorder, EpochBins
        >>> recorder = BinRecorder(num_bins=2)
        >>> rows = []
        >>> for epoch in range(3):
        ...     recorder.train(torch.randn(100, 3), torch.arange(100) % 3)  # every batch, as it is trained on
        ...     recorder.validation(torch.randn(50, 3), torch.arange(50) % 3)  # every batch of the validation data
        ...     rows.append(recorder.take())
        >>> bins = EpochBins.from_rows(rows, epochs=[1, 2, 3])
        >>> bins.of("train", label="true", binning="common").confidence.shape
        (3, 2)
    """

    def __init__(self, *, num_bins: int = 15, ignore_index: int = -100) -> None:
        self.num_bins = whole("num_bins", num_bins, 1)
        self.ignore_index = ignore_index
        self._waiting: dict[Part, list[tuple[Tensor, Tensor]]] = {"train": [], "validation": []}
        self._kept: dict[Part, list[tuple[Tensor, Tensor, Tensor]]] = {"train": [], "validation": []}
        self._sums: dict[tuple[Part, Label], BinStatistics] = {}

    def train(self, logits: Tensor, target: Tensor) -> None:
        """Add a batch of training samples, as it is trained on."""
        self._add("train", logits, target)

    def validation(self, logits: Tensor, target: Tensor) -> None:
        """Add a batch of validation samples."""
        self._add("validation", logits, target)

    def forget(self) -> None:
        """Start over."""
        self._sums.clear()
        for part in PARTS:
            self._waiting[part].clear()
            self._kept[part].clear()

    @torch.no_grad()
    def take(self) -> dict[str, Tensor]:
        """The bins of everything added since the last call, by all processes: a row of :class:`EpochBins`."""
        ordered: dict[tuple[Part, Label], SortedOutcomes] = {}
        for part in PARTS:
            self._measure(part)
            ordered |= self._ordered(part)
        self.forget()
        common = equal_mass_bounds(ordered["validation", "top"], self.num_bins)
        edges, bins = [], []
        for part, label, binning in SERIES:
            own = ordered[part, label]
            edges.append(common if binning == "common" else equal_mass_bounds(own, self.num_bins))
            bins.append(cut(own, torch.searchsorted(own.confidence, edges[-1], right=True)))
        counts, confidence, correct = (torch.stack(parts) for parts in zip(*bins, strict=True))
        return {
            "edges": torch.stack(edges).float(),
            "counts": counts.round().long(),
            "confidence": (confidence / counts).float(),  # NaN where a bin is empty
            "accuracy": (correct / counts).float(),
        }

    @torch.no_grad()
    def _add(self, part: Part, logits: Tensor, target: Tensor) -> None:
        logits = logits.detach()
        if logits.dim() > 2:
            spatial = logits.dim() - 2
            stride = max(1, math.ceil((target.numel() / PIXELS) ** (1 / spatial)))
            places = (slice(None), *[slice(None, None, stride)] * spatial)
            logits, target = logits.movedim(1, -1)[places], target[places]
            logits, target = logits.flatten(0, -2), target.flatten()
        waiting = self._waiting[part]
        waiting.append((logits, target))
        if len(waiting) * logits.numel() >= WAITING:
            self._measure(part)

    def _measure(self, part: Part) -> None:
        """Measure the buffered logits."""
        waiting = self._waiting[part]
        if not waiting:
            return
        both = [torch.cat(parts) for parts in zip(*waiting, strict=True)]
        waiting.clear()
        logits, target, kept = tensors.for_training(both[0], both[1], self.ignore_index)[:3]
        shares = logits.log_softmax(dim=1)
        top, prediction = shares.max(dim=1)
        true = shares.gather(1, target.unsqueeze(1)).squeeze(1)
        kept = kept & ~top.isnan()  # half precision may overflow; that training step is skipped
        correct = (prediction == target)[kept].cpu()
        self._kept[part].append((top[kept].cpu().exp().clamp(max=1), true[kept].cpu().exp().clamp(max=1), correct))
        if sum(len(own) for own, _, _ in self._kept[part]) > EXACT:
            self._add_up(part)

    def _add_up(self, part: Part) -> None:
        """Move the confidences to the fine grid."""
        for label, outcomes in self._outcomes(part).items():
            sums = self._sums.setdefault((part, label), BinStatistics.zeros(Grid.size))
            sums.add_(Grid.sums(outcomes))
        self._kept[part].clear()

    def _outcomes(self, part: Part) -> dict[Label, Outcomes]:
        none = torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.bool)
        top, true, correct = (torch.cat(own) for own in zip(none, *self._kept[part], strict=True))
        return {"top": Outcomes(top, correct), "true": Outcomes(true, correct)}

    def _ordered(self, part: Part) -> dict[tuple[Part, Label], SortedOutcomes]:
        """All outcomes of a part, from all processes."""
        if world_size() == 1 and (part, "top") not in self._sums:
            return {(part, label): sort_outcomes(outcomes) for label, outcomes in self._outcomes(part).items()}
        self._add_up(part)
        sums = {label: map(sum_over_processes, self._sums[part, label]) for label in LABELS}
        return {(part, label): Grid.filled(BinStatistics(*own)) for label, own in sums.items()}


def equal_mass_bounds(ordered: SortedOutcomes, num_bins: int) -> Tensor:
    """Inner edges of equal-mass bins: the confidences at ranks floor(k N / M); NaN without samples."""
    total = int(ordered.total)
    if not total:
        return ordered.confidence.new_full((num_bins - 1,), torch.nan)
    ranks = (torch.arange(1, num_bins, device=ordered.counts.device) * total // num_bins).clamp(max=total - 1)
    reached = ordered.counts.cumsum(dim=0).round().long()
    return ordered.confidence[torch.searchsorted(reached, ranks, right=True)]


class BinPath(NamedTuple):
    """One kind of bins over epochs.

    Attributes:
        edges: ``(T, M - 1)`` inner edges.
        counts: ``(T, M)`` samples.
        confidence: ``(T, M)`` mean confidence, NaN for empty bins.
        accuracy: ``(T, M)`` accuracy, NaN for empty bins.
    """

    edges: np.ndarray
    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def error(self) -> np.ndarray:
        """Mean confidence minus accuracy."""
        gap: np.ndarray = self.confidence - self.accuracy
        return gap


@dataclass(frozen=True, eq=False)
class EpochBins:
    """Bins of training and validation samples over epochs; see :class:`BinRecorder`.

    Attributes:
        epochs: ``(T,)`` epochs trained.
        edges: ``(T, S, M - 1)`` inner edges of each of the S kinds of bins.
        counts: ``(T, S, M)`` samples.
        confidence: ``(T, S, M)`` mean confidences.
        accuracy: ``(T, S, M)`` accuracies.

    Example:
        >>> import torch
        >>> from calibrant.metrics import BinRecorder, EpochBins
        >>> recorder = BinRecorder(num_bins=2)
        >>> recorder.validation(torch.tensor([[4.0, 0.0], [1.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1, 1]))
        >>> bins = EpochBins.from_rows([recorder.take()], epochs=[1])
        >>> bins.of("validation").counts.tolist(), bins.of("validation").accuracy.tolist()
        ([[2, 1]], [[0.5, 1.0]])
    """

    epochs: np.ndarray
    edges: np.ndarray
    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @staticmethod
    def from_rows(rows: Sequence[Mapping[str, Tensor]], epochs: Sequence[float]) -> "EpochBins":
        """From the rows that :meth:`BinRecorder.take` returned."""
        arrays = {name: torch.stack([row[name] for row in rows]).cpu().numpy() for name in rows[0]}
        return EpochBins(np.asarray(epochs, dtype=np.float64), **arrays)

    @property
    def num_bins(self) -> int:
        """Number of bins."""
        return int(self.counts.shape[-1])

    def of(self, part: Part, *, label: Label = "top", binning: Binning = "independent") -> BinPath:
        """The bins of training or validation samples.

        Args:
            part: ``"train"`` or ``"validation"``.
            label: By the probability of the predicted class (``"top"``) or of the true one (``"true"``).
            binning: Training samples by their own quantiles (``"independent"``), or by the bins of the validation samples
                (``"common"``).
        """
        one_of("part", part, PARTS)
        one_of("label", label, LABELS)
        one_of("binning", binning, ("independent", "common"))
        place = SERIES.index((part, label, binning if part == "train" else "independent"))
        return BinPath(*(array[:, place] for array in (self.edges, self.counts, self.confidence, self.accuracy)))
