from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from calibrant.checks import in_range, one_of
from calibrant.losses.base import Loss, reduce_finite, with_gradient
from calibrant.losses.targets import Batch, Options, batch, with_options
from calibrant.losses.temperature import AutoMargin, Scalar

if TYPE_CHECKING:
    from typing_extensions import Unpack

ClassReduction = Literal["mean", "sum"]

#: Adds up a penalty on logit distances. Called with the distances, which it may overwrite, and the gradient with respect to
#: the logits, from which it subtracts its derivative in the distances (or None if no gradient is needed). Returns the value
#: of the penalty and the sum of that derivative, both summed over classes with the dimension kept.
MarginPenalty = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]


def cross_entropy_with_margin(given: Batch, penalty: MarginPenalty) -> Tensor:
    r"""Cross-entropy plus a penalty on the logit distances :math:`d_k = \max_j l_j - l_k`, for each sample.

    One pass computes value and gradient together: chained tensor operations cost five times as much, nearly all of it
    for temporaries. The gradient, with :math:`g_k` the penalty's derivative in :math:`d_k` and T the
    classes that share the largest logit, is

    .. math:: s_k - 1[k = y] - g_k + \frac{1[k \in T]}{|T|} \sum_j g_j
    """
    logits = given.logits
    wants_gradient = torch.is_grad_enabled() and logits.requires_grad
    with torch.no_grad():
        largest = logits.amax(dim=1, keepdim=True)
        distance = largest - logits
        s = logits.softmax(dim=1)
        # -log s_y = d_y - log s_max: unlike s_y, s_max >= 1/K never underflows.
        mass = given.mass
        values = given.expected(distance).unsqueeze(1) - mass * s.amax(dim=1, keepdim=True).log_()
        if not wants_gradient:
            return (values + mass * penalty(distance, None)[0]).squeeze(1)
        if given.soft:  # with class weights, targets do not add up to 1, and the penalty is scaled likewise
            slopes = torch.zeros_like(s)
            value, slope = penalty(distance, slopes)
            value, slope = mass * value, mass * slope
            gradient = given.minus_target(s).add_(slopes.mul_(mass))
        else:
            gradient = given.minus_target(s)
            value, slope = penalty(distance, gradient)
        values += value
        top = distance.copy_(logits).eq_(largest)  # in floating point: booleans take several times as long
        gradient.addcmul_(top, slope / top.sum(dim=1, keepdim=True))
    return with_gradient(logits, values.squeeze(1), gradient)


def linear_penalty(margin: Scalar, multipliers: Tensor, scale: float) -> MarginPenalty:
    r"""``scale`` times :math:`\sum_k \lambda_k \max(0, d_k - m)`; ``multipliers`` broadcast along the classes."""

    def penalty(distance: Tensor, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
        excess = distance.sub_(margin).relu_().mul_(multipliers)
        value = excess.sum(dim=1, keepdim=True).mul_(scale)
        slope = excess.sign_().mul_(multipliers)
        if gradient is not None:
            gradient.sub_(slope, alpha=scale)
        return value, slope.sum(dim=1, keepdim=True).mul_(scale)

    return penalty


@with_options
def margin_loss(
    logits: Tensor,
    target: Tensor,
    *,
    margin: Scalar = 10.0,
    weight: float = 0.1,
    class_reduction: ClassReduction = "mean",
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Margin-based label smoothing (MbLS): cross-entropy with a linear penalty on logit distances beyond a margin.

    .. math:: -\log s_y + \frac{w}{K} \sum_{k=1}^K \max(0, \max_j l_j - l_k - m)

    ``class_reduction="sum"`` omits the 1/K: that is Eq. 3 as printed (CALS Eq. 3), K times as strong. Every published
    result was obtained with the mean. Classes that share the largest logit share its gradient. The penalty does not depend
    on labels: for soft targets q, only the first term changes, to :math:`-\sum_k q_k \log s_k`.

    Example:
        >>> import torch
        >>> from calibrant.functional import margin_loss
        >>> logits, target = torch.tensor([[20.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(margin_loss(logits, target, margin=10.0)), 4)
        0.3641
    """
    _check(margin, weight, class_reduction)
    given = batch(logits, target, **options)
    scale = 1 / given.logits.shape[1] if class_reduction == "mean" else 1.0
    penalty = linear_penalty(margin, given.logits.new_full((), weight), scale)
    return reduce_finite(cross_entropy_with_margin(given, penalty), given)


def _check(margin: Scalar, weight: float, class_reduction: ClassReduction) -> None:
    if not isinstance(margin, Tensor):
        in_range("margin", margin, 0)
    in_range("weight", weight, 0)
    one_of("class_reduction", class_reduction, get_args(ClassReduction))


class MbLS(Loss):
    """Margin-based label smoothing; see :func:`margin_loss`.

    Args:
        margin: Distance from the largest logit beyond which a logit is penalised; 10 for images, 6 for text in the papers.
            ``"auto"`` builds :class:`MbLSAuto`, whose margin needs no choice but validation data.
        weight: Weight of the penalty.
        class_reduction: ``"mean"`` over classes, as in every published result, or ``"sum"``, Eq. 3 of the paper.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import MbLS
        >>> logits, target = torch.tensor([[20.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(MbLS(margin=6.0)(logits, target)), 4)
        0.4975
    """

    margin: Scalar

    @with_options
    def __init__(
        self,
        *,
        margin: float | Literal["auto"] = 10.0,
        weight: float = 0.1,
        class_reduction: ClassReduction = "mean",
        **options: "Unpack[Options]",
    ) -> None:
        if type(self) is MbLS and margin == "auto":
            self.__class__ = MbLSAuto
        super().__init__(**options)
        self._hold("margin", margin)
        _check(self.margin, weight, class_reduction)
        self.weight = weight
        self.class_reduction: ClassReduction = class_reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return margin_loss(
            logits, target, margin=self.margin, weight=self.weight, class_reduction=self.class_reduction, **self.options
        )


class MbLSAuto(MbLS, AutoMargin):
    r"""Margin-based label smoothing that finds its own margin; see :func:`margin_loss`. Our own, unpublished.

    After each epoch the margin shrinks if the temperature that best fits the validation samples is above 1, and grows if it
    is below: :class:`calibrant.losses.temperature.Strength` has the formula.

    Args:
        margin: Initial margin; where it ends does not depend on it.
        weight: Weight of the penalty.
        class_reduction: ``"mean"`` over classes or ``"sum"``.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Attributes:
        margin: The margin, a scalar.
        start: Its value at the start of training.
        temperature: The temperature that fitted best at the last :meth:`adapt`; above 1 if the network was overconfident.
        epoch: Number of calls of :meth:`adapt`.

    Example:
        >>> import torch
        >>> from calibrant.losses import MbLS
        >>> logits, target = torch.tensor([[20.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), torch.tensor([1, 1])
        >>> loss = MbLS(margin="auto")
        >>> loss(logits.requires_grad_(), target).backward()  # every training step
        >>> loss.observe(logits, target)  # every validation batch
        >>> loss.adapt()  # once per epoch
        >>> round(float(loss.temperature), 2), round(float(loss.margin), 2)  # sure of a wrong class
        (1.72, 7.63)
    """

    learned = ("margin", "start", "temperature")
    logged = ("margin", "temperature")
    margin: Tensor
