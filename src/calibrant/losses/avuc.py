import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant import tensors
from calibrant.checks import in_range, whole
from calibrant.losses.auxiliary import PenalisedLoss, correctness, cross_entropy_with_penalty, top_label
from calibrant.losses.base import AdaptiveLoss, Loss, with_gradient
from calibrant.losses.targets import Batch, Options, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Share of the uniform distribution in the probabilities whose entropy is taken, and the least denominator.
SMALL = 1e-5


@with_options
def avuc_loss(
    logits: Tensor,
    target: Tensor,
    threshold: Tensor | float,
    *,
    weight: float = 3.0,
    detach: bool = False,
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Cross-entropy plus accuracy versus uncertainty (AvUC, Krishnan and Tickoo 2020).

    A prediction is certain if its entropy u is below the ``threshold``. With r its confidence, the four groups count

    .. math::
        n_{AC} = \sum r (1 - \tanh u), \quad n_{AU} = \sum r \tanh u, \quad
        n_{IC} = \sum (1 - r)(1 - \tanh u), \quad n_{IU} = \sum (1 - r) \tanh u

    over accurate and certain, accurate and uncertain, inaccurate and certain, inaccurate and uncertain predictions, and

    .. math:: -\log s_y + w \log\left(1 + \frac{n_{AU} + n_{IC}}{n_{AC} + n_{IU}}\right)

    With ``detach``, r is a constant in the gradient. The penalty belongs to the whole batch: with ``reduction="none"`` it
    is added in full to every sample. For soft targets q, a prediction is accurate with the probability that q gives it.

    Example:
        >>> import torch
        >>> from calibrant.functional import avuc_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(avuc_loss(logits, target, 1.0)), 4)
        0.4795
    """
    return cross_entropy_with_penalty(logits, target, weight, lambda given: avuc(given, threshold, detach=detach), options)


@with_options
def soft_avuc_loss(
    logits: Tensor,
    target: Tensor,
    threshold: Tensor | float,
    *,
    weight: float = 3.0,
    temperature: float = 0.1,
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Cross-entropy plus soft accuracy versus uncertainty (S-AvUC, Karandikar et al. 2021).

    As :func:`avuc_loss`, but a prediction is uncertain by the degree t of its entropy u, and confidences do not count:

    .. math::
        t = \sigma\left(\frac1T \log \frac{e\,(1 - \kappa)}{(1 - e)\,\kappa}\right), \quad e = \frac{u}{\log K}, \qquad
        n_{AC} = \sum (1 - t)(1 - \tanh u), \quad n_{AU} = \sum t \tanh u

    over accurate predictions, likewise for inaccurate ones. ``threshold`` is :math:`\kappa`, between 0 and 1.

    Example:
        >>> import torch
        >>> from calibrant.functional import soft_avuc_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(soft_avuc_loss(logits, target, 0.5)), 4)
        36.0972
    """
    in_range("temperature", temperature, 0, above=True)
    return cross_entropy_with_penalty(
        logits, target, weight, lambda given: soft_avuc(given, threshold, temperature), options
    )


def entropy(given: Batch) -> Tensor:
    """Entropy of each prediction p, which is s mixed with a little of the uniform distribution; 0 where ignored.

    With its gradient, a multiple of -s (log p - <s, log p>): two temporaries instead of autograd's five.
    """
    with torch.no_grad():
        s = given.logits.softmax(dim=1)
        uniform = 1 / s.shape[1]
        log_p = s.mul(1 - SMALL).add_(SMALL * uniform).log_()
        mean = (s * log_p).sum(dim=1, keepdim=True)
        u = -((1 - SMALL) * mean + SMALL * uniform * log_p.sum(dim=1, keepdim=True)).squeeze(1)
        gradient = log_p.sub_(mean).mul_(s).mul_(SMALL - 1)
    return torch.where(given.kept, with_gradient(given.logits, u, gradient), 0)


def avuc(given: Batch, threshold: Tensor | float, *, detach: bool) -> Tensor:
    """The penalty of AvUC."""
    confidence, correct = top_label(given)
    confidence = confidence.detach() if detach else confidence
    u = entropy(given)
    uncertain = (u >= threshold).to(u.dtype)
    return _avuc(u, uncertain, correct * confidence, torch.where(given.kept, (1 - correct) * (1 - confidence), 0))


def soft_avuc(given: Batch, threshold: Tensor | float, temperature: float) -> Tensor:
    """The penalty of S-AvUC."""
    correct = correctness(given)
    u = entropy(given)
    limits = torch.finfo(u.dtype)
    e = (u / math.log(given.logits.shape[1])).clamp(limits.tiny, 1 - limits.eps)
    kappa = torch.as_tensor(threshold, dtype=u.dtype, device=u.device)
    uncertain = torch.sigmoid((torch.logit(e) - torch.logit(kappa)) / temperature)
    return _avuc(u, uncertain, correct, torch.where(given.kept, 1 - correct, 0))


def _avuc(u: Tensor, uncertain: Tensor, accurate: Tensor, inaccurate: Tensor) -> Tensor:
    """log(1 + (AU + IC) / (AC + IU)), from the weights of accurate and inaccurate predictions."""
    tanh = u.tanh()
    certain = (1 - uncertain) * (1 - tanh)
    uncertain = uncertain * tanh
    wanted = (accurate * certain + inaccurate * uncertain).sum()
    unwanted = (accurate * uncertain + inaccurate * certain).sum()
    return torch.log1p(unwanted / wanted.clamp(min=SMALL))


