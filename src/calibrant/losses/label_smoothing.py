from typing import TYPE_CHECKING, Literal

from torch import Tensor

from calibrant.checks import in_range
from calibrant.losses.base import Loss, reduce_finite
from calibrant.losses.targets import Options, batch, with_options
from calibrant.losses.temperature import AutoStrength, Scalar, Strength

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options
def label_smoothing_loss(logits: Tensor, target: Tensor, *, alpha: Scalar = 0.05, **options: "Unpack[Options]") -> Tensor:
    r"""Label smoothing: cross-entropy with the label mixed with the uniform distribution.

    .. math:: -(1 - \alpha) \log s_y - \frac{\alpha}{K} \sum_{k=1}^K \log s_k

    The mass :math:`\alpha` is spread over all K classes, the true one included, as in ``torch.nn.CrossEntropyLoss``. Soft
    targets q become :math:`(1 - \alpha) q + \alpha / K`.

    Example:
        >>> import torch
        >>> from calibrant.functional import label_smoothing_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(label_smoothing_loss(logits, target)), 4)
        0.5212
    """
    _check(alpha)
    given = batch(logits, target, **options)
    if not isinstance(alpha, Tensor) and not alpha:  # a masked class, whose log s is -infinity, must not matter
        return given.reduce(given.nll())
    if given.soft or given.class_weights is not None:
        given = given.smoothed(alpha)
        return reduce_finite(given.nll(), given)
    log_s = given.logits.log_softmax(dim=1)
    values = (alpha - 1) * given.expected(log_s) - alpha * log_s.mean(dim=1)
    return reduce_finite(values, given)


def _check(alpha: Scalar) -> None:
    if not isinstance(alpha, Tensor):
        in_range("alpha", alpha, 0, 1)


class LabelSmoothing(Loss):
    """Label smoothing; see :func:`label_smoothing_loss`.

    Args:
        alpha: Mass taken from the label and spread over all classes, in [0, 1]. ``"auto"`` builds
            :class:`LabelSmoothingAuto`, which needs no choice but validation data.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import LabelSmoothing
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(LabelSmoothing(alpha=0.1)(logits, target)), 4)
        0.5629
    """

    alpha: Scalar

    @with_options
    def __init__(self, *, alpha: float | Literal["auto"] = 0.05, **options: "Unpack[Options]") -> None:
        if type(self) is LabelSmoothing and alpha == "auto":
            self.__class__ = LabelSmoothingAuto
        super().__init__(**options)
        self._hold("alpha", alpha)
        _check(self.alpha)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return label_smoothing_loss(logits, target, alpha=self.alpha, **self.options)


class LabelSmoothingAuto(LabelSmoothing, AutoStrength):
    r"""Label smoothing that finds its own mass; see :func:`label_smoothing_loss`. Our own, unpublished.

    After each epoch alpha grows if the temperature that best fits the validation samples is above 1, and shrinks if it is
    below: :class:`calibrant.losses.temperature.Strength` has the formula. The distances between logits change with the
    logarithm of alpha, so that its steps are four times those of a margin.

    Args:
        alpha: Initial alpha; where it ends does not depend on it.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Attributes:
        alpha: Mass taken from the label, a scalar.
        start: Its value at the start of training.
        temperature: The temperature that fitted best at the last :meth:`adapt`; above 1 if the network was overconfident.
        epoch: Number of calls of :meth:`adapt`.

    Example:
        >>> import torch
        >>> from calibrant.losses import LabelSmoothing
        >>> logits, target = torch.tensor([[20.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), torch.tensor([1, 1])
        >>> loss = LabelSmoothing(alpha="auto")
        >>> loss(logits.requires_grad_(), target).backward()  # every training step
        >>> loss.observe(logits, target)  # every validation batch
        >>> loss.adapt()  # once per epoch
        >>> round(float(loss.temperature), 2), round(float(loss.alpha), 3)  # sure of a wrong class
        (1.72, 0.148)
    """

    strength = Strength("alpha", usual=0.05, bounds=(1e-3, 0.5), gain=-0.25)
    learned = ("alpha", "start", "temperature")
    logged = ("alpha", "temperature")
    alpha: Tensor

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        # Of a copy, so that adapt() may come between forward and backward.
        return label_smoothing_loss(logits, target, alpha=self.alpha.clone(), **self.options)
