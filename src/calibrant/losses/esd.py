from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from calibrant import tensors
from calibrant.checks import in_range
from calibrant.losses.auxiliary import PenalisedLoss, add_penalty, cross_entropy_with_penalty, root, top_label
from calibrant.losses.base import Loss
from calibrant.losses.sorting import order_with_ties, running_sum
from calibrant.losses.targets import Batch, Options, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options
def esd_loss(logits: Tensor, target: Tensor, *, weight: float = 4.0, **options: "Unpack[Options]") -> Tensor:
    r"""Cross-entropy plus the expected squared difference of accuracy and confidence (ESD, Yoon et al. 2023).

    With r the probability of the predicted class and c = 1 where it is the true one, else 0,

    .. math:: -\log s_y + w \sqrt{\max(0, \mathrm{ESD})}, \qquad
              \mathrm{ESD} = \frac1N \sum_i \frac{(\sum_j g_{ij})^2 - \sum_j g_{ij}^2}{(N - 1)(N - 2)}, \qquad
              g_{ij} = (c_j - r_j)\, 1[r_j \le r_i], \quad j \ne i

    The estimator has no bins and no bias, so it may be negative, where the penalty and its gradient are 0; fewer than three
    samples have none. On sorted confidences the double sums are running sums: exact, in O(N log N) time and O(N) memory.
    The penalty belongs to the whole batch: with ``reduction="none"`` it is added in full to every sample. For soft
    targets q, c is the probability of the predicted class under q.

    Example:
        >>> import torch
        >>> from calibrant.functional import esd_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 1.0, 3.0]]), torch.tensor([0, 1, 2])
        >>> round(float(esd_loss(logits, target)), 4)
        1.2462
    """
    return cross_entropy_with_penalty(logits, target, weight, esd, options)


def esd(given: Batch) -> Tensor:
    """The penalty of ESD, a root."""
    confidence, correct = (tensors.double(values.flatten()) for values in top_label(given))
    kept = given.kept.flatten().to(confidence.device)
    order, _, last = order_with_ties(confidence.detach())
    gap = (correct - confidence)[order]
    up_to = running_sum(torch.stack([gap, gap.square()]))[:, last]  # over all samples that are not more confident
    sums, squares = up_to[0] - gap, up_to[1] - gap.square()
    n = kept.sum()
    total = torch.where(kept[order], sums.square() - squares, 0).sum()
    return root(total / (n * (n - 1) * (n - 2)).clamp(min=1)).to(given.logits.device)


class ESD(PenalisedLoss):
    """Any loss plus the expected squared difference of accuracy and confidence; see :func:`esd_loss`.

    Args:
        weight: Weight of the penalty.
        base: The loss it is added to: a key of :data:`calibrant.losses.METHODS`, or a loss.
        apart: Share of each batch, its last samples, that only the penalty sees, while the base loss sees the others. The
            authors compute the two on disjoint data, with a tenth of the training set for the penalty.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import ESD
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 1.0, 3.0]]), torch.tensor([0, 1, 2])
        >>> round(float(ESD(weight=1.0)(logits, target)), 4)
        0.5938
    """

    @with_options
    def __init__(
        self, *, weight: float = 4.0, base: str | Loss = "ce", apart: float = 0.0, **options: "Unpack[Options]"
    ) -> None:
        super().__init__(weight, base, **options)
        self.apart = in_range("apart", apart, 0, 0.9)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        if not self.apart:
            return super().forward(logits, target)
        own = len(logits) - round(self.apart * len(logits))
        seen, unseen = self.unweighted(logits[:own], target[:own]), self.unweighted(logits[own:], target[own:])
        loss = add_penalty(self._loss(logits[:own], target[:own]), seen, self.weight * self.penalty(unseen))
        if self.reduction != "none":
            return loss
        return functional.pad(loss, (*[0, 0] * (loss.dim() - 1), 0, len(logits) - own))

    def penalty(self, given: Batch) -> Tensor:
        """The penalty of a batch."""
        return esd(given)
