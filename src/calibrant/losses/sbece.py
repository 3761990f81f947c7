from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from calibrant.checks import in_range, one_of, whole
from calibrant.losses.auxiliary import PenalisedLoss, count, cross_entropy_with_penalty, root, top_label
from calibrant.losses.base import Loss
from calibrant.losses.targets import Batch, Options, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

Form = Literal["label-binned", "binned", "label-binned-squared"]


@with_options
def sbece_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: float = 2.0,
    num_bins: int = 15,
    temperature: float = 0.01,
    form: Form = "label-binned",
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Cross-entropy plus the soft-binned calibration error of the batch (SB-ECE, Karandikar et al. 2021).

    With r the probability of the predicted class and c = 1 where it is the true one, else 0, a sample belongs to bin b
    with midpoint :math:`\xi_b` by the share :math:`w_{ib} = \mathrm{softmax}_b(-(r_i - \xi_b)^2 / T)`, and
    :math:`A_b` and :math:`R_b` are the means of c and r with these weights. The penalty is, for the three quantities that
    go by this name,

    .. math::
        \text{label-binned} \quad & \sqrt{\tfrac1N \textstyle\sum_{i,b} w_{ib} (A_b - r_i)^2} \\
        \text{binned} \quad & \sqrt{\tfrac1N \textstyle\sum_{i,b} w_{ib} (A_b - R_b)^2} \\
        \text{label-binned-squared} \quad & \tfrac1N \textstyle\sum_{i,b} w_{ib} (A_b - r_i)^2

    Bins divide [0, 1], in the last form [1 / K, 1] as in the authors' code, which also mixes :math:`10^{-5}` of the
    uniform distribution into the shares. At 0, where the root has no derivative, the gradient is 0. The penalty belongs to
    the whole batch: with ``reduction="none"`` it is added in full to every sample. For soft targets q, c is the probability
    of the predicted class under q.

    Example:
        >>> import torch
        >>> from calibrant.functional import sbece_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(sbece_loss(logits, target)), 4)
        1.2434
    """
    _check(num_bins, temperature, form)
    return cross_entropy_with_penalty(
        logits, target, weight, lambda given: sbece(given, num_bins, temperature, form), options
    )


def _check(num_bins: int, temperature: float, form: Form) -> None:
    whole("num_bins", num_bins, 1)
    in_range("temperature", temperature, 0, above=True)
    one_of("form", form, get_args(Form))


def sbece(given: Batch, num_bins: int, temperature: float, form: Form) -> Tensor:
    r"""The penalty of SB-ECE, its square Q for each bin and sample in one pass, and the gradient in another.

    With :math:`h_{ib}` the derivative of Q with respect to :math:`w_{ib}`, which moves by
    :math:`\frac2T w_{ib} (\xi_b - \sum_a w_{ia} \xi_a)` as r does, the derivative of Q with respect to :math:`r_i` is
    :math:`\frac2T \sum_b w_{ib} h_{ib} (\xi_b - \sum_a w_{ia} \xi_a)`, plus what does not come from the shares.
    """
    confidence, correct = (values.flatten() for values in top_label(given))
    kept, number = given.kept.flatten(), count(given)
    with torch.no_grad():
        r = confidence.detach()
        # Bins by samples: sums over a first dimension are several times faster than over a short last one.
        midpoints = (torch.arange(num_bins, device=r.device, dtype=r.dtype).unsqueeze(1) + 0.5) / num_bins
        mixed, lowest = (1e-5, 1 / given.logits.shape[1]) if form == "label-binned-squared" else (0.0, 0.0)
        midpoints = lowest + (1 - lowest) * midpoints
        soft = (r - midpoints).square_().mul_(-1 / temperature).softmax(dim=0).mul_(kept)
        shares = soft if not mixed else (1 - mixed) * soft + mixed / num_bins * kept
        # Not as matrix products, which autocast would round.
        mass, hits, total = shares.sum(dim=1), (shares * correct).sum(dim=1), (shares * r).sum(dim=1)
        if form == "binned":
            least = mass.clamp(min=1e-5)
            gap = (total - hits) / least
            square = (mass * gap.square()).sum() / number
            pull = 2 * gap * mass / least
            slopes = pull.unsqueeze(1) * (r - correct) + (gap.square() - pull * gap * (mass >= least)).unsqueeze(1)
            direct = (pull.unsqueeze(1) * shares).sum(dim=0)
        else:
            # Bins so far from all samples do not matter, but 1 / mass must not overflow.
            per_mass = 1 / mass.clamp(min=1e-30).unsqueeze(1)
            accuracy = hits.unsqueeze(1) * per_mass
            distance = accuracy - r
            direct = -2 * (shares * distance).sum(dim=0)
            slopes = distance.square_()
            square = (shares * slopes).sum() / number
            slopes.add_(2 * (hits - total).unsqueeze(1) * per_mass * (correct - accuracy))
        moved = slopes.mul_(soft)
        along = (moved * midpoints).sum(dim=0) - moved.sum(dim=0) * (soft * midpoints).sum(dim=0)
        gradient = (direct + 2 * (1 - mixed) / temperature * along) / number
    # The value, and nothing that is added to it, with its gradient.
    known = square + (gradient * (confidence - r)).sum()
    return known if form == "label-binned-squared" else root(known)


class SBECE(PenalisedLoss):
    """Any loss plus the soft-binned calibration error of the batch; see :func:`sbece_loss`.

    Args:
        weight: Weight of the penalty.
        num_bins: Number of bins.
        temperature: Softness T of the bins.
        form: Which of the three quantities of this name: ``"label-binned"``, ``"binned"`` or ``"label-binned-squared"``.
        base: The loss it is added to: a key of :data:`calibrant.losses.METHODS`, or a loss.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import SBECE
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(SBECE(form="binned")(logits, target)), 4)
        1.2397
    """

    @with_options
    def __init__(
        self,
        *,
        weight: float = 2.0,
        num_bins: int = 15,
        temperature: float = 0.01,
        form: Form = "label-binned",
        base: str | Loss = "ce",
        **options: "Unpack[Options]",
    ) -> None:
        super().__init__(weight, base, **options)
        _check(num_bins, temperature, form)
        self.num_bins, self.temperature = num_bins, temperature
        self.form: Form = form

    def penalty(self, given: Batch) -> Tensor:
        """The penalty of a batch."""
        return sbece(given, self.num_bins, self.temperature, self.form)
