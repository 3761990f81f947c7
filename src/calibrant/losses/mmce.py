from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from calibrant import tensors
from calibrant.checks import in_range, one_of
from calibrant.losses.base import Loss, only_once
from calibrant.losses.sorting import order_with_ties, running_sum
from calibrant.losses.targets import Options, batch, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

Form = Literal["paper", "released"]


@with_options
def mmce_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: float = 0.1,
    weighted: bool = False,
    form: Form = "paper",
    width: float = 0.4,
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Cross-entropy plus the maximum mean calibration error of the batch (MMCE, Kumar et al. 2018).

    With r the probability of the predicted class and c = 1 where it is the true one, else 0,

    .. math:: -\log s_y + w \sqrt{\textstyle\sum_{i,j} a_i a_j\, e^{-|r_i - r_j| / h}}, \qquad a_i = \frac{c_i - r_i}{N}

    ``weighted`` replaces N by the number of correct predictions for correct ones, and of wrong predictions for wrong ones.
    ``form="released"`` follows the authors' code: without the root or, if weighted, normalised twice.

    On sorted confidences the kernel turns the double sum into running sums: exact, in O(N log N) time and O(N) memory.
    The penalty belongs to the whole batch: with ``reduction="none"`` it is added in full to every sample.
    For soft targets q, c is the probability of the predicted class under q.

    Example:
        >>> import torch
        >>> from calibrant.functional import mmce_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(mmce_loss(logits, target)), 4)
        0.5155
    """
    _check(weight, form, width)
    given = batch(logits, target, **options)
    prediction = given.logits.detach().max(dim=1).indices
    log_s = given.logits.log_softmax(dim=1)
    r = log_s.gather(1, prediction.unsqueeze(1)).squeeze(1).exp()
    correct = given.probability_of(prediction)
    penalty = _mmce(r, correct, given.kept, weighted=weighted, form=form, width=width)
    return given.reduce(given.scaled(weight * penalty) - given.expected(log_s))


def _check(weight: float, form: Form, width: float) -> None:
    in_range("weight", weight, 0)
    one_of("form", form, get_args(Form))
    in_range("width", width, 0.002)  # exp(1 / width) must fit in float64


def _mmce(r: Tensor, correct: Tensor, kept: Tensor, *, weighted: bool, form: Form, width: float) -> Tensor:
    """The penalty, a scalar."""
    r = tensors.double(torch.where(kept, r, 0).flatten())
    right, wrong = (torch.where(kept, part, 0).flatten().to(r) for part in (correct, 1 - correct))
    gram: Tensor = _LaplacianGram.apply(r, torch.stack([right * (1 - r), -wrong * r]), width)[0]
    m, n = right.sum(), wrong.sum()
    if weighted and form == "released":
        mean = _denominators(m, n) * (_denominators(m, n) + 1e-5)
        penalty = (gram / mean).sum().clamp(min=0).add(1e-10).sqrt() * ((m > 0) & (n > 0))
    elif form == "released":
        penalty = gram.sum() / (m + n).clamp(min=1).square()
    else:
        square = (gram / _denominators(m, n)).sum() if weighted else gram.sum() / (m + n).clamp(min=1).square()
        # The root has no derivative at 0; anything smaller than this is a rounding error.
        penalty = square.clamp(min=1e-24).sqrt() * (square > 1e-24)
    return penalty


def _denominators(m: Tensor, n: Tensor) -> Tensor:
    counts = torch.stack([m, n]).clamp(min=1)
    return counts[:, None] * counts


class _LaplacianGram(torch.autograd.Function):
    r"""Gram matrix :math:`G_{ab} = \sum_{i,j} A_{ai} A_{bj} e^{-|r_i - r_j| / h}` of the rows of A.

    Sorted by r, :math:`\sum_{j: r_j < r_i} A_j e^{-(r_i - r_j)/h} = e^{-r_i/h} \sum_{j: r_j < r_i} A_j e^{r_j/h}`, and
    likewise from above: running sums. With r in [0, 1], nothing overflows. Where confidences are equal the kernel
    has a kink; their pairs are left out of the derivative, so that it does not depend on the order of equal samples.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(r: Tensor, a: Tensor, width: float) -> tuple[Tensor, Tensor, Tensor]:
        order, first, last = order_with_ties(r)
        a_sorted = a[:, order]
        up = torch.exp(r[order] / width)
        down = 1 / up
        running = running_sum(a_sorted * up)
        below = running[:, first].mul_(down)
        ka = running[:, last].mul_(down)
        running = running_sum(a_sorted.mul_(down).flip(1)).flip(1)  # from above
        above = running[:, last].mul_(up)
        ka += above
        derivative = above.sub_(below).div_(width)
        ka, derivative = (torch.empty_like(a).index_copy_(1, order, x) for x in (ka, derivative))
        return a @ ka.T, ka, derivative

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor, Tensor]) -> None:
        _, ka, derivative = output
        ctx.mark_non_differentiable(ka, derivative)
        ctx.save_for_backward(*inputs[:2], ka, derivative)

    @staticmethod
    def backward(ctx: Any, grad_gram: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None]:
        r, a, ka, derivative = ctx.saved_tensors
        both = grad_gram + grad_gram.T
        return only_once(r, (a * (both @ derivative)).sum(dim=0)), only_once(r, both @ ka), None


class MMCE(Loss):
    """Cross-entropy plus the maximum mean calibration error of the batch; see :func:`mmce_loss`.

    Args:
        weight: Weight of the penalty (0.1 in CALS Appendix C).
        weighted: Weight correct and wrong predictions by the inverse of their number.
        form: ``"paper"`` for the formula, ``"released"`` for the authors' code.
        width: Width h of the kernel.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import MMCE
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(MMCE(weight=2.0, weighted=True)(logits, target)), 4)
        1.1998
    """

    @with_options
    def __init__(
        self,
        *,
        weight: float = 0.1,
        weighted: bool = False,
        form: Form = "paper",
        width: float = 0.4,
        **options: "Unpack[Options]",
    ) -> None:
        super().__init__(**options)
        _check(weight, form, width)
        self.weight, self.width = weight, width
        self.weighted = bool(weighted)
        self.form: Form = form

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return mmce_loss(
            logits, target, weight=self.weight, weighted=self.weighted, form=self.form, width=self.width, **self.options
        )
