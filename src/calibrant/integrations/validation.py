"""What all integrations do in a validation run: measure, observe, adapt."""

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from calibrant import tensors
from calibrant.checks import whole
from calibrant.distributed import sum_over_processes
from calibrant.errors import lookup
from calibrant.losses import AdaptiveLoss
from calibrant.losses.base import predictive
from calibrant.metrics import Panel, PanelResult
from calibrant.metrics.table import MEASURES


class Found(NamedTuple):
    """The result of a validation.

    Attributes:
        panel: What was measured.
        scalars: The chosen metrics and the learned weights of the loss, as plain floats for loggers.
    """

    panel: PanelResult
    scalars: dict[str, float]


class Validation:
    """Measures batches of validation logits, and lets an adaptive loss learn from them.

    Args:
        loss: The loss that the network is trained with, any module; None to measure only.
        metrics: Keys of the metrics in :data:`calibrant.metrics.MEASURES`; by default, those of an audit.
        num_bins: Number of bins for the binned errors.
        ignore_index: Label of samples or pixels to ignore; that of the loss if not given.

    Example:
        >>> import torch
        >>> from calibrant.integrations.validation import Validation
        >>> from calibrant.losses import CALSALM
        >>> validation = Validation(CALSALM(num_classes=2), metrics=["ece"])
        >>> validation.update(torch.tensor([[4.0, 0.0]] * 8), torch.tensor([0] * 6 + [1] * 2))
        >>> found = validation.finish()
        >>> found.panel.samples, sorted(found.scalars)[:2]
        (8, ['ece', 'multipliers_max'])
    """

    def __init__(
        self,
        loss: nn.Module | None = None,
        *,
        metrics: Collection[str] | None = None,
        num_bins: int = 15,
        ignore_index: int | None = None,
    ) -> None:
        if loss is not None and not isinstance(loss, nn.Module):
            raise TypeError(f"loss must be a loss, such as losses.CALSALM(num_classes=10), got {type(loss).__name__}")
        self.loss, self.metrics, self.num_bins = loss, metrics, whole("num_bins", num_bins, 1)
        for key in metrics or ():
            if not PanelResult.has(lookup(key, MEASURES, "metrics")):
                raise ValueError(f"metrics: {key!r} cannot be computed from the logits of validation batches alone")
        self.ignore_index = int(getattr(loss, "ignore_index", -100)) if ignore_index is None else ignore_index
        self.task: Any = getattr(loss, "task", "multiclass")
        self._panel: Panel | None = None

    @torch.no_grad()
    def update(self, logits: Tensor, target: Tensor, *, observe: bool = True) -> None:
        """Add a batch of the network's raw outputs; with ``observe``, an adaptive loss learns from it as well."""
        if self.task == "multiclass":
            tensors.for_training(logits, target, self.ignore_index, finite=True)  # also refuses probabilities
        if observe and isinstance(self.loss, AdaptiveLoss):
            self.loss.observe(logits, target)
        if self._panel is None:
            self._panel = self._new_panel(2 if self.task == "binary" else logits.shape[1])
        self._panel.update(logits if self.loss is None else predictive(self.loss, logits), target)

    def finish(self, *, adapt: bool = True, sync: bool = True) -> Found:
        """Return the result, and start over.

        Args:
            adapt: Whether an adaptive loss learns from what it observed; a collective call.
            sync: Whether the result covers all processes, a collective call, or this process alone.
        """
        panel, self._panel = self._panel, None
        # A process without samples does not know the number of classes.
        share = torch.tensor([panel.classes, 1] if panel else [0, 0])
        classes, seen = (sum_over_processes(share) if sync else share).tolist()
        if not seen:
            raise RuntimeError("there were no validation batches to measure")
        result: PanelResult = (panel or self._new_panel(classes // seen)).compute(sync=sync)
        scalars = result.scalars() if self.metrics is None else {key: result[key] for key in self.metrics}
        if adapt and isinstance(self.loss, AdaptiveLoss):
            self.loss.adapt()
            scalars |= learned_scalars(self.loss)
        return Found(result, scalars)

    def forget(self) -> None:
        """Drop what was measured."""
        self._panel = None

    def _new_panel(self, classes: int) -> Panel:
        return Panel(classes, num_bins=self.num_bins, ignore_index=self.ignore_index, task=self.task)


def learned_scalars(loss: AdaptiveLoss) -> dict[str, float]:
    """What a loss has learned: a margin, or the minimum, mean and maximum of its multipliers or gammas."""
    found: dict[str, float] = {}
    for name in loss.logged:
        value = loss.get_buffer(name).detach()
        if value.dim():
            found |= {f"{name}_{what}": float(getattr(value, what)()) for what in ("min", "mean", "max")}
        else:
            found[name] = float(value)
    return found
