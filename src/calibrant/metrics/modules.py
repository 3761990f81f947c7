"""The measures as ``torchmetrics.Metric``: update batch by batch, sum over processes, log with Lightning.

The only file that imports torchmetrics. The arithmetic is that of :mod:`calibrant.metrics.sums`. Metrics that need
sorted confidences keep 4 bytes per sample, its confidence with a sign for whether the prediction came true; with
``streaming=True`` they keep a grid of fixed size instead, see :class:`calibrant.metrics.estimators.Grid`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from calibrant import tensors
from calibrant.binning import Binning, BinStatistics
from calibrant.checks import one_of, whole
from calibrant.inputs import Array
from calibrant.metrics import classwise, estimators, scores, segmentation
from calibrant.metrics.estimators import Grid, SortedOutcomes
from calibrant.metrics.panel import Panel
from calibrant.metrics.sums import AreaSums, BinSums, ClassBinSums, GridSums, ScoreSums, Sums, as_bins
from calibrant.outcomes import Outcomes, judged
from calibrant.registry import Entry
from calibrant.tensors import Task

#: What ``plot`` draws. Figures depend on metrics, not the other way round, so it is imported by name when drawn.
DIAGRAM = Entry("reliability", "calibrant.plots.reliability:ReliabilityDiagram", "reliability diagram")


class LogitsMetric(Metric):
    """A metric of logits and labels. Before the first sample its value is NaN.

    Args:
        sums: What is summed; only its arithmetic is used, ``torchmetrics`` holds the state.
        probs: True if batches are probabilities; see :class:`calibrant.inputs.Given`.
        task: ``"binary"`` or ``"multilabel"`` for events.
        **kwargs: Arguments of ``torchmetrics.Metric``.
    """

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False

    def __init__(self, sums: Sums, *, probs: bool | None = None, task: Task = "multiclass", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        sums.given = {"ignore_index": sums.ignore_index, "probs": probs, "task": one_of("task", task, get_args(Task))}
        self.sums = sums
        self.ignore_index, self.num_classes, self.probs, self.task = sums.ignore_index, sums.num_classes, probs, task
        for name, zeros in sums.zeros().items():
            self.add_state(name, default=zeros, dist_reduce_fx="sum", persistent=True)

    def update(self, logits: Array, target: Array) -> None:
        """Add a batch of logits ``(N, K)`` or ``(N, K, *spatial)`` with their labels."""
        for name, part in self.sums.of(self.sums.read(logits, target)).items():
            total = getattr(self, name)
            total += part.to(total.device)

    def compute(self) -> Any:
        """Return the value, a float64 scalar."""
        return self.sums.value(self._state())

    def _state(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.sums.zeros()}

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Draw a reliability diagram if the metric is about confidences, else its value; return figure and axes.

        Args:
            val: A value, or a list of values over time, to draw instead.
            ax: Axes to draw into; new ones if not given.
        """
        bins = self._bins() if val is None else None
        if bins is None:
            return self._plot(val, ax)
        if not int(bins.counts.sum()):
            raise ValueError(f"{type(self).__name__} has seen no samples: there is nothing to plot; call update first")
        drawn = DIAGRAM.load().from_bins(bins, name=type(self).__name__).plot(ax)
        return drawn.get_figure(root=True), drawn

    def _bins(self) -> BinStatistics | None:
        """Bins of the predicted class's confidence, if the metric is about those."""
        return as_bins(self._state()) if isinstance(self.sums, BinSums) else None


class ECE(LogitsMetric):
    """Expected calibration error with equal-width bins; see :func:`ece`.

    Example:
        >>> from calibrant.metrics import ECE
        >>> metric = ECE(num_bins=10)
        >>> metric.update([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2)  # every batch
        >>> round(float(metric.compute()), 4)
        0.232
    """

    def __init__(self, *, num_bins: int = 15, norm: int = 1, ignore_index: int = -100, **kwargs: Any) -> None:
        self.num_bins = whole("num_bins", num_bins, 1)
        self.norm: int = one_of("norm", norm, (1, 2))
        estimate = partial(estimators.calibration_error, norm=norm)
        super().__init__(BinSums(estimate, num_bins, ignore_index=ignore_index), **kwargs)


