from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant.losses.auxiliary import PenalisedLoss, count, cross_entropy_with_penalty, top_label
from calibrant.losses.base import Loss
from calibrant.losses.targets import Batch, Options, with_options
from calibrant.tensors import hidden

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options
def mdca_loss(logits: Tensor, target: Tensor, *, weight: float = 1.0, **options: "Unpack[Options]") -> Tensor:
    r"""Cross-entropy plus the multi-class difference of confidence and accuracy (MDCA, Hebbalaguppe et al. 2022).

    .. math:: -\log s_y + \frac{w}{K} \sum_{k=1}^K \left| \frac1N \sum_i s_{ik} - \frac1N \sum_i 1[y_i = k] \right|

    Classes that are absent from the batch count, too. The penalty belongs to the whole batch: with ``reduction="none"`` it
    is added in full to every sample. For soft targets q, :math:`q_{ik}` takes the place of :math:`1[y_i = k]`.

    Example:
        >>> import torch
        >>> from calibrant.functional import mdca_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(mdca_loss(logits, target)), 4)
        0.6317
    """
    return cross_entropy_with_penalty(logits, target, weight, mdca, options)


@with_options
def dca_loss(logits: Tensor, target: Tensor, *, weight: float = 1.0, **options: "Unpack[Options]") -> Tensor:
    r"""Cross-entropy plus the difference of confidence and accuracy (DCA).

    .. math:: -\log s_y + w \left| \frac1N \sum_i \max_k s_{ik} - \frac1N \sum_i 1[\hat y_i = y_i] \right|

    The penalty belongs to the whole batch: with ``reduction="none"`` it is added in full to every sample. For soft
    targets q, a prediction is correct with the probability that q gives it.

    Example:
        >>> import torch
        >>> from calibrant.functional import dca_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(dca_loss(logits, target)), 4)
        0.8588
    """
    return cross_entropy_with_penalty(logits, target, weight, dca, options)


def mdca(given: Batch) -> Tensor:
    """The penalty of MDCA."""
    logits, target, kept = given.logits, given.target, given.kept
    over_samples = [0, *range(2, logits.dim())]
    shares = _sum_over(logits.softmax(dim=1), kept.unsqueeze(1), over_samples)
    if given.soft:
        labels = target.sum(dim=over_samples)
    else:
        labels = torch.zeros_like(shares).scatter_add(0, target.flatten(), kept.flatten().to(shares.dtype))
    return (shares - labels).abs().mean() / count(given)


def _sum_over(values: Tensor, kept: Tensor, dim: list[int]) -> Tensor:
    """Sum over what is not ignored; what is may hold anything."""
    if values.is_cpu and not hidden(values):  # where selecting is slow, and needed only if something is not finite
        total = (values * kept).sum(dim=dim)
        if bool(total.isfinite().all()):
            return total
    return torch.where(kept, values, 0).sum(dim=dim)


def dca(given: Batch) -> Tensor:
    """The penalty of DCA."""
    confidence, correct = top_label(given)
    return (confidence.sum() - correct.sum()).abs() / count(given)


class MDCA(PenalisedLoss):
    """Any loss plus the multi-class difference of confidence and accuracy; see :func:`mdca_loss`.

    Args:
        weight: Weight of the penalty.
        base: The loss it is added to: ``"ce"``, ``"ls"``, ``"fl"`` or another key of :data:`calibrant.losses.METHODS`, or a
            loss.
        gamma: Exponent of the base ``"fl"``.
        alpha: Smoothing of the base ``"ls"``, which spreads it over all K classes; the authors' code spreads it over the
            K - 1 others, which is ``alpha`` times K / (K - 1) here.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import MDCA, MbLS
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(MDCA(base="fl", gamma=3.0)(logits, target)), 4)
        0.1809
        >>> round(float(MDCA(base=MbLS(margin=1.0))(logits, target)), 4)
        0.6484
    """

    @with_options
    def __init__(
        self,
        *,
        weight: float = 1.0,
        base: str | Loss = "ce",
        gamma: float = 1.0,
        alpha: float = 0.1,
        **options: "Unpack[Options]",
    ) -> None:
        own = {"fl": {"gamma": gamma}, "ls": {"alpha": alpha}}
        super().__init__(weight, base, own.get(base) if isinstance(base, str) else None, **options)
        self.gamma, self.alpha = gamma, alpha

    def penalty(self, given: Batch) -> Tensor:
        """The penalty of a batch."""
        return mdca(given)


class DCA(PenalisedLoss):
    """Any loss plus the difference of confidence and accuracy; see :func:`dca_loss`.

    Args:
        weight: Weight of the penalty.
        base: The loss it is added to: a key of :data:`calibrant.losses.METHODS`, or a loss.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import DCA
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(DCA(weight=10.0)(logits, target)), 4)
        4.2727
    """

    @with_options
    def __init__(self, *, weight: float = 1.0, base: str | Loss = "ce", **options: "Unpack[Options]") -> None:
        super().__init__(weight, base, **options)

    def penalty(self, given: Batch) -> Tensor:
        """The penalty of a batch."""
        return dca(given)
