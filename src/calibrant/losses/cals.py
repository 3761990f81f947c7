from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from calibrant import tensors
from calibrant.checks import in_range, whole
from calibrant.errors import lookup
from calibrant.losses.base import AdaptiveLoss, number_of_classes, reduce_finite
from calibrant.losses.lagrangian import SAFEGUARD, AugmentedLagrangian
from calibrant.losses.margin import cross_entropy_with_margin, linear_penalty
from calibrant.losses.penalties import PENALTIES
from calibrant.losses.targets import Batch, Options, batch, with_options
from calibrant.losses.temperature import AutoMargin, Scalar, logit_distances
from calibrant.tensors import per_class

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options
def cals_alm_loss(
    logits: Tensor,
    target: Tensor,
    multipliers: Tensor,
    rho: Tensor,
    *,
    margin: Scalar = 10.0,
    penalty: str = "phr",
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Class-adaptive label smoothing with the penalties of an augmented Lagrangian (CALS Eq. 11).

    .. math:: -\log s_y + \frac1K \sum_{k=1}^K P\left(\frac{d_k}{m} - 1, \rho_k, \lambda_k\right),
              \qquad d_k = \max_j l_j - l_k

    P is one of :data:`calibrant.losses.penalties.PENALTIES`; ``multipliers`` :math:`\lambda` and ``rho`` have shape
    ``(K,)``. Classes that share the largest logit share its gradient. The penalty does not depend on labels: for soft
    targets q, only the first term changes, to :math:`-\sum_k q_k \log s_k`.

    Example:
        >>> import torch
        >>> from calibrant.functional import cals_alm_loss
        >>> logits, target = torch.tensor([[20.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 1])
        >>> multipliers, rho = torch.full((3,), 0.1), torch.ones(3)
        >>> round(float(cals_alm_loss(logits, target, multipliers, rho)), 4)
        0.2266
    """
    _check_margin(margin)
    fused = lookup(penalty, PENALTIES, "penalty").fused
    given = batch(logits, target, num_classes=len(multipliers), **options)
    logits = given.logits
    lagrangian = fused(margin, per_class(rho, logits), per_class(multipliers, logits), logits.shape[1])
    return reduce_finite(cross_entropy_with_margin(given, lagrangian), given)


def _check_margin(margin: Scalar) -> None:
    if not isinstance(margin, Tensor):
        in_range("margin", margin, 0, above=True)  # the constraint is divided by it


@with_options
def cals_hr_loss(
    logits: Tensor,
    target: Tensor,
    multipliers: Tensor,
    *,
    margin: float = 10.0,
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Class-adaptive label smoothing with a linear penalty (CALS Eq. 5, averaged over classes).

    .. math:: -\log s_y + \frac1K \sum_{k=1}^K \lambda_k \max(0, \max_j l_j - l_k - m)

    ``multipliers`` :math:`\lambda` have shape ``(K,)``. Classes that share the largest logit share its gradient.

    Example:
        >>> import torch
        >>> from calibrant.functional import cals_hr_loss
        >>> logits, target = torch.tensor([[20.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(cals_hr_loss(logits, target, torch.full((3,), 0.1))), 4)
        0.3641
    """
    in_range("margin", margin, 0)
    given = batch(logits, target, num_classes=len(multipliers), **options)
    logits = given.logits
    penalty = linear_penalty(margin, per_class(multipliers, logits), 1 / logits.shape[1])
    return reduce_finite(cross_entropy_with_margin(given, penalty), given)


def over_samples(values: Tensor) -> Tensor:
    """Sum over samples, or pixels, for each class."""
    return tensors.sum_double(values, [0, *range(2, values.dim())])


class _ClassAdaptiveLoss(AdaptiveLoss):
    """One multiplier per class, learned from means over validation samples of functions of the logit distances."""

    #: How many functions are averaged.
    averages: ClassVar[int]
    margin: Scalar
    multipliers: Tensor
    _sums: Tensor
    _count: Tensor

    @with_options
    def __init__(self, num_classes: int, margin: Any, multiplier_init: float, **options: "Unpack[Options]") -> None:
        super().__init__(**options)
        self.num_classes = number_of_classes(num_classes, self.task)
        self._hold("margin", margin)
        self.multiplier_init = in_range("multiplier_init", multiplier_init, *SAFEGUARD)
        self.register_buffer("multipliers", torch.full((num_classes,), float(multiplier_init), dtype=torch.float32))
        self._forget()

    @abstractmethod
    def _add_functions(self, distance: Tensor) -> Iterator[Tensor]:
        """What is averaged: sums over samples of functions of their distances, which may be overwritten."""

    def _collect(self, given: Batch) -> None:
        for block in given.blocks():
            logits = block.logits.to(torch.promote_types(block.logits.dtype, self.multipliers.dtype))
            self._add(block, logit_distances(logits))

    def _add(self, given: Batch, distance: Tensor) -> None:
        """Add samples, none of them ignored, and overwrite their distances."""
        # Not in place: tensors made in inference mode cannot be updated outside of it.
        self._sums = self._sums + torch.stack(list(self._add_functions(distance))).cpu()
        self._count = self._count + given.kept.numel()

    def _means(self) -> Tensor:
        """Means over the samples of all processes, ``(averages, K)``."""
        return (self._add_up(self._sums) / self._add_up(self._count)).to(self.multipliers)

    def _observed(self) -> int:
        return int(self._count)

    def summary(self) -> str:
        """The mean multiplier."""
        return f"mean multiplier {float(self.multipliers.mean()):.3g}"

    def _forget(self) -> None:
        self._sums = torch.zeros(self.averages, self.num_classes, dtype=torch.float64, device="cpu")
        self._count = torch.zeros((), dtype=torch.int64, device="cpu")


class CALSALM(_ClassAdaptiveLoss, AugmentedLagrangian):
    r"""Class-adaptive label smoothing by an augmented Lagrangian (CALS-ALM); see :func:`cals_alm_loss`.

    After epoch j, with means over the validation samples (Algorithm 2):

    .. math::
        \lambda_k &\leftarrow \mathrm{mean}\, P'(d_k / m - 1, \rho_k, \lambda_k)
                  \quad\text{projected on } [10^{-6}, 10^6] \quad\text{(Eq. 12)} \\
        \bar d_k^{(j)} &= \mathrm{mean}\,(d_k / m - 1) \\
        \rho_k &\leftarrow \gamma \rho_k \quad\text{if } \bar d_k^{(j)} > \tau \max(0, \bar d_k^{(j-1)})

    rho changes only every ``rho_period`` epochs, but is always compared with the epoch just before, and stops at
    ``rho_max``, as in the released code.

    Args:
        num_classes: Number of classes K.
        margin: Scalar m on logit distances; 10 for images, 6 for text in the paper. ``"auto"`` builds
            :class:`CALSAuto`, whose margin needs no choice.
        penalty: ``"phr"``, ``"p2"`` or ``"p3"``. With ``"p3"`` multipliers grow in proportion to themselves: start them
            higher than 1e-6.
        multiplier_init: Initial multipliers.
        rho_init: Initial penalty parameters.
        gamma: Factor by which rho grows.
        tau: A constraint has improved if it fell below ``tau`` times its previous value.
        rho_period: Epochs between updates of rho; 0 keeps it fixed.
        rho_max: Largest rho, None for no limit (the paper gives none).
        multiplier_period: Epochs between updates of the multipliers.
        per_class: Learn a multiplier and a rho for each class. If False, all classes share one of each, learned from the
            means of the same statistics: the ablation that shows what per-class multipliers add.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Attributes:
        multipliers: Multipliers, ``(K,)``; all equal if ``per_class`` is False.
        rho: Penalty parameters, ``(K,)``.
        constraint: Mean of d / m - 1 on validation data at the last :meth:`adapt`, ``(K,)``; positive where the margin is
            violated on average.
        epoch: Number of calls of :meth:`adapt`.

    Example:
        >>> import torch
        >>> from calibrant.losses import CALSALM
        >>> logits, target = torch.tensor([[20.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 1])
        >>> loss = CALSALM(num_classes=3)
        >>> loss(logits.requires_grad_(), target).backward()  # every training step
        >>> loss.observe(logits, target)  # every validation batch
        >>> loss.adapt()  # once per epoch
        >>> [round(x, 4) for x in loss.multipliers.tolist()]
        [0.0, 0.5, 0.45]
    """

    averages = 2

    @with_options
    def __init__(
        self,
        num_classes: int,
        *,
        margin: float | Literal["auto"] = 10.0,
        penalty: str = "phr",
        multiplier_init: float = 1e-6,
        rho_init: float = 1.0,
        gamma: float = 1.2,
        tau: float = 0.9,
        rho_period: int = 10,
        rho_max: float | None = 10.0,
        multiplier_period: int = 1,
        per_class: bool = True,
        **options: "Unpack[Options]",
    ) -> None:
        if type(self) is CALSALM and margin == "auto":
            self.__class__ = CALSAuto
        super().__init__(num_classes, margin, multiplier_init, **options)
        _check_margin(self.margin)
        self._set_up(penalty, rho_init, gamma, tau, rho_period, rho_max, multiplier_period)
        self.per_class = bool(per_class)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return cals_alm_loss(
            logits, target, self.multipliers, self.rho, margin=self.margin, penalty=self.penalty, **self.options
        )

    def _add_functions(self, distance: Tensor) -> Iterator[Tensor]:
        z = distance.div_(self.margin).sub_(1)
        derivative = PENALTIES[self.penalty].derivative(z, per_class(self.rho, z), per_class(self.multipliers, z))
        yield over_samples(derivative)
        yield over_samples(z)

    def _learn(self) -> None:
        means = self._means()
        self._step(*(means if self.per_class else means.mean(dim=1, keepdim=True).expand_as(means)))


class CALSAuto(CALSALM, AutoMargin):
    r"""CALS-ALM that finds its own margin; see :func:`cals_alm_loss`. Our own, unpublished.

    After each epoch, multipliers and rho change as in :class:`CALSALM`. Then the margin shrinks if the temperature
    that best fits the validation samples is above 1, and grows if it is below:
    :class:`calibrant.losses.temperature.Strength` has the formula.

    Args:
        num_classes: Number of classes K.
        margin: Initial margin; where it ends does not depend on it.
        penalty: As in :class:`CALSALM`, like all options that follow.
        multiplier_init: Initial multipliers.
        rho_init: Initial penalty parameters.
        gamma: Factor by which rho grows.
        tau: A constraint has improved if it fell below ``tau`` times its previous value.
        rho_period: Epochs between updates of rho; 0 keeps it fixed.
        rho_max: Largest rho, None for no limit.
        multiplier_period: Epochs between updates of the multipliers.
        per_class: Learn a multiplier and a rho for each class.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Attributes:
        margin: The margin m, a scalar.
        start: Its value at the start of training.
        temperature: The temperature that fitted best at the last :meth:`adapt`; above 1 if the network was overconfident.
        multipliers: Multipliers, ``(K,)``.
        rho: Penalty parameters, ``(K,)``.
        constraint: Mean of d / m - 1 on validation data at the last :meth:`adapt`, ``(K,)``.
        epoch: Number of calls of :meth:`adapt`.

    Example:
        >>> import torch
        >>> from calibrant.losses import CALSALM
        >>> logits, target = torch.tensor([[20.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), torch.tensor([1, 1])
        >>> loss = CALSALM(num_classes=3, margin="auto")
        >>> loss(logits.requires_grad_(), target).backward()  # every training step
        >>> loss.observe(logits, target)  # every validation batch
        >>> loss.adapt()  # once per epoch
        >>> round(float(loss.temperature), 2), round(float(loss.margin), 2)  # sure of a wrong class
        (1.72, 7.63)
    """

    learned: ClassVar[tuple[str, ...]] = ("margin", "start", "temperature", *CALSALM.learned)
    logged: ClassVar[tuple[str, ...]] = ("margin", "temperature", *CALSALM.logged)
    margin: Tensor

    def _add(self, given: Batch, distance: Tensor) -> None:
        self._asked.add(given, distance)
        super()._add(given, distance)

    def _learn(self) -> None:
        super()._learn()
        super(_ClassAdaptiveLoss, self)._learn()  # that of AutoMargin, which comes next

    def _forget(self) -> None:
        super()._forget()
        super(_ClassAdaptiveLoss, self)._forget()

    def summary(self) -> str:
        """The margin and the mean multiplier."""
        return f"{AutoMargin.summary(self)}, {super().summary()}"


class CALSHR(_ClassAdaptiveLoss):
    r"""Class-adaptive label smoothing by a heuristic rule (CALS-HR); see :func:`cals_hr_loss`.

    After each epoch, with :math:`P_k = \mathrm{mean}\, \lambda_k \max(0, d_k - m)` over the validation samples (Eq. 15):

    .. math::
        \lambda_k \leftarrow \begin{cases}
            \mu \lambda_k & \text{if } P_k > \tau P_k^\mathrm{before} \\
            \lambda_k / \mu & \text{if } P_k^\mathrm{before} > \tau P_k \\
            \lambda_k & \text{otherwise}
        \end{cases}

    As in the released code, nothing changes in the first epoch, nor while the previous penalties of all classes are 0.

    Args:
        num_classes: Number of classes K.
        margin: Scalar m on logit distances; 10 for images, 6 for text in the paper.
        multiplier_init: Initial multipliers (not in the paper; 0.1 in the released code).
        factor: Factor mu by which a multiplier changes.
        tolerance: Factor tau by which a penalty must change for its multiplier to follow.
        period: Epochs between updates of the multipliers; penalties are compared with the epoch just before.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Attributes:
        multipliers: Multipliers, ``(K,)``.
        score: The penalties :math:`P_k` at the last :meth:`adapt`, ``(K,)``.
        epoch: Number of calls of :meth:`adapt`.

    Example:
        >>> import torch
        >>> from calibrant.losses import CALSHR
        >>> logits, target = torch.tensor([[20.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 1])
        >>> loss = CALSHR(num_classes=3)
        >>> loss(logits.requires_grad_(), target).backward()  # every training step
        >>> loss.observe(logits, target)  # every validation batch
        >>> loss.adapt()  # once per epoch
        >>> [round(x, 4) for x in loss.score.tolist()]
        [0.0, 0.5, 0.45]
    """

    margin: float
    averages = 1
    learned = ("multipliers", "score")
    logged = ("multipliers",)
    score: Tensor

    @with_options
    def __init__(
        self,
        num_classes: int,
        *,
        margin: float = 10.0,
        multiplier_init: float = 0.1,
        factor: float = 1.1,
        tolerance: float = 1.1,
        period: int = 1,
        **options: "Unpack[Options]",
    ) -> None:
        in_range("margin", margin, 0)
        super().__init__(num_classes, margin, multiplier_init, **options)
        self.factor = in_range("factor", factor, 1)
        self.tolerance = in_range("tolerance", tolerance, 1)
        self.period = whole("period", period, 1)
        self.register_buffer("score", torch.zeros(num_classes, dtype=torch.float32))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return cals_hr_loss(logits, target, self.multipliers, margin=self.margin, **self.options)

    def _add_functions(self, distance: Tensor) -> Iterator[Tensor]:
        yield over_samples(distance.sub_(self.margin).relu_()) * self.multipliers.to(distance.device)

    def _learn(self) -> None:
        (score,) = self._means()
        if self.score.any() and (int(self.epoch) + 1) % self.period == 0:
            grown, shrunk = score > self.tolerance * self.score, self.score > self.tolerance * score
            changed = torch.where(shrunk, self.multipliers / self.factor, self.multipliers)
            changed = torch.where(grown, self.multipliers * self.factor, changed)
            self.multipliers.copy_(changed.clamp(*SAFEGUARD))
        self.score.copy_(score)