class MCE(LogitsMetric):
    """Maximum calibration error with equal-width bins; see :func:`mce`.

    Example:
        >>> from calibrant.metrics import MCE
        >>> metric = MCE()
        >>> metric.update([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2)  # every batch
        >>> round(float(metric.compute()), 4)
        0.232
    """

    def __init__(self, *, num_bins: int = 15, ignore_index: int = -100, **kwargs: Any) -> None:
        self.num_bins = whole("num_bins", num_bins, 1)
        super().__init__(BinSums(estimators.maximum_error, num_bins, ignore_index=ignore_index), **kwargs)


class ClasswiseECE(LogitsMetric):
    """Calibration error of every class's probability, with equal-width bins; see :func:`classwise_ece`.

    Example:
        >>> from calibrant.metrics import ClasswiseECE
        >>> metric = ClasswiseECE(num_classes=2)
        >>> metric.update([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2)  # every batch
        >>> round(float(metric.compute()), 4)
        0.232
    """

    def __init__(
        self, num_classes: int, *, num_bins: int = 15, norm: int = 1, ignore_index: int = -100, **kwargs: Any
    ) -> None:
        whole("num_classes", num_classes, 2)
        self.num_bins = whole("num_bins", num_bins, 1)
        self.norm: int = one_of("norm", norm, (1, 2))
        estimate = partial(classwise.classwise_error, norm=norm)
        super().__init__(ClassBinSums(estimate, num_classes, num_bins, ignore_index=ignore_index), **kwargs)


class SortedMetric(LogitsMetric):
    """A metric of outcomes sorted by confidence.

    Args:
        estimate: The formula.
        streaming: Keep a grid of 4.5 MB instead of 4 bytes per sample.
        ignore_index: Label of samples or pixels to ignore.
        **kwargs: Arguments of ``torchmetrics.Metric``.
    """

    signed: list[Tensor]

    def __init__(
        self, estimate: Callable[[SortedOutcomes], Tensor], *, streaming: bool, ignore_index: int, **kwargs: Any
    ) -> None:
        self.streaming = streaming
        sums = GridSums(estimate, ignore_index=ignore_index)
        super().__init__(sums if streaming else _Nothing(sums), **kwargs)
        if not streaming:
            self.add_state("signed", default=[], dist_reduce_fx="cat", persistent=True)
        self.estimate = estimate

    def update(self, logits: Array, target: Array) -> None:
        """Add a batch of logits ``(N, K)`` or ``(N, K, *spatial)`` with their labels."""
        if self.streaming:
            super().update(logits, target)
            return
        outcomes = judged(self.sums.read(logits, target))
        confidence = outcomes.confidence.float()
        self.signed.append(confidence.where(outcomes.correct, -confidence))

    def compute(self) -> Tensor:
        """Return the value, a float64 scalar."""
        if self.streaming:
            value: Tensor = super().compute()
            return value
        ordered = self._ordered()
        if not len(ordered.confidence):
            return torch.tensor(torch.nan, dtype=torch.float64, device=self.device)
        return self.estimate(ordered)

    def _ordered(self) -> SortedOutcomes:
        if self.streaming:
            return Grid.filled(as_bins(self._state()))
        signed = dim_zero_cat(self.signed) if len(self.signed) else torch.zeros(0, device=self.device)
        return estimators.sort_outcomes(Outcomes(signed.abs(), ~signed.signbit()))

    def _bins(self) -> BinStatistics:
        return estimators.bins_of_equal_width(self._ordered(), getattr(self, "num_bins", 15))


class _Nothing(Sums):
    """No sums: the samples themselves are kept."""

    def __init__(self, sums: Sums) -> None:
        super().__init__(ignore_index=sums.ignore_index)

    def zeros(self) -> dict[str, Tensor]:
        return {}

    def of(self, samples: tensors.Samples) -> dict[str, Tensor]:
        del samples
        return {}

    def value(self, state: Mapping[str, Tensor]) -> Tensor:
        del state
        return torch.tensor(torch.nan)


