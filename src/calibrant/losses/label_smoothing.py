from typing import TYPE_CHECKING

from torch import Tensor

from calibrant.checks import in_range
from calibrant.losses.base import Loss, reduce_finite
from calibrant.losses.targets import Options, batch, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options
def label_smoothing_loss(logits: Tensor, target: Tensor, *, alpha: float = 0.05, **options: "Unpack[Options]") -> Tensor:
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
    in_range("alpha", alpha, 0, 1)
    given = batch(logits, target, **options)
    if not alpha:  # a masked class, whose log s is -infinity, must not matter
        return given.reduce(given.nll())
    if given.soft or given.class_weights is not None:
        given = given.smoothed(alpha)
        return reduce_finite(given.nll(), given)
    log_s = given.logits.log_softmax(dim=1)
    values = (alpha - 1) * given.expected(log_s) - alpha * log_s.mean(dim=1)
    return reduce_finite(values, given)


class LabelSmoothing(Loss):
    """Label smoothing; see :func:`label_smoothing_loss`.

    Args:
        alpha: Mass taken from the label and spread over all classes, in [0, 1].
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import LabelSmoothing
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(LabelSmoothing(alpha=0.1)(logits, target)), 4)
        0.5629
    """

    @with_options
    def __init__(self, *, alpha: float = 0.05, **options: "Unpack[Options]") -> None:
        super().__init__(**options)
        self.alpha = in_range("alpha", alpha, 0, 1)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return label_smoothing_loss(logits, target, alpha=self.alpha, **self.options)
