"""A margin that needs no tuning: it follows the temperature that validation data ask for. Ours, in no paper."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from calibrant import tensors
from calibrant.checks import in_range
from calibrant.losses.targets import Batch

#: A margin: a number, or a scalar tensor if it is learned.
Margin = float | Tensor

#: The margin to stay close to without evidence, the papers' choice, and the interval that margins are kept in.
USUAL, BOUNDS = 10.0, (1.0, 30.0)
#: How much the usual margin counts: as much as about 30 validation samples, whose curvature is about 1/2 each.
PRIOR = 16.0
#: Share of its step that a margin moves each time, since the network takes more than an epoch to follow.
RATE = 0.5


class TemperatureSums:
    r"""What samples say about the temperature they ask for, in sums that add up over batches and processes.

    Temperature scaling minimises the negative log-likelihood of :math:`\mathrm{softmax}(\beta l)`, with
    :math:`\beta = 1/T`. At T = 1 its derivatives in :math:`\beta` are

    .. math:: g = \sum (\mathrm{E}_s[l] - l_y), \qquad h = \sum \mathrm{Var}_s[l]

    so that those in log T are -g and h + g. With |g| for g, which keeps the denominator positive, Newton's step is

    .. math:: \log T \approx \frac{g}{h + |g|}

    positive where the network is overconfident, never more than 1 in size, and 0 exactly where the best T is 1.

    Example:
        >>> import torch
        >>> from calibrant.losses.targets import batch
        >>> from calibrant.losses.temperature import TemperatureSums
        >>> logits, target = torch.tensor([[4.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1])
        >>> sums = TemperatureSums()
        >>> sums.add(batch(logits, target))  # 98% confident, 75% correct
        >>> slope, curvature, _ = sums.totals()
        >>> round(float(torch.exp(slope / (curvature + slope.abs()))), 2)
        2.15
    """

    def __init__(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device="cpu")
        self.count = 0

    def add(self, given: Batch) -> None:
        """Add samples."""
        logits = given.logits
        distance = logits.amax(dim=1, keepdim=True) - logits  # from the largest, so that no digits are lost
        weighted = logits.softmax(dim=1).mul_(distance)
        mean = weighted.sum(dim=1)
        slope = given.expected(distance) - mean
        curvature = weighted.mul_(distance).sum(dim=1) - mean.square()
        found = torch.where(given.kept, torch.stack([slope, curvature, distance.amax(dim=1)]), 0)
        # Not in place: tensors made in inference mode cannot be updated outside of it.
        self._sums = self._sums + tensors.sum_double(found, list(range(1, found.dim()))).cpu()
        self.count += int(given.kept.sum())

    def totals(self, add_up: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return g, h and the mean of the largest logit distance; ``add_up`` sums over processes."""
        slope, curvature, reach = add_up(self._sums).unbind()
        return slope, curvature, reach / add_up(torch.tensor(self.count, device="cpu"))


class HasMargin(Protocol):
    """A loss with a learned margin."""

    margin: Tensor
    temperature: Tensor

    def register_buffer(self, name: str, tensor: Tensor | None) -> None:
        """As in ``torch.nn.Module``."""


def register_margin(loss: HasMargin, start: Any) -> None:
    """Give a loss a margin that is learned; ``"auto"`` starts it at 10."""
    value = USUAL if isinstance(start, str) and start == "auto" else in_range("margin", start, *BOUNDS)
    loss.register_buffer("margin", torch.tensor(float(value), dtype=torch.float32))
    loss.register_buffer("temperature", torch.ones((), dtype=torch.float32))


def follow_temperature(loss: HasMargin, slope: Tensor, curvature: Tensor, reach: Tensor) -> None:
    r"""Move a margin m after an epoch, given g, h and the mean largest distance D of :class:`TemperatureSums`.

    .. math::
        \log T &= \frac{g}{h + |g| + \kappa} \\
        \log m &\leftarrow \log m - \frac12 \left(\log T + \frac{\kappa}{h + |g| + \kappa} \log\frac{m}{10}\right),
                 \quad \kappa = 16

    and m is kept in [1, 30]. A temperature above 1 asks for smaller distances between logits, and a smaller margin allows
    only these. The second term is a prior: it holds m near 10 as long as there is little evidence, with few validation
    samples or if all of them are fitted perfectly, where g and h both vanish. Where m is to shrink, it starts from 2 D at
    most: beyond, it has no effect, and would need many epochs to come down.
    """
    precision = curvature + slope.abs() + PRIOR
    log_temperature = slope / precision
    pull = PRIOR / precision * torch.log(loss.margin / USUAL)
    step = log_temperature + pull
    effective = torch.where(step > 0, torch.minimum(loss.margin, 2 * reach), loss.margin)
    loss.temperature.copy_(log_temperature.exp())
    loss.margin.copy_((effective * torch.exp(-RATE * step)).clamp(*BOUNDS))