class AdaptiveECE(SortedMetric):
    """ECE with equal-mass bins; see :func:`adaptive_ece`.

    With ``streaming=True`` a bin edge may be off by up to one grid step: the result differs from the exact one by at
    most twice the fraction of the samples in the steps around the edges.

    Example:
        >>> from calibrant.metrics import AdaptiveECE
        >>> metric = AdaptiveECE(streaming=True)
        >>> metric.update([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2)  # every batch
        >>> round(float(metric.compute()), 4)
        0.232
    """

    def __init__(
        self, *, num_bins: int = 15, norm: int = 1, streaming: bool = False, ignore_index: int = -100, **kwargs: Any
    ) -> None:
        self.num_bins = whole("num_bins", num_bins, 1)
        self.norm: int = one_of("norm", norm, (1, 2))
        estimate = partial(estimators.adaptive_error, num_bins=num_bins, norm=norm)
        super().__init__(estimate, streaming=streaming, ignore_index=ignore_index, **kwargs)


class DebiasedECE(SortedMetric):
    """ECE without most of its upward bias; see :func:`debiased_ece`.

    Example:
        >>> from calibrant.metrics import DebiasedECE
        >>> metric = DebiasedECE()
        >>> metric.update([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2)  # every batch
        >>> round(float(metric.compute()), 4)
        0.2234
    """

    def __init__(
        self,
        *,
        num_bins: int = 15,
        binning: Binning = "mass",
        norm: int = 1,
        streaming: bool = False,
        ignore_index: int = -100,
        **kwargs: Any,
    ) -> None:
        self.num_bins = whole("num_bins", num_bins, 1)
        self.binning: Binning = one_of("binning", binning, ("mass", "width"))
        self.norm: int = one_of("norm", norm, (1, 2))
        estimate = partial(estimators.debiased_sorted_error, num_bins=num_bins, binning=binning, norm=norm)
        super().__init__(estimate, streaming=streaming, ignore_index=ignore_index, **kwargs)


class SweepECE(SortedMetric):
    """ECE with as many bins as keep accuracy monotonic; see :func:`sweep_ece`.

    Example:
        >>> from calibrant.metrics import SweepECE
        >>> metric = SweepECE()
        >>> metric.update([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2)  # every batch
        >>> round(float(metric.compute()), 4)
        0.232
    """

    def __init__(
        self,
        *,
        binning: Binning = "mass",
        norm: int = 1,
        streaming: bool = False,
        ignore_index: int = -100,
        **kwargs: Any,
    ) -> None:
        self.binning: Binning = one_of("binning", binning, ("mass", "width"))
        self.norm: int = one_of("norm", norm, (1, 2))
        estimate = partial(estimators.sweep_error, binning=binning, norm=norm)
        super().__init__(estimate, streaming=streaming, ignore_index=ignore_index, **kwargs)