class _LearnedThreshold(PenalisedLoss, AdaptiveLoss):
    """The threshold of uncertainty, learned as halfway between those of correct and of wrong validation predictions."""

    learned = ("threshold",)
    logged = ("threshold",)
    threshold: Tensor
    _sums: Tensor
    _count: int

    def __init__(
        self, weight: float, threshold: float, updates: int | None, base: str | Loss, **options: "Unpack[Options]"
    ) -> None:
        super().__init__(weight, base, **options)
        self.register_buffer("threshold", torch.tensor(float(threshold), dtype=torch.float32))
        self.updates = updates if updates is None else whole("updates", updates, 0)
        self._forget()

    def _uncertainty(self, given: Batch) -> Tensor:
        """What is compared with the threshold."""
        return entropy(given)

    def _collect(self, given: Batch) -> None:
        given = given._replace(logits=self.predictive(given.logits))
        u = tensors.double(self._uncertainty(given)[given.kept]).cpu()
        correct = tensors.double(correctness(given)[given.kept]).cpu()
        both = torch.stack([correct, 1 - correct])
        # Not in place: tensors made in inference mode cannot be updated outside of it.
        self._sums = self._sums + torch.stack([both.sum(dim=1), (both * u).sum(dim=1)])
        self._count += len(u)

    def _learn(self) -> None:
        if self.updates is not None and int(self.epoch) >= self.updates:
            return
        numbers, sums = self._add_up(self._sums)
        there = numbers > 0  # there may be no wrong prediction
        self.threshold.copy_((sums[there] / numbers[there]).mean())

    def summary(self) -> str:
        """The threshold."""
        return f"threshold {float(self.threshold):.3g}"

    def _observed(self) -> int:
        return self._count

    def _forget(self) -> None:
        self._sums = torch.zeros(2, 2, dtype=torch.float64, device="cpu")
        self._count = 0


class AvUC(_LearnedThreshold):
    """Any loss plus accuracy versus uncertainty (AvUC); see :func:`avuc_loss`.

    The threshold is learned: after each of the first epochs it is set halfway between the mean entropies of the correct and
    of the wrong predictions on validation data, as in the authors' code.

    Args:
        weight: Weight of the penalty.
        threshold: Initial threshold of the entropy, in nats.
        updates: Number of calls of :meth:`adapt` that set the threshold, 6 as released; later ones leave it. None for all.
        detach: Treat confidences as constants in the gradient.
        base: The loss it is added to: a key of :data:`calibrant.losses.METHODS`, or a loss.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Attributes:
        threshold: The threshold, a scalar.
        epoch: Number of calls of :meth:`adapt`.

    Example:
        >>> import torch
        >>> from calibrant.losses import AvUC
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
        >>> loss = AvUC()
        >>> loss(logits.requires_grad_(), target).backward()  # every training step
        >>> loss.observe(logits, target)  # every validation batch
        >>> loss.adapt()  # once per epoch
        >>> round(float(loss.threshold), 4)
        0.9039
    """

    @with_options
    def __init__(
        self,
        *,
        weight: float = 3.0,
        threshold: float = 1.0,
        updates: int | None = 6,
        detach: bool = False,
        base: str | Loss = "ce",
        **options: "Unpack[Options]",
    ) -> None:
        super().__init__(weight, in_range("threshold", threshold, 0), updates, base, **options)
        self.detach = bool(detach)

    def penalty(self, given: Batch) -> Tensor:
        """The penalty of a batch."""
        return avuc(given, self.threshold, detach=self.detach)


class SoftAvUC(_LearnedThreshold):
    """Any loss plus soft accuracy versus uncertainty (S-AvUC); see :func:`soft_avuc_loss`.

    The threshold is learned as in :class:`AvUC`, from entropies divided by log K.

    Args:
        weight: Weight of the penalty.
        threshold: Initial threshold kappa of the entropy divided by log K.
        temperature: Softness T of the threshold.
        updates: Number of calls of :meth:`adapt` that set the threshold; later ones leave it. None for all.
        base: The loss it is added to: a key of :data:`calibrant.losses.METHODS`, or a loss.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Attributes:
        threshold: The threshold, a scalar.
        epoch: Number of calls of :meth:`adapt`.

    Example:
        >>> import torch
        >>> from calibrant.losses import SoftAvUC
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
        >>> round(float(SoftAvUC(temperature=0.5)(logits, target)), 4)
        2.7589
    """

    @with_options
    def __init__(
        self,
        *,
        weight: float = 3.0,
        threshold: float = 0.5,
        temperature: float = 0.1,
        updates: int | None = 6,
        base: str | Loss = "ce",
        **options: "Unpack[Options]",
    ) -> None:
        super().__init__(weight, in_range("threshold", threshold, 0, 1), updates, base, **options)
        self.temperature = in_range("temperature", temperature, 0, above=True)

    def penalty(self, given: Batch) -> Tensor:
        """The penalty of a batch."""
        return soft_avuc(given, self.threshold, self.temperature)

    def _uncertainty(self, given: Batch) -> Tensor:
        return entropy(given) / math.log(given.logits.shape[1])
