"""Penalties on a batch as a whole, which can be added to any loss."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant import losses
from calibrant.checks import in_range
from calibrant.errors import lookup
from calibrant.losses.base import AdaptiveLoss, Loss, predictive, with_gradient
from calibrant.losses.cross_entropy import cross_entropy_loss
from calibrant.losses.sorting import largest
from calibrant.losses.targets import Batch, Options, batch, without_weights

if TYPE_CHECKING:
    from typing_extensions import Unpack


class PenalisedLoss(Loss):
    """A loss plus a weighted penalty on the batch as a whole.

    The penalty is added once to the mean of the base loss, and in full to every sample with ``reduction="none"``. Class
    weights are the base loss's: they do not weight the penalty. Samples labelled ``ignore_index`` are left out of both.

    Args:
        weight: Weight of the penalty.
        base: The loss it is added to: a key of :data:`calibrant.losses.METHODS`, or a loss, whose options then apply.
        base_options: Options of a base given by its key.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import MbLS, PenalisedLoss
        >>> class LargeLogits(PenalisedLoss):
        ...     def penalty(self, given):
        ...         return given.logits.square().mean()
        >>> loss = LargeLogits(weight=0.1, base=MbLS())
        >>> round(float(loss(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 1]))), 3)
        0.499
    """

    def __init__(
        self, weight: float, base: str | Loss, base_options: Mapping[str, Any] | None = None, **options: "Unpack[Options]"
    ) -> None:
        loss = _base(base, base_options or {}, options)
        super().__init__(**loss.options)
        self.weight = in_range("weight", weight, 0)
        self.base = base
        self._loss = loss

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        given = self.unweighted(logits, target)
        return add_penalty(self._loss(logits, target), given, self.weight * self.penalty(given))

    def unweighted(self, logits: Tensor, target: Tensor) -> Batch:
        """What the penalty sees: predictions and targets, without class weights."""
        return batch(self.predictive(logits), target, **without_weights(self.options))

    @abstractmethod
    def penalty(self, given: Batch) -> Tensor:
        """The penalty of a batch, a scalar."""

    def predictive(self, logits: Tensor) -> Tensor:
        """What the base loss predicts from logits."""
        return predictive(self._loss, logits)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"  # which shows the base as it was passed


def _base(base: str | Loss, base_options: Mapping[str, Any], options: Options) -> Loss:
    if isinstance(base, Loss) and options:
        raise ValueError(f"{', '.join(options)}: these options are those of the base, pass them to {type(base).__name__}")
    if isinstance(base, type):
        raise TypeError(f"base must be the key of a loss or a loss, not its class: pass {base.__name__}()")
    if isinstance(base, str):
        lookup(base, losses.METHODS, "base")
    if not isinstance(base, str | Loss):
        raise TypeError(f'base must be the key of a loss, such as "ce", or a loss, got {type(base).__name__}')
    loss = base if isinstance(base, Loss) else losses.create(base, num_classes=2, **base_options, **options)
    if isinstance(loss, AdaptiveLoss):
        raise TypeError(f"base must be a loss that learns nothing from validation data, which {type(loss).__name__} does")
    return loss


def add_penalty(loss: Tensor, given: Batch, penalty: Tensor) -> Tensor:
    """Add a penalty on a batch to its loss; if everything is ignored, both are 0."""
    return loss + given.reduce(penalty.to(given.logits.dtype).expand(given.kept.shape))


def cross_entropy_with_penalty(
    logits: Tensor, target: Tensor, weight: float, penalty: Callable[[Batch], Tensor], options: Options
) -> Tensor:
    """Cross-entropy plus a weighted penalty on the batch."""
    in_range("weight", weight, 0)
    given = batch(logits, target, **without_weights(options))
    return add_penalty(cross_entropy_loss(logits, target, **options), given, weight * penalty(given))


def top_label(given: Batch) -> tuple[Tensor, Tensor]:
    r"""Confidence r of each prediction, with its gradient, and the probability that it is correct; 0 where ignored.

    The gradient is :math:`r (e_{\hat y} - s)`: one temporary instead of autograd's three.
    """
    prediction = largest(given.logits)
    with torch.no_grad():
        s, top = given.logits.softmax(dim=1), prediction.unsqueeze(1)
        confidence = s.gather(1, top)
        gradient = s.mul_(-confidence).scatter_add_(1, top, confidence)
    known = with_gradient(given.logits, confidence.squeeze(1), gradient)
    return torch.where(given.kept, known, 0), torch.where(given.kept, given.probability_of(prediction), 0)


def correctness(given: Batch) -> Tensor:
    """The probability that each prediction is correct; 0 where ignored."""
    return torch.where(given.kept, given.probability_of(largest(given.logits)), 0)


def root(square: Tensor) -> Tensor:
    """Square root with value and gradient 0 where ``square`` is not positive; anything smaller than 1e-24 is rounding."""
    return square.clamp(min=1e-24).sqrt() * (square > 1e-24)


def count(given: Batch) -> Tensor:
    """Number of samples that are not ignored, at least 1."""
    return given.kept.sum().clamp(min=1)