class SmoothECE(SortedMetric):
    """Smooth calibration error; see :func:`smooth_ece`.

    Example:
        >>> from calibrant.metrics import SmoothECE
        >>> metric = SmoothECE()
        >>> metric.update([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2)  # every batch
        >>> round(float(metric.compute()), 4)
        0.232
    """

    def __init__(self, *, streaming: bool = False, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(estimators.smooth_error, streaming=streaming, ignore_index=ignore_index, **kwargs)


class NLL(LogitsMetric):
    """Negative log-likelihood; see :func:`nll`.

    Example:
        >>> from calibrant.metrics import NLL
        >>> metric = NLL()
        >>> metric.update([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2)  # every batch
        >>> round(float(metric.compute()), 4)
        1.0181
    """

    def __init__(self, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(ScoreSums(scores.negative_log_likelihood, ignore_index=ignore_index), **kwargs)


class BrierScore(LogitsMetric):
    """Brier score, summed over classes; see :func:`brier_score`.

    Example:
        >>> from calibrant.metrics import BrierScore
        >>> metric = BrierScore()
        >>> metric.update([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2)  # every batch
        >>> round(float(metric.compute()), 4)
        0.4827
    """

    def __init__(self, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(ScoreSums(scores.brier, ignore_index=ignore_index), **kwargs)


class MeanIoU(LogitsMetric):
    """Mean intersection over union, pooled over pixels; see :func:`mean_iou`.

    Example:
        >>> from calibrant.metrics import MeanIoU
        >>> import torch
        >>> logits = torch.tensor([4.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 2, 4)
        >>> target = torch.tensor([[[0, 0, 0, 1], [0, 0, 0, 1]]])
        >>> metric = MeanIoU(num_classes=2)
        >>> metric.update(logits, target)
        >>> round(float(metric.compute()), 4)
        0.375
    """

    higher_is_better = True

    def __init__(
        self, num_classes: int, *, rule: segmentation.Rule = "standard", ignore_index: int = -100, **kwargs: Any
    ) -> None:
        whole("num_classes", num_classes, 2)
        self.rule: segmentation.Rule = one_of("rule", rule, ("standard", "released"))
        super().__init__(AreaSums(num_classes, rule, ignore_index=ignore_index), **kwargs)


class PerImage(LogitsMetric):
    """Mean over images of a metric of each image's pixels; see :func:`per_image`.

    Args:
        metric: A function such as :func:`ece`.
        ignore_index: Label of pixels to ignore.
        probs: True if batches are probabilities; see :class:`calibrant.inputs.Given`.
        task: ``"binary"`` if there is one score per pixel.
        **options: Passed on to ``metric``.

    Example:
        >>> from calibrant.functional import ece
        >>> from calibrant.metrics import PerImage
        >>> import torch
        >>> logits = torch.tensor([4.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 2, 4)
        >>> target = torch.tensor([[[0, 0, 0, 1], [0, 0, 0, 1]]])
        >>> metric = PerImage(ece, num_bins=10)
        >>> metric.update(logits, target)
        >>> round(float(metric.compute()), 4)
        0.232
    """

    def __init__(
        self,
        metric: Callable[..., Tensor],
        *,
        ignore_index: int = -100,
        probs: bool | None = None,
        task: Task = "multiclass",
        **options: Any,
    ) -> None:
        self.metric, self.options = metric, options
        super().__init__(_ImageSums(metric, options, ignore_index=ignore_index), probs=probs, task=task)


class _ImageSums(Sums):
    def __init__(self, metric: Callable[..., Tensor], options: dict[str, Any], *, ignore_index: int) -> None:
        super().__init__(ignore_index=ignore_index)
        self.metric, self.options = metric, options

    def zeros(self) -> dict[str, Tensor]:
        return {"total": torch.zeros((), dtype=torch.float64), "images": torch.zeros((), dtype=torch.int64)}

    def of(self, samples: tensors.Samples) -> dict[str, Tensor]:
        found = {name: part.to(samples.logits.device) for name, part in self.zeros().items()}
        target = samples.labels(self.ignore_index)
        for i in segmentation.labelled_images(samples):
            image = samples.logits[i : i + 1], target[i : i + 1]
            value = self.metric(*image, ignore_index=self.ignore_index, **segmentation.reading(samples), **self.options)
            found["total"] += value.to(found["total"])
            found["images"] += 1
        return found

    def value(self, state: Mapping[str, Tensor]) -> Tensor:
        return state["total"] / state["images"]


class CalibrationPanel(LogitsMetric):
    """Everything at once: accuracy, proper scores, and all calibration errors, overall, by class and by group.

    See :class:`calibrant.metrics.Panel`, which is the same without torchmetrics.

    Args:
        num_classes: Number of classes K, 2 for an event, or of labels.
        num_bins: Number of bins for the binned errors.
        groups: Lists of classes by group name, such as those of :func:`class_groups`.
        ignore_index: Label of samples or pixels to ignore.
        **kwargs: ``probs``, ``task`` and arguments of ``torchmetrics.Metric``.

    Example:
        >>> from calibrant.metrics import CalibrationPanel
        >>> panel = CalibrationPanel(num_classes=2)
        >>> panel.update([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2)  # every batch
        >>> scalars = panel.compute().scalars()  # floats, for loggers
        >>> scalars["accuracy"], round(scalars["ece"], 4), round(scalars["nll"], 4)
        (0.75, 0.232, 1.0181)
    """

    def __init__(
        self,
        num_classes: int,
        *,
        num_bins: int = 15,
        groups: Mapping[str, Sequence[int]] | None = None,
        ignore_index: int = -100,
        **kwargs: Any,
    ) -> None:
        task = kwargs.get("task", "multiclass")
        panel = Panel(num_classes, num_bins=num_bins, groups=groups, ignore_index=ignore_index, task=task)
        super().__init__(panel, **kwargs)
        self.num_bins, self.groups = panel.num_bins, panel.groups

    def _bins(self) -> BinStatistics:
        bins: BinStatistics = self.compute().bins
        return bins
