from torch import Tensor

from calibrant import tensors
from calibrant.checks import in_range
from calibrant.losses.base import Loss, reduce_finite
from calibrant.tensors import Reduction


def label_smoothing_loss(
    logits: Tensor, target: Tensor, *, alpha: float = 0.05, ignore_index: int = -100, reduction: Reduction = "mean"
) -> Tensor:
    r"""Label smoothing: cross-entropy with the label mixed with the uniform distribution.

    .. math:: -(1 - \alpha) \log s_y - \frac{\alpha}{K} \sum_{k=1}^K \log s_k

    The mass :math:`\alpha` is spread over all K classes, the true one included, as in ``torch.nn.CrossEntropyLoss``.

    Example:
        >>> import torch
        >>> from calibrant.functional import label_smoothing_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(label_smoothing_loss(logits, target)), 4)
        0.5212
    """
    in_range("alpha", alpha, 0, 1)
    samples = tensors.for_training(logits, target, ignore_index)
    log_s = samples.logits.log_softmax(dim=1)
    values = (alpha - 1) * log_s.gather(1, samples.target.unsqueeze(1)).squeeze(1)
    if alpha:  # without it, a masked class, whose log s is -infinity, must not matter
        values = values - alpha * log_s.mean(dim=1)
    return reduce_finite(values, samples, reduction)


class LabelSmoothing(Loss):
    """Label smoothing; see :func:`label_smoothing_loss`.

    Args:
        alpha: Mass taken from the label and spread over all classes, in [0, 1].
        ignore_index: Label of samples or pixels to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> from calibrant.losses import LabelSmoothing
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(LabelSmoothing(alpha=0.1)(logits, target)), 4)
        0.5629
    """

    def __init__(self, *, alpha: float = 0.05, ignore_index: int = -100, reduction: Reduction = "mean") -> None:
        super().__init__(ignore_index=ignore_index, reduction=reduction)
        self.alpha = in_range("alpha", alpha, 0, 1)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return label_smoothing_loss(
            logits, target, alpha=self.alpha, ignore_index=self.ignore_index, reduction=self.reduction
        )
