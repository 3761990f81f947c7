"""The metrics as ``torchmetrics.Metric``: update batch by batch, merge, sum over processes, log with Lightning.

State is integer counts and float64 sums, so that a billion pixels are counted one by one, and joining two states is an
addition. Metrics that need the order of confidences keep 4 bytes for each sample, its confidence with a sign that tells
whether the prediction was right; with ``streaming=True`` they keep a grid of fixed size instead, see
:class:`calibrant.metrics.cells.Grid`.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from calibrant import tensors
from calibrant.binning import BinStatistics
from calibrant.metrics import calibration, scores, segmentation
from calibrant.metrics import cells as on_cells
from calibrant.metrics.cells import Binning, Cells, Grid
from calibrant.metrics.classwise import class_bins
from calibrant.outcomes import Outcomes, Softmax, top_label
from calibrant.tensors import Batch, Block
from calibrant.validation import one_of, whole


class LogitsMetric(Metric):
    """A metric of logits and labels. Of nothing its value is NaN.

    Args:
        ignore_index: Label of samples or pixels to leave out.
        **kwargs: Arguments of ``torchmetrics.Metric``.
    """

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False

    def __init__(self, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ignore_index = ignore_index
        self.num_classes: int | None = None

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Add a batch of logits ``(N, K)`` or ``(N, K, *spatial)`` with their labels."""
        self._add(tensors.check(logits, target, self.ignore_index, num_classes=self.num_classes))

    @abstractmethod
    def _add(self, batch: Batch) -> None:
        """Add a batch to the state."""

    def _sums(self, name: str, *shape: int, whole_numbers: bool = False) -> None:
        """Declare a state that is added up over batches and processes."""
        zeros = torch.zeros(shape, dtype=torch.int64 if whole_numbers else torch.float64)
        self.add_state(name, default=zeros, dist_reduce_fx="sum", persistent=True)

    def _bins(self, *shape: int, prefix: str = "") -> None:
        """Declare the three states of :class:`BinStatistics`."""
        for field in BinStatistics._fields:
            self._sums(prefix + field, *shape, whole_numbers=field != "confidence")

    def _add_bins(self, bins: BinStatistics, prefix: str = "") -> None:
        for field, part in bins._asdict().items():
            total = getattr(self, prefix + field)
            total += part.to(total.device)

    def _get_bins(self, prefix: str = "") -> BinStatistics:
        return BinStatistics(*(getattr(self, prefix + field) for field in BinStatistics._fields))


