from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant import tensors
from calibrant.checks import in_range
from calibrant.errors import lookup
from calibrant.losses.base import number_of_classes, reduce_finite, with_gradient
from calibrant.losses.lagrangian import SAFEGUARD, AugmentedLagrangian
from calibrant.losses.neighbours import Border, check_pixels, check_window, neighbours
from calibrant.losses.penalties import PENALTIES
from calibrant.losses.targets import Batch, Options, batch, with_options, without_weights

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options
def crac_loss(
    logits: Tensor,
    target: Tensor,
    multipliers: Tensor,
    rho: Tensor,
    *,
    margin: float = 5.0,
    penalty: str = "phr",
    kernel_size: int = 3,
    border: Border = "valid",
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Class- and region-adaptive constraints on segmented images (CRaC, Murugesan et al. 2024).

    .. math:: -\log s_y + \frac1{2K} \sum_{k=1}^K P(h_k, \rho_{rk}, \lambda_{rk}), \qquad
              h_k = \begin{cases} |\tau_k - l_k| & \text{on a boundary, } r = 0 \\
                                  |m\,\tau_k - l_k| & \text{inside, } r = 1 \end{cases}

    for each pixel, with :math:`\tau_k` the share of class k among the labels in a window around it. A pixel is on a boundary
    if its window holds more than one class. P is one of :data:`calibrant.losses.penalties.PENALTIES`; ``multipliers``
    :math:`\lambda` and ``rho`` have shape ``(2, K)``. For soft targets q, :math:`\tau` is the mean of q.

    Example:
        >>> import torch
        >>> from calibrant.functional import crac_loss
        >>> logits, target = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), torch.tensor([[0, 1]])
        >>> multipliers, rho = torch.full((2, 2), 0.1), torch.ones(2, 2)
        >>> round(float(crac_loss(logits, target, multipliers, rho)), 4)
        0.4451
    """
    _check(margin, penalty, kernel_size, border)
    if multipliers.dim() != 2 or len(multipliers) != 2 or rho.shape != multipliers.shape:
        raise ValueError(
            "multipliers and rho must have shape (2, K), for boundaries and for the inside, got "
            f"{tuple(multipliers.shape)} and {tuple(rho.shape)}"
        )
    classes = multipliers.shape[1]
    given = batch(logits, target, num_classes=classes, **options)
    check_pixels(given, options, "CRaC")
    unweighted = given if given.class_weights is None else batch(logits, target, **without_weights(options))

    def block(images: Batch) -> tuple[Tensor, Tensor]:
        """Values and slopes of some images."""
        gap, boundary = _gap(images, margin, kernel_size, border, options)
        own, multiplier = (_by_region(state, boundary, gap) for state in (rho, multipliers))
        h = gap.abs()
        if penalty == "phr":  # a parabola, since h is not negative
            slopes = torch.addcmul(multiplier, own, h)
            values = multiplier.add_(slopes).mul_(h).sum(dim=1) / (4 * classes)
        else:
            slopes = PENALTIES[penalty].derivative(h, own, multiplier)
            values = PENALTIES[penalty].value(h, own, multiplier).sum(dim=1) / (2 * classes)
        return values, slopes.mul_(gap.sign_()).div_(2 * classes)

    with torch.no_grad():  # an eighth of the images at a time bounds temporary memory
        values, slopes = (torch.cat(parts) for parts in zip(*map(block, _split(unweighted)), strict=True))
    extra = with_gradient(given.logits, values, slopes)
    return reduce_finite(given.nll() + given.scaled(extra), given)


def _split(given: Batch) -> list[Batch]:
    """Some images at a time; the compiler needs no temporaries and gets all."""
    size = len(given.logits) if torch.compiler.is_compiling() else max(1, len(given.logits) // 8)
    parts = zip(*(part.split(size) for part in given[:3]), strict=True)
    return [given._replace(logits=logits, target=target, kept=kept) for logits, target, kept in parts]


def _gap(given: Batch, margin: float, kernel_size: int, border: Border, options: Options) -> tuple[Tensor, Tensor]:
    """Distance of the logits from their aims, ``(N, K, *spatial)``, and the boundary, ``(N, 1, *spatial)``."""
    around = neighbours(given, kernel_size, border, options)
    boundary = around.boundary.unsqueeze(1)
    scale = given.logits.new_full((), margin).where(~boundary, 1)
    return given.logits - around.shares.mul_(scale), boundary


def _by_region(state: Tensor, boundary: Tensor, logits: Tensor) -> Tensor:
    """The row of ``state`` that belongs to each pixel; exact, and several times faster than a selection on CPUs."""
    on, inside = _by_class(state, logits)
    there = boundary.to(logits.dtype)
    return torch.addcmul((1 - there) * inside, there, on)


def _by_class(state: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of ``state``, broadcast along the classes of ``logits``."""
    return tensors.per_class(state[0], logits), tensors.per_class(state[1], logits)


def _check(margin: float, penalty: str, kernel_size: int, border: Border) -> None:
    in_range("margin", margin, 0)
    lookup(penalty, PENALTIES, "penalty")
    check_window(kernel_size, border)


