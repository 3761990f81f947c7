"""Strengths that need no tuning: they follow the temperature that best fits the validation data. Our own, unpublished."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant import tensors
from calibrant.checks import in_range
from calibrant.losses.base import AdaptiveLoss
from calibrant.losses.targets import Batch

#: A number, or a scalar tensor if it is learned.
Scalar = float | Tensor

#: How much a usual strength counts: as much as about 30 validation samples, whose curvature is about 1/2 each.
PRIOR = 16.0


def logit_distances(logits: Tensor) -> Tensor:
    r"""Distance of each logit from the largest, :math:`d_k = \max_j l_j - l_k`."""
    return logits.amax(dim=1, keepdim=True) - logits


class TemperatureSums:
    r"""What samples say about the temperature that fits them best, in sums that add up over batches and processes.

    Temperature scaling minimises the negative log-likelihood of :math:`\mathrm{softmax}(\beta l)`, with
    :math:`\beta = 1/T`. At T = 1 its derivatives in :math:`\beta` are

    .. math:: g = \sum (\mathrm{E}_s[l] - l_y), \qquad h = \sum \mathrm{Var}_s[l]

    so that those in log T are -g and h + g. With |g| for g, which keeps the denominator positive, Newton's step is

    .. math:: \log T \approx \frac{g}{h + |g|}

    positive where the network is overconfident, never more than 1 in size, and 0 exactly where the best T is 1.

    Example:
        >>> import torch
        >>> from calibrant.losses.targets import batch
        >>> from calibrant.losses.temperature import TemperatureSums, logit_distances
        >>> logits, target = torch.tensor([[4.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1])
        >>> sums = TemperatureSums()
        >>> sums.add(batch(logits, target), logit_distances(logits))  # 98% confident, 75% correct
        >>> slope, curvature, _ = sums.totals()
        >>> round(float(torch.exp(slope / (curvature + slope.abs()))), 2)
        2.15
    """

    def __init__(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device="cpu")
        self.count = 0

    def add(self, given: Batch, distance: Tensor) -> None:
        """Add samples, none of them ignored, with the distances of their logits from the largest."""
        weighted = (-distance).exp_()  # softmax, before it is normalised
        total = weighted.sum(dim=1)
        mean = weighted.mul_(distance).sum(dim=1).div_(total)
        curvature = weighted.mul_(distance).sum(dim=1).div_(total).sub_(mean.square())
        found = torch.stack([given.expected(distance).sub(mean), curvature, distance.amax(dim=1)])
        # Not in place: tensors made in inference mode cannot be updated outside of it.
        self._sums = self._sums + tensors.sum_double(found, list(range(1, found.dim()))).cpu()
        self.count += given.kept.numel()

    def totals(self, add_up: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return g, h and the mean of the largest logit distance; ``add_up`` sums over processes."""
        slope, curvature, reach = add_up(self._sums).unbind()
        return slope, curvature, reach / add_up(torch.tensor(self.count, device="cpu"))


@dataclass(frozen=True)
class Strength:
    r"""A hyper-parameter that controls confidence, and its update rule.

    Given g and h of :class:`TemperatureSums`, a strength x changes after an epoch by

    .. math::
        \log T &= \frac{g}{h + |g| + \kappa}, \qquad w = \frac{\kappa}{h + |g| + \kappa}, \qquad \kappa = 16 \\
        \log x &\leftarrow \log x - \frac12 \left(\frac{\log T}{\gamma} + w \log\frac{x}{x_0}\right)

    and is kept within bounds. :math:`\gamma` is how much log T changes with log x; half of the step is taken, since the
    network needs more than an epoch to follow. The last term is a prior: it holds x near its usual value :math:`x_0` as long
    as there is little evidence, with few validation samples or if all of them are fitted perfectly, where g and h vanish.

    Attributes:
        name: Its name, as an argument and as a buffer.
        usual: :math:`x_0`, where it starts by default.
        bounds: The interval that it is kept in.
        gain: :math:`\gamma`, roughly; negative if a larger x makes a network less sure.

    Example:
        >>> import torch
        >>> from calibrant.losses import Strength
        >>> margin = Strength("margin", usual=10.0, bounds=(1.0, 30.0), gain=1.0)
        >>> slope, curvature = torch.tensor(40.0), torch.tensor(44.0)  # of samples that fit better with a higher temperature
        >>> now, temperature = margin.follow(torch.tensor(10.0), slope, curvature)
        >>> round(float(temperature), 2), round(float(now), 2)
        (1.49, 8.19)
    """

    name: str
    usual: float
    bounds: tuple[float, float]
    gain: float

    def start(self, given: Any) -> Tensor:
        """The strength at the start: a number, or the usual one for ``"auto"``."""
        value = self.usual if isinstance(given, str) and given == "auto" else in_range(self.name, given, *self.bounds)
        return torch.tensor(float(value), dtype=torch.float32)

    def follow(self, now: Tensor, slope: Tensor, curvature: Tensor, most: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The next strength, and T; a strength that is to shrink shrinks from ``most`` at most."""
        precision = curvature + slope.abs() + PRIOR
        log_temperature = slope / precision
        step = -(log_temperature / self.gain + PRIOR / precision * torch.log(now / self.usual)) / 2
        if most is not None:
            now = torch.where(step < 0, torch.minimum(now, most), now)
        return (now * step.exp()).clamp(*self.bounds), log_temperature.exp()


class AutoStrength(AdaptiveLoss):
    """A loss whose strength follows the temperature that best fits the validation samples.

    A loss of your own says which of its options that is, and lets ``_hold`` store it.

    Attributes:
        strength: What follows it.
        start: The strength at the start of training.
        temperature: The temperature at the last :meth:`adapt`, by one Newton step.

    Example:
        >>> import torch
        >>> from calibrant.functional import confidence_penalty_loss, cross_entropy_loss
        >>> from calibrant.losses.temperature import AutoStrength, Strength
        >>> class AutoConfidencePenalty(AutoStrength):
        ...     strength = Strength("weight", usual=0.1, bounds=(1e-3, 10.0), gain=-0.5)
        ...     learned = logged = ("weight", "temperature")
        ...
        ...     def __init__(self, weight="auto"):
        ...         super().__init__()
        ...         self._hold("weight", weight)
        ...
        ...     def forward(self, logits, target):
        ...         plain = cross_entropy_loss(logits, target)
        ...         return plain + self.weight / 0.1 * (confidence_penalty_loss(logits, target, weight=0.1) - plain)
        >>> loss = AutoConfidencePenalty()
        >>> loss.observe(torch.tensor([[20.0, 0.0], [0.0, 3.0]]), torch.tensor([1, 1]))
        >>> loss.adapt()
        >>> round(float(loss.temperature), 2), round(float(loss.weight), 3)
        (1.73, 0.173)
    """

    strength: ClassVar[Strength]
    start: Tensor
    temperature: Tensor
    _asked: TemperatureSums

    def _hold(self, name: str, value: Any) -> None:
        if name != self.strength.name:
            super()._hold(name, value)
            return
        self.register_buffer(name, self.strength.start(value))
        self.register_buffer("start", self.get_buffer(name).clone())
        self.register_buffer("temperature", torch.ones((), dtype=torch.float32))
        self._forget()

    def _collect(self, given: Batch) -> None:
        for block in given.blocks():
            self._asked.add(block, logit_distances(block.logits))

    def _learn(self) -> None:
        now = self.get_buffer(self.strength.name)
        slope, curvature, _ = self._asked.totals(self._add_up)
        strength, temperature = self.strength.follow(now, slope, curvature)
        now.copy_(strength)
        self.temperature.copy_(temperature)

    def _forget(self) -> None:
        self._asked = TemperatureSums()

    def _observed(self) -> int:
        return self._asked.count

    def summary(self) -> str:
        """The strength."""
        return f"{self.strength.name} {float(self.get_buffer(self.strength.name)):.3g}"


class AutoMargin(AutoStrength):
    """A loss whose margin on logit distances follows the temperature.

    A temperature above 1 calls for smaller distances, and a smaller margin allows only these. Beyond twice the mean largest
    distance a margin has no effect, and would need many epochs to come down: it shrinks from there.

    Attributes:
        margin: The margin.
    """

    strength = Strength("margin", usual=10.0, bounds=(1.0, 30.0), gain=1.0)
    margin: Tensor

    def _learn(self) -> None:
        slope, curvature, reach = self._asked.totals(self._add_up)
        margin, temperature = self.strength.follow(self.margin, slope, curvature, 2 * reach)
        self.margin.copy_(margin)
        self.temperature.copy_(temperature)
