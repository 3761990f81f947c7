"""skorch: calibrant's losses as the criterion of a ``NeuralNetClassifier``, and a callback that measures and adapts."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from skorch.callbacks import Callback
from skorch.dataset import unpack_data
from torch import Tensor

from calibrant.integrations.validation import Validation
from calibrant.losses import Loss
from calibrant.losses.base import predictive


def softmax(logits: Tensor) -> Tensor:
    """Probabilities of logits ``(N, K)``, for ``predict_nonlinearity``.

    Example:
        >>> import torch
        >>> from calibrant.integrations.skorch import softmax
        >>> softmax(torch.zeros(1, 2))
        tensor([[0.5000, 0.5000]])
    """
    return logits.softmax(dim=1)


def softmax_of(loss: Loss) -> Callable[[Tensor], Tensor]:
    """Probabilities of a network trained with a loss that changes logits first, such as LogitNorm.

    Example:
        >>> import torch
        >>> from calibrant.integrations.skorch import softmax_of
        >>> from calibrant.losses import LogitNorm
        >>> softmax_of(LogitNorm(temperature=1.0))(torch.tensor([[100.0, 0.0]]))
        tensor([[0.7311, 0.2689]])
    """
    return partial(_softmax_of, loss)


def _softmax_of(loss: Loss, logits: Tensor) -> Tensor:
    return predictive(loss, logits).softmax(dim=1)


class Calibration(Callback):  # type: ignore[misc]
    """Measures calibration on the held-out data after each epoch, and lets an adaptive criterion observe it and adapt.

    Metrics, and the multipliers or gammas, are recorded in the net's history as ``valid_ece`` and so on. List it before
    callbacks that monitor these, and before ``Checkpoint``, so that checkpoints hold the latest learned state.

    Args:
        metrics: Keys of the metrics to record; None for those of an audit.
        num_bins: Number of bins for the binned errors.

    Example:
        >>> from skorch import NeuralNetClassifier
        >>> from torch import nn
        >>> from calibrant.integrations.skorch import Calibration, softmax
        >>> from calibrant.losses import MbLS
        >>> net = NeuralNetClassifier(
        ...     nn.Linear, criterion=MbLS, criterion__margin=6, predict_nonlinearity=softmax, callbacks=[Calibration()]
        ... )
    """

    def __init__(self, metrics: Collection[str] | None = ("ece", "nll"), num_bins: int = 15) -> None:
        self.metrics, self.num_bins = metrics, num_bins

    def on_train_begin(self, net: Any, **others: Any) -> None:
        """Check that the net can be measured, and predicts probabilities."""
        del others
        if net.train_split is None:
            raise ValueError("Calibration needs held-out data, but there is none: train_split is None")
        if net.predict_nonlinearity == "auto" and isinstance(net.criterion_, Loss):
            raise ValueError(
                f"predict_proba would return logits, since skorch does not know {type(net.criterion_).__name__}: pass "
                "predict_nonlinearity=calibrant.integrations.skorch.softmax"
            )
        probe = torch.ones(1, 2)
        if net.predict_nonlinearity is softmax and predictive(net.criterion_, probe) is not probe:
            name = type(net.criterion_).__name__
            raise ValueError(
                f"predict_proba would not be what {name} trains, which changes logits before the softmax: pass "
                f"predict_nonlinearity=calibrant.integrations.skorch.softmax_of({name}(...))"
            )
        self.validation_ = Validation(net.criterion_, metrics=self.metrics, num_bins=self.num_bins)

    def on_epoch_begin(self, net: Any, **others: Any) -> None:
        """Start over."""
        del net, others
        self.validation_.forget()

    def on_batch_end(self, net: Any, *, batch: Any, training: bool, y_pred: Any, **others: Any) -> None:
        """Measure a batch of held-out data, and let the criterion observe it."""
        del others
        if training:
            return
        logits = y_pred[0] if isinstance(y_pred, tuple) else y_pred
        self.validation_.update(logits, unpack_data(batch)[1].to(net.device))

    def on_epoch_end(self, net: Any, **others: Any) -> None:
        """Let the criterion adapt, and record."""
        del others
        for name, value in self.validation_.finish().scalars.items():
            net.history.record(f"valid_{name}", value)
