from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant.checks import in_range
from calibrant.losses.base import Loss, reduce_finite, with_gradient
from calibrant.losses.targets import Batch, Options, batch, with_options
from calibrant.tensors import at_least_single

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: What is added to norms, as released.
EPSILON = 1e-7


@with_options
def logitnorm_loss(logits: Tensor, target: Tensor, *, temperature: float = 0.04, **options: "Unpack[Options]") -> Tensor:
    r"""Cross-entropy of normalised logits (LogitNorm, Wei et al. 2022).

    .. math:: -\log \mathrm{softmax}_y\!\left(\frac{l}{T\,(\|l\|_2 + 10^{-7})}\right)

    The prediction that this trains is the softmax of the normalised logits, not of the network's own: see
    :func:`normalised`. For soft targets q, the expected loss over labels drawn from q.

    Example:
        >>> import torch
        >>> from calibrant.functional import logitnorm_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(logitnorm_loss(logits, target, temperature=1.0)), 4)
        0.6342
    """
    _check(temperature, options)
    given = batch(logits, target, **options)
    values = _cross_entropy(given, temperature)
    masked = given.logits.detach().amin(dim=1) == -torch.inf  # whose norm is infinite
    return reduce_finite(torch.where(masked, torch.inf, values), given)


def _cross_entropy(given: Batch, temperature: float) -> Tensor:
    r"""The loss of each sample and its gradient, with two temporaries instead of autograd's seven.

    .. math:: \frac{1}{T (\|l\| + \epsilon)} \left( g - \frac{\langle g, l \rangle}{\|l\| (\|l\| + \epsilon)}\, l \right),
              \qquad g \text{ the gradient of the cross-entropy}
    """
    logits = given.logits
    with torch.no_grad():
        norm = _norm(logits)
        log_s = (logits / (temperature * (norm + EPSILON))).log_softmax(dim=1)
        values = -given.expected(log_s)
        gradient = given.minus_target(log_s.exp_())
        along = (gradient * logits).sum(dim=1, keepdim=True) / (norm * (norm + EPSILON))
        gradient.addcmul_(logits, along, value=-1).div_(temperature * (norm + EPSILON))
    return with_gradient(logits, values, gradient)


def _norm(logits: Tensor) -> Tensor:
    """Length of each row, ten times faster than torch.linalg.vector_norm in dimension 1; never quite 0."""
    return logits.square().sum(dim=1, keepdim=True).clamp(min=torch.finfo(logits.dtype).tiny).sqrt()


def normalised(logits: Tensor, temperature: float) -> Tensor:
    """Logits of length 1 / temperature: those whose softmax is the prediction of a network trained with LogitNorm."""
    logits = at_least_single(logits)
    return logits / (temperature * (_norm(logits) + EPSILON))


def _check(temperature: float, options: Options) -> None:
    in_range("temperature", temperature, 0, above=True)
    if options.get("task", "multiclass") != "multiclass":
        raise ValueError(
            f'LogitNorm does not support task="{options["task"]}": normalising a single logit leaves only its sign'
        )


class LogitNorm(Loss):
    """Cross-entropy of normalised logits (LogitNorm); see :func:`logitnorm_loss`.

    Training and evaluation in calibrant, its prediction files and its callbacks take the softmax of normalised logits. In
    your own loop, measure and calibrate ``loss.predictive(logits)``.

    Args:
        temperature: Temperature T. Confidences cannot exceed 1 / (1 + (K - 1) exp(-sqrt(K / (K - 1)) / T)): 0.242 for K = 10
            and T = 1, the default of the authors' code; practically 1 for T = 0.04.
        **options: Options of all losses: ignore_index, reduction, class_weights; task is multiclass.

    Example:
        >>> import torch
        >>> from calibrant.losses import LogitNorm
        >>> loss = LogitNorm(temperature=0.5)
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(loss(logits, target)), 4)
        0.3472
        >>> loss.predictive(torch.tensor([[3.0, 4.0]]))
        tensor([[1.2000, 1.6000]])
    """

    @with_options
    def __init__(self, *, temperature: float = 0.04, **options: "Unpack[Options]") -> None:
        _check(temperature, options)
        super().__init__(**options)
        self.temperature = temperature

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return logitnorm_loss(logits, target, temperature=self.temperature, **self.options)

    def predictive(self, logits: Tensor) -> Tensor:
        """The normalised logits, whose softmax is the prediction."""
        return normalised(logits, self.temperature)