class ECE(LogitsMetric):
    """Expected calibration error with bins of equal width; see :func:`ece`."""

    def __init__(self, num_bins: int = 15, norm: int = 1, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(ignore_index=ignore_index, **kwargs)
        self.num_bins = whole("num_bins", num_bins, 1)
        self.norm: int = one_of("norm", norm, (1, 2))
        self._bins(num_bins)

    def _add(self, batch: Batch) -> None:
        self._add_bins(calibration.width_bins(top_label(batch), self.num_bins))

    def compute(self) -> Tensor:
        """Return the error, a float64 scalar."""
        return on_cells.calibration_error(self._get_bins(), self.norm)


class MCE(ECE):
    """Maximum calibration error with bins of equal width; see :func:`mce`."""

    def __init__(self, num_bins: int = 15, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(num_bins, ignore_index=ignore_index, **kwargs)

    def compute(self) -> Tensor:
        """Return the error, a float64 scalar."""
        bins = self._get_bins()
        return calibration.maximum_error(bins).where(bins.counts.sum() > 0, torch.nan)


class ClasswiseECE(LogitsMetric):
    """Calibration error of every class's probability, with bins of equal width; see :func:`classwise_ece`."""

    def __init__(
        self, num_classes: int, num_bins: int = 15, norm: int = 1, *, ignore_index: int = -100, **kwargs: Any
    ) -> None:
        super().__init__(ignore_index=ignore_index, **kwargs)
        self.num_classes = whole("num_classes", num_classes, 2)
        self.num_bins = whole("num_bins", num_bins, 1)
        self.norm: int = one_of("norm", norm, (1, 2))
        self._bins(num_classes, num_bins)

    def _add(self, batch: Batch) -> None:
        self._add_bins(class_bins(batch, self.num_bins))

    def compute(self) -> Tensor:
        """Return the error, a float64 scalar."""
        return on_cells.calibration_error(self._get_bins(), self.norm).mean()


class OrderedMetric(LogitsMetric):
    """A metric of outcomes in order of confidence.

    Args:
        streaming: Keep a grid of 2.4 MB instead of 4 bytes for each sample.
        ignore_index: Label of samples or pixels to leave out.
        **kwargs: Arguments of ``torchmetrics.Metric``.
    """

    signed: list[Tensor]

    def __init__(self, *, streaming: bool = False, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(ignore_index=ignore_index, **kwargs)
        self.streaming = streaming
        if streaming:
            self._bins(Grid.size)
        else:
            self.add_state("signed", default=[], dist_reduce_fx="cat", persistent=True)

    def _add(self, batch: Batch) -> None:
        outcomes = top_label(batch)
        if self.streaming:
            self._add_bins(Grid.sums(outcomes))
        else:
            confidence = outcomes.confidence.float()
            self.signed.append(confidence.where(outcomes.correct, -confidence))

    def _cells(self) -> Cells:
        if self.streaming:
            return Grid.cells(self._get_bins())
        signed = dim_zero_cat(self.signed) if len(self.signed) else torch.zeros(0, device=self.device)
        return on_cells.cells_of(Outcomes(signed.abs(), signed > 0))

    def compute(self) -> Tensor:
        """Return the error, a float64 scalar."""
        cells = self._cells()
        if not len(cells.confidence):
            return torch.tensor(torch.nan, dtype=torch.float64, device=self.device)
        return self._estimate(cells)

    @abstractmethod
    def _estimate(self, cells: Cells) -> Tensor:
        """Return the value."""


class AdaptiveECE(OrderedMetric):
    """ECE with bins of equal mass; see :func:`adaptive_ece`.

    With ``streaming=True`` a bin may end up to one cell of the grid off: the result differs from the exact one by at
    most twice the share of the samples that lie in the cells around the edges.
    """

    def __init__(
        self, num_bins: int = 15, norm: int = 1, *, streaming: bool = False, ignore_index: int = -100, **kwargs: Any
    ) -> None:
        super().__init__(streaming=streaming, ignore_index=ignore_index, **kwargs)
        self.num_bins = whole("num_bins", num_bins, 1)
        self.norm: int = one_of("norm", norm, (1, 2))

    def _estimate(self, cells: Cells) -> Tensor:
        return on_cells.calibration_error(on_cells.bins_of_equal_mass(cells, self.num_bins), self.norm)


class DebiasedECE(OrderedMetric):
    """ECE without most of its upward bias; see :func:`debiased_ece`. Bins of equal width need no order: always streaming."""

    def __init__(
        self,
        num_bins: int = 15,
        binning: Binning = "mass",
        norm: int = 1,
        *,
        streaming: bool = False,
        ignore_index: int = -100,
        **kwargs: Any,
    ) -> None:
        super().__init__(streaming=streaming, ignore_index=ignore_index, **kwargs)
        self.num_bins = whole("num_bins", num_bins, 1)
        self.binning: Binning = one_of("binning", binning, ("mass", "width"))
        self.norm: int = one_of("norm", norm, (1, 2))
        if binning == "width":
            self._bins(num_bins, prefix="width_")

    def _add(self, batch: Batch) -> None:
        if self.binning == "mass":
            super()._add(batch)
        else:
            self._add_bins(calibration.width_bins(top_label(batch), self.num_bins), prefix="width_")

    def compute(self) -> Tensor:
        """Return the error, a float64 scalar."""
        if self.binning == "mass":
            return super().compute()
        bins = self._get_bins("width_")
        error = calibration.as_error(on_cells.debiased_error(bins, self.norm), self.norm)
        return error.where(bins.counts.sum() > 0, torch.nan)

    def _estimate(self, cells: Cells) -> Tensor:
        bins = on_cells.bins_of_equal_mass(cells, self.num_bins, split=True)
        return calibration.as_error(on_cells.debiased_error(bins, self.norm), self.norm)


class SweepECE(OrderedMetric):
    """ECE with as many bins as keep their accuracies in order; see :func:`sweep_ece`."""

    def __init__(
        self,
        binning: Binning = "mass",
        norm: int = 1,
        *,
        streaming: bool = False,
        ignore_index: int = -100,
        **kwargs: Any,
    ) -> None:
        super().__init__(streaming=streaming, ignore_index=ignore_index, **kwargs)
        self.binning: Binning = one_of("binning", binning, ("mass", "width"))
        self.norm: int = one_of("norm", norm, (1, 2))

    def _estimate(self, cells: Cells) -> Tensor:
        return on_cells.sweep(cells, self.binning, self.norm)[0]


class SmoothECE(OrderedMetric):
    """Smooth calibration error; see :func:`smooth_ece`."""

    def _estimate(self, cells: Cells) -> Tensor:
        return on_cells.smooth_error(cells)


class _MeanScore(LogitsMetric):
    total: Tensor
    count: Tensor
    score: Callable[[Block, Softmax], Tensor]

    def __init__(self, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(ignore_index=ignore_index, **kwargs)
        self._sums("total")
        self._sums("count", whole_numbers=True)

    def _add(self, batch: Batch) -> None:
        self.total += scores.of_samples(type(self).score, batch).sum().to(self.total.device)
        self.count += batch.kept.sum().to(self.count.device)

    def compute(self) -> Tensor:
        """Return the mean, a float64 scalar."""
        return self.total / self.count


class NLL(_MeanScore):
    """Negative log-likelihood; see :func:`nll`."""

    score = staticmethod(scores.negative_log_likelihood)


class BrierScore(_MeanScore):
    """Brier score, summed over classes; see :func:`brier_score`."""

    score = staticmethod(scores.brier)


class MeanIoU(LogitsMetric):
    """Mean intersection over union, pooled over pixels; see :func:`mean_iou`."""

    higher_is_better = True
    areas: Tensor

    def __init__(
        self, num_classes: int, rule: segmentation.Rule = "standard", *, ignore_index: int = -100, **kwargs: Any
    ) -> None:
        super().__init__(ignore_index=ignore_index, **kwargs)
        self.num_classes = whole("num_classes", num_classes, 2)
        self.rule: segmentation.Rule = one_of("rule", rule, ("standard", "released"))
        self._sums("areas", 3, num_classes, whole_numbers=True)

    def _add(self, batch: Batch) -> None:
        self.areas += segmentation.areas(batch).to(self.areas.device)

    def compute(self) -> Tensor:
        """Return the mean, a float64 scalar."""
        return segmentation.iou_of(self.areas, self.rule)


class PerImage(LogitsMetric):
    """Mean over images of a metric of each image's pixels; see :func:`per_image`.

    Args:
        metric: A function such as :func:`ece`.
        ignore_index: Label of pixels to leave out.
        **options: Passed on to ``metric``.
    """

    total: Tensor
    images: Tensor

    def __init__(self, metric: Callable[..., Tensor], *, ignore_index: int = -100, **options: Any) -> None:
        super().__init__(ignore_index=ignore_index)
        self.metric = metric
        self.options = options
        self._sums("total")
        self._sums("images", whole_numbers=True)

    def _add(self, batch: Batch) -> None:
        target = batch.target.where(batch.kept, self.ignore_index)
        for i in batch.kept.flatten(1).any(dim=1).nonzero().flatten().tolist():
            value = self.metric(batch.logits[i : i + 1], target[i : i + 1], ignore_index=self.ignore_index, **self.options)
            self.total += value.to(self.total)
            self.images += 1

    def compute(self) -> Tensor:
        """Return the mean, a float64 scalar."""
        return self.total / self.images
