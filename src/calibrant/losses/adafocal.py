import math
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from calibrant import outcomes
from calibrant.binning import Binning, BinStatistics, bin_index, bin_statistics, equal_mass_edges, equal_width_edges
from calibrant.checks import in_range, one_of, whole
from calibrant.losses.base import AdaptiveLoss
from calibrant.losses.focal import modulate
from calibrant.losses.targets import Batch, Options, batch, with_options
from calibrant.tensors import Samples

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options
def adafocal_loss(
    logits: Tensor,
    target: Tensor,
    gammas: Tensor,
    edges: Tensor,
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Focal loss whose exponent depends on the bin of the true class's probability (AdaFocal Eq. 2-4).

    .. math:: -(1 - p)^{\gamma_b} \log p, \qquad p = s_y \in (e_{b-1}, e_b]

    ``gammas`` of shape ``(M,)`` belong to the bins with inner ``edges`` of shape ``(M - 1,)``. For a negative gamma the
    term is the inverse focal one, :math:`-(1 + p)^{|\gamma_b|} \log p`. Gammas are constants in the gradient.
    For soft targets q, the expected loss, :math:`-\sum_k q_k (1 - s_k)^{\gamma_{b(k)}} \log s_k`.

    Example:
        >>> import torch
        >>> from calibrant.functional import adafocal_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> gammas, edges = torch.tensor([3.0, 1.0]), torch.tensor([0.5])
        >>> round(float(adafocal_loss(logits, target, gammas, edges)), 4)
        0.1851
    """
    _check_bins("gammas", gammas, edges)
    given = batch(logits, target, **options)

    def focal(nll: Tensor) -> Tensor:
        p = torch.exp(-nll.detach())
        return modulate(nll, gammas.to(p.dtype)[bin_index(p, edges.to(p.dtype))])

    return given.reduce(given.of_true_class(focal))


@with_options
def calfocal_loss(
    logits: Tensor,
    target: Tensor,
    accuracies: Tensor,
    edges: Tensor,
    *,
    scale: float,
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Focal loss whose exponent depends on how far the true class's probability is from its bin's accuracy (Eq. 1).

    .. math:: -(1 - p)^{\gamma} \log p, \qquad \gamma = \exp(\lambda (p - A_b)), \quad p = s_y \in (e_{b-1}, e_b]

    ``accuracies`` A of shape ``(M,)`` belong to the bins with inner ``edges`` of shape ``(M - 1,)``; ``scale`` is
    :math:`\lambda`. Gamma is a constant in the gradient: the paper does not say, but its later code does so.

    Example:
        >>> import torch
        >>> from calibrant.functional import calfocal_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> accuracies, edges = torch.tensor([0.3, 0.8]), torch.tensor([0.5])
        >>> round(float(calfocal_loss(logits, target, accuracies, edges, scale=10.0)), 4)
        0.405
    """
    _check_bins("accuracies", accuracies, edges)
    in_range("scale", scale, 0)
    given = batch(logits, target, **options)

    def focal(nll: Tensor) -> Tensor:
        p = torch.exp(-nll.detach())
        gap = p - accuracies.to(p.dtype)[bin_index(p, edges.to(p.dtype))]
        return modulate(nll, torch.exp(scale * gap).clamp(max=_largest_gamma(p.dtype)))

    return given.reduce(given.of_true_class(focal))


def _check_bins(name: str, values: Tensor, edges: Tensor) -> None:
    if values.dim() != 1 or edges.shape != (len(values) - 1,):
        raise ValueError(
            f"{name} must have one value per bin and edges one fewer, the inner edges; got shapes {tuple(values.shape)} "
            f"and {tuple(edges.shape)}"
        )


def _largest_gamma(dtype: torch.dtype) -> float:
    """The largest gamma used: the focal term is then 0 wherever p > 0 is representable, and nothing overflows."""
    return math.sqrt(torch.finfo(dtype).max)


class _BinnedFocal(AdaptiveLoss):
    """Focal losses driven by the calibration of bins of the validation confidences."""

    learned = ("gammas", "edges", "confidences", "accuracies")
    logged = ("gammas",)
    edges: Tensor
    gammas: Tensor
    confidences: Tensor
    accuracies: Tensor

    @with_options
    def __init__(self, num_bins: int, binning: Binning, **options: "Unpack[Options]") -> None:
        super().__init__(**options)
        self.num_bins = whole("num_bins", num_bins, 1)
        self.binning: Binning = one_of("binning", binning, get_args(Binning))
        # Algorithm 1, line 1: equal-width bins, assumed to be calibrated.
        midpoints = (torch.arange(num_bins, dtype=torch.float32) + 0.5) / num_bins
        self.register_buffer("edges", equal_width_edges(num_bins).to(midpoints))
        self.register_buffer("gammas", torch.ones_like(midpoints))
        self.register_buffer("confidences", midpoints)
        self.register_buffer("accuracies", midpoints.clone())
        self._forget()

    def _collect(self, given: Batch) -> None:
        if given.soft:  # correct with the probability of the predicted class
            labels = given.logits.argmax(dim=1)
            correct = given.probability_of(labels)[given.kept]
            confidence, _ = outcomes.top_label(Samples(given.logits, labels, given.kept))
        else:
            confidence, correct = outcomes.top_label(Samples(*given[:3]))
        self._confidence.append(confidence.to("cpu", self.edges.dtype))
        self._correct.append(correct.to("cpu", self.edges.dtype))

    def _measure(self) -> Tensor:
        """Re-bin the validation data, update the bins, and return each bin's calibration error C - A."""
        confidence = torch.cat([torch.zeros(0, dtype=self.edges.dtype, device="cpu"), *self._confidence])
        correct = torch.cat([torch.zeros(0, dtype=self.edges.dtype, device="cpu"), *self._correct])
        edges = equal_width_edges(self.num_bins)
        if self.binning == "mass":
            edges = equal_mass_edges(confidence, self.num_bins, self._add_up)
        edges = edges.to(confidence)
        own = bin_statistics(confidence, correct, edges)
        bins = BinStatistics(*map(self._add_up, own))
        # As at the start, a bin without samples is assumed to be calibrated.
        bounds = torch.cat([edges.new_zeros(1), edges, edges.new_ones(1)]).double()
        midpoints = (bounds[:-1] + bounds[1:]) / 2
        confidences, accuracies = (torch.where(bins.counts > 0, mean, midpoints) for mean in bins.means())
        self.edges.copy_(edges)
        self.confidences.copy_(confidences)
        self.accuracies.copy_(accuracies)
        return (confidences - accuracies).to(self.gammas)

    def summary(self) -> str:
        """The range of the gammas."""
        return f"gamma {float(self.gammas.min()):.2g} to {float(self.gammas.max()):.2g}"

    def _observed(self) -> int:
        return sum(len(part) for part in self._confidence)

    def _forget(self) -> None:
        self._confidence: list[Tensor] = []
        self._correct: list[Tensor] = []


class AdaFocal(_BinnedFocal):
    r"""Adaptive focal loss (AdaFocal); see :func:`adafocal_loss`.

    After each epoch the validation samples are divided into M bins of equal mass by the confidence of their predicted class.
    With C and A, the mean confidence and the accuracy of each bin (Algorithm 1, Eq. 4),

    .. math:: \gamma_b \leftarrow \min(\gamma_\mathrm{max}, \gamma_b \exp(C_b - A_b))

    Gammas start at 1 and stay with the index of their bin while its edges move. Training samples look up their gamma by the
    probability of their true class.

    Args:
        num_bins: Number M of bins; 10 to 20 work best in the paper.
        binning: ``"mass"`` for bins of equal mass, ``"width"`` for bins of equal width, whose edges stay; the gamma of a bin
            without samples is kept.
        gamma_init: Initial gammas (1 in the paper).
        gamma_max: Largest gamma; ``math.inf`` for no limit.
        inverse: The later version of the method (NeurIPS 2022), in which gammas can turn negative: where the absolute value
            of a gamma falls below ``switch``, it jumps to ``switch`` with the other sign. A negative gamma selects the
            inverse focal loss and follows :math:`\exp(A_b - C_b)`.
        scale: Factor in the exponent (1 in the paper).
        momentum: alpha of Appendix K's moving average, :math:`\gamma_b^\alpha \exp((1 - \alpha)(C_b - A_b))`; None, the
            default, is the rule above. Cannot be combined with ``inverse``.
        gamma_min: Smallest gamma with ``inverse``.
        switch: Absolute value at which gammas change sign with ``inverse``.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Attributes:
        gammas: Exponents of the bins, ``(M,)``.
        edges: Inner edges of the bins, ``(M - 1,)``.
        confidences: Mean validation confidence of the bins at the last :meth:`adapt`, ``(M,)``.
        accuracies: Validation accuracy of the bins, ``(M,)``.
        epoch: Number of calls of :meth:`adapt`.

    Example:
        >>> import torch
        >>> from calibrant.losses import AdaFocal
        >>> logits, target = torch.tensor([[20.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 1])
        >>> loss = AdaFocal(num_bins=2)
        >>> loss(logits.requires_grad_(), target).backward()  # every training step
        >>> loss.observe(logits, target)  # every validation batch
        >>> loss.adapt()  # once per epoch
        >>> [round(x, 4) for x in loss.gammas.tolist()]
        [0.9557, 1.0]
    """

    @with_options
    def __init__(
        self,
        *,
        num_bins: int = 15,
        binning: Binning = "mass",
        gamma_init: float = 1.0,
        gamma_max: float = 20.0,
        inverse: bool = False,
        scale: float = 1.0,
        momentum: float | None = None,
        gamma_min: float = -2.0,
        switch: float = 0.2,
        **options: "Unpack[Options]",
    ) -> None:
        super().__init__(num_bins, binning, **options)
        self.gamma_max = gamma_max if gamma_max == math.inf else in_range("gamma_max", gamma_max, 0, above=True)
        self.inverse = bool(inverse)
        self.scale = in_range("scale", scale, 0)
        self.momentum = momentum if momentum is None else in_range("momentum", momentum, 0, 1)
        self.switch = in_range("switch", switch, 0, above=True)
        self.gamma_min = in_range("gamma_min", gamma_min, -math.inf, -switch)
        self.gamma_init = in_range("gamma_init", gamma_init, 0, above=True)
        self.gammas.fill_(min(gamma_init, gamma_max))
        if self.inverse and self.momentum is not None:
            raise ValueError("momentum is defined for positive gammas only: pass either momentum or inverse=True, not both")

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return adafocal_loss(logits, target, self.gammas, self.edges, **self.options)

    def _learn(self) -> None:
        error = self.scale * self._measure()
        before = self.gammas.clone()
        if self.momentum is not None:
            after = before**self.momentum * torch.exp((1 - self.momentum) * error)
        elif self.inverse:
            sign = before.sign()
            after = before * torch.exp(sign * error)
            after = torch.where(after.abs() < self.switch, -self.switch * sign, after).clamp(min=self.gamma_min)
        else:
            after = before * torch.exp(error)
        self.gammas.copy_(after.clamp(max=min(self.gamma_max, _largest_gamma(after.dtype))))


class CalFocal(_BinnedFocal):
    r"""Calibration-aware focal loss (CalFocal), the predecessor of AdaFocal.

    With C and A the mean confidence and the accuracy of bins of the validation confidences, and p the probability
    of a training sample's true class, which lies in bin b:

    .. math::
        \gamma_b = \exp(\lambda (C_b - A_b)) \quad\text{(Eq. 2, per bin)} \qquad
        \gamma = \exp(\lambda (p - A_b)) \quad\text{(Eq. 1, per sample)}

    See :func:`adafocal_loss` and :func:`calfocal_loss`.

    Args:
        scale: :math:`\lambda`; the paper tries 10 and 100.
        num_bins: Number of bins.
        binning: ``"mass"`` for bins of equal mass, ``"width"`` for bins of equal width.
        per: ``"bin"`` or ``"sample"``.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Attributes:
        gammas: Exponents of the bins (of Eq. 2), ``(M,)``.
        edges: Inner edges of the bins, ``(M - 1,)``.
        confidences: Mean validation confidence of the bins at the last :meth:`adapt`, ``(M,)``.
        accuracies: Validation accuracy of the bins, ``(M,)``.
        epoch: Number of calls of :meth:`adapt`.

    Example:
        >>> import torch
        >>> from calibrant.losses import CalFocal
        >>> logits, target = torch.tensor([[20.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 1])
        >>> loss = CalFocal(scale=10.0, num_bins=2)
        >>> loss(logits.requires_grad_(), target).backward()  # every training step
        >>> loss.observe(logits, target)  # every validation batch
        >>> loss.adapt()  # once per epoch
        >>> [round(x, 4) for x in loss.gammas.tolist()]
        [0.6359, 1.0]
    """

    @with_options
    def __init__(
        self,
        scale: float,
        *,
        num_bins: int = 15,
        binning: Binning = "mass",
        per: Literal["bin", "sample"] = "bin",
        **options: "Unpack[Options]",
    ) -> None:
        super().__init__(num_bins, binning, **options)
        self.scale = in_range("scale", scale, 0)
        self.per: Literal["bin", "sample"] = one_of("per", per, get_args(Literal["bin", "sample"]))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        if self.per == "bin":
            return adafocal_loss(logits, target, self.gammas, self.edges, **self.options)
        return calfocal_loss(logits, target, self.accuracies, self.edges, scale=self.scale, **self.options)

    def _learn(self) -> None:
        self.gammas.copy_(torch.exp(self.scale * self._measure()).clamp(max=_largest_gamma(self.gammas.dtype)))