class CRaC(AugmentedLagrangian):
    r"""Class- and region-adaptive constraints on segmented images (CRaC); see :func:`crac_loss`.

    After epoch j, with means over the validation pixels, and h = 0 at pixels of the other region, as in CALS-ALM:

    .. math::
        \lambda_{rk} &\leftarrow \mathrm{mean}\, P'(h_{rk}, \rho_{rk}, \lambda_{rk})
                     \quad\text{projected on } [10^{-6}, 10^6] \\
        \rho_{rk} &\leftarrow \gamma \rho_{rk} \quad\text{if } \bar h_{rk}^{(j)} > \tau\, \bar h_{rk}^{(j-1)}

    Args:
        num_classes: Number of classes K.
        margin: Factor m of the shares away from boundaries.
        penalty: ``"phr"``, ``"p2"`` or ``"p3"``.
        multiplier_init: Initial multipliers.
        rho_init: Initial penalty parameters.
        gamma: Factor by which rho grows.
        tau: A constraint has improved if it fell below ``tau`` times its previous value.
        rho_period: Epochs between updates of rho; 0 keeps it fixed.
        rho_max: Largest rho, None for no limit.
        multiplier_period: Epochs between updates of the multipliers.
        kernel_size: Width of the window, an odd number.
        border: What lies outside of the image: ``"valid"`` nothing, ``"released"`` class 0, ``"zeros"`` no class.
        region_means: Take means over the pixels of a region only. As released, the mean is over all pixels, and the
            multipliers of a rare region, such as boundaries, learn slowly.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Attributes:
        multipliers: Multipliers of boundaries and of the inside, ``(2, K)``.
        rho: Penalty parameters, ``(2, K)``.
        constraint: Mean h on validation data at the last :meth:`adapt`, ``(2, K)``.
        epoch: Number of calls of :meth:`adapt`.

    Example:
        >>> import torch
        >>> from calibrant.losses import CRaC
        >>> logits, target = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), torch.tensor([[0, 1]])
        >>> loss = CRaC(num_classes=2)
        >>> loss(logits.requires_grad_(), target).backward()  # every training step
        >>> loss.observe(logits, target)  # every validation batch
        >>> loss.adapt()  # once per epoch
        >>> loss.multipliers.shape
        torch.Size([2, 2])
    """

    _sums: Tensor
    _pixels: Tensor

    @with_options
    def __init__(
        self,
        num_classes: int,
        *,
        margin: float = 5.0,
        penalty: str = "phr",
        multiplier_init: float = 1e-6,
        rho_init: float = 0.1,
        gamma: float = 1.2,
        tau: float = 0.9,
        rho_period: int = 10,
        rho_max: float | None = 10.0,
        multiplier_period: int = 1,
        kernel_size: int = 3,
        border: Border = "valid",
        region_means: bool = False,
        **options: "Unpack[Options]",
    ) -> None:
        super().__init__(**options)
        self.num_classes = number_of_classes(num_classes, self.task)
        _check(margin, penalty, kernel_size, border)
        self.margin, self.kernel_size = margin, kernel_size
        self.border: Border = border
        self.region_means = bool(region_means)
        self.multiplier_init = in_range("multiplier_init", multiplier_init, *SAFEGUARD)
        self.register_buffer("multipliers", torch.full((2, num_classes), float(multiplier_init), dtype=torch.float32))
        self._set_up(penalty, rho_init, gamma, tau, rho_period, rho_max, multiplier_period)
        self._forget()

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return crac_loss(
            logits,
            target,
            self.multipliers,
            self.rho,
            margin=self.margin,
            penalty=self.penalty,
            kernel_size=self.kernel_size,
            border=self.border,
            **self.options,
        )

    def _collect(self, given: Batch) -> None:
        check_pixels(given, self.options, "CRaC")
        given = given._replace(logits=given.logits.to(torch.promote_types(given.logits.dtype, self.multipliers.dtype)))
        gap, boundary = _gap(given, self.margin, self.kernel_size, self.border, self.options)
        h = gap.abs_()
        over_pixels = [0, *range(2, h.dim())]
        rows, pixels = [], []
        for region, rho, multipliers in zip(
            (boundary, ~boundary & given.kept.unsqueeze(1)),
            _by_class(self.rho, h),
            _by_class(self.multipliers, h),
            strict=True,
        ):
            functions = (PENALTIES[self.penalty].derivative(h, rho, multipliers), h)
            rows.append(torch.stack([tensors.sum_double(f * region, over_pixels) for f in functions]))
            pixels.append(region.sum())
        # Not in place: tensors made in inference mode cannot be updated outside of it.
        self._sums = self._sums + torch.stack(rows, dim=1).cpu()
        self._pixels = self._pixels + torch.stack(pixels).cpu()

    def _learn(self) -> None:
        sums, pixels = self._add_up(self._sums), self._add_up(self._pixels).unsqueeze(1)
        before = self.multipliers.to(sums)
        if self.region_means:
            derivative, constraint = sums / pixels.clamp(min=1)
            derivative = torch.where(pixels > 0, derivative, before)
        else:  # where h = 0, the derivative is the multiplier
            everywhere = pixels.sum()
            derivative = (sums[0] + (everywhere - pixels) * before) / everywhere
            constraint = sums[1] / everywhere
        self._step(derivative.to(self.multipliers), constraint.to(self.constraint))

    def summary(self) -> str:
        """The mean multipliers."""
        boundary, inside = self.multipliers.mean(dim=1).tolist()
        return f"mean multiplier {boundary:.3g} on boundaries, {inside:.3g} inside"

    def _observed(self) -> int:
        return int(self._pixels.sum())

    def _forget(self) -> None:
        self._sums = torch.zeros(2, 2, self.num_classes, dtype=torch.float64, device="cpu")
        self._pixels = torch.zeros(2, dtype=torch.int64, device="cpu")
