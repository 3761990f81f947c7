from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from calibrant.checks import in_range
from calibrant.losses.base import Loss
from calibrant.losses.label_smoothing import label_smoothing_loss
from calibrant.losses.targets import Options, batch, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options
def cross_entropy_loss(logits: Tensor, target: Tensor, **options: "Unpack[Options]") -> Tensor:
    r"""Cross-entropy, :math:`-\log s_y` with :math:`s = \mathrm{softmax}(l)` (CALS Eq. 1).

    For soft targets q: :math:`-\sum_k q_k \log s_k`.

    Example:
        >>> import torch
        >>> from calibrant.functional import cross_entropy_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(cross_entropy_loss(logits, target)), 4)
        0.4795
    """
    given = batch(logits, target, **options)
    return given.reduce(given.nll())


class CrossEntropy(Loss):
    """Cross-entropy; see :func:`cross_entropy_loss`. Equals ``torch.nn.CrossEntropyLoss`` for the same arguments.

    Args:
        label_smoothing: Probability mass taken from the label and spread over all classes, as in :class:`LabelSmoothing`.
        weight: Another name for ``class_weights``.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import CrossEntropy
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(CrossEntropy()(logits, target)), 4)
        0.4795
    """

    @with_options
    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        weight: Tensor | Sequence[float] | None = None,
        **options: "Unpack[Options]",
    ) -> None:
        if weight is not None:
            if options.get("class_weights") is not None:
                raise ValueError("weight and class_weights are the same: pass one of them")
            options["class_weights"] = weight
        super().__init__(**options)
        self.label_smoothing = in_range("label_smoothing", label_smoothing, 0, 1)

    @property
    def weight(self) -> Tensor | None:
        """The class weights."""
        return self.class_weights

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        if self.label_smoothing:
            return label_smoothing_loss(logits, target, alpha=self.label_smoothing, **self.options)
        return cross_entropy_loss(logits, target, **self.options)
