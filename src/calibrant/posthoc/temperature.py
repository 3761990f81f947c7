"""Temperature scaling."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from calibrant import inputs, tensors
from calibrant.checks import one_of, whole
from calibrant.distributed import sum_over_processes
from calibrant.inputs import Array, Given, shown
from calibrant.metrics.calibration import width_bins
from calibrant.metrics.estimators import calibration_error
from calibrant.outcomes import judged
from calibrant.posthoc.base import Pointwise, finite
from calibrant.tensors import Block, Samples

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: What the temperature minimises.
Criterion = Literal["nll", "ece"]
#: Bounds of the search for a temperature; data that call for more get the bound, and a warning.
LOWEST, HIGHEST = 1e-3, 1e3


class TemperatureScaling(Pointwise):
    r"""Divide all logits by one number: :math:`\log \mathrm{softmax}(l / T)` (Guo et al., ICML 2017).

    With :math:`\beta = 1/T` the NLL of the fitting data is convex, so the temperature that minimises it is unique. It
    is the root of the derivative :math:`\sum_i \mathrm{E}_{s(\beta l_i)}[l_i] - l_{i, y_i}`, found by Newton's method inside
    a bracket, in the logarithm of T, which keeps it positive. What an iteration needs is added up over batches and
    processes (:meth:`fit_batches`).

    Perfectly separable data call for T = 0, labels unrelated to the logits for infinite T: these end at the bounds 0.001 and
    1000 with a warning.

    Args:
        criterion: ``"nll"``, or ``"ece"`` for the grid 0.1, 0.2, ..., 10.0 that the papers search for the smallest ECE.
        num_bins: Number of bins of that ECE.

    Example:
        >>> from calibrant.posthoc import TemperatureScaling
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> calibrator = TemperatureScaling().fit(logits, target)
        >>> round(float(calibrator.temperature_), 4)
        3.641
        >>> round(calibrator.predict_proba([[4.0, 0.0]])[0][0], 4)
        0.75
    """

    key = "temperature"
    preserves_accuracy = True
    soft = True
    learned: ClassVar[tuple[str, ...]] = ("temperature_",)
    temperature_: Tensor

    def __init__(self, *, criterion: Criterion = "nll", num_bins: int = 15) -> None:
        super().__init__()
        self.criterion: Criterion = one_of("criterion", criterion, get_args(Criterion))
        self.num_bins = whole("num_bins", num_bins, 1)

    def _fit(self, samples: Samples) -> None:
        temperature = self._by_grid(samples) if self.criterion == "ece" else optimal_temperature(samples)
        self.temperature_ = torch.tensor(temperature, dtype=torch.float64, device=samples.logits.device)

    def _by_grid(self, samples: Samples) -> float:
        def error(t: float) -> float:
            return float(calibration_error(width_bins(judged(samples._replace(logits=samples.logits / t)), self.num_bins)))

        return min((k / 10 for k in range(1, 101)), key=error)

    @shown
    @torch.no_grad()
    def fit_batches(self, batches: Iterable[tuple[Array, Array]], **given: "Unpack[Given]") -> "TemperatureScaling":
        """Fit on ``(logits, target)`` batches without concatenating them; all processes must call it.

        Args:
            batches: Read once for each iteration, five to ten times; a list or a data loader, not a generator. In a job of
                several processes each passes its own share, of any length.
            **given: ``ignore_index``, ``probs`` and ``task``; see :class:`calibrant.inputs.Given`.
        """
        if self.criterion == "ece":
            raise ValueError('fit_batches finds the minimum of the NLL; for criterion="ece" call fit with all logits')
        if isinstance(batches, Iterator):
            raise TypeError("fit_batches reads its batches several times; pass a list or a data loader, not a generator")

        def evaluate(beta: float) -> Slope:
            total = torch.zeros(3, dtype=torch.float64)
            for logits, target in batches:
                samples = inputs.for_measuring(logits, target, soft=None, **given)
                self.num_classes = samples.logits.shape[1]
                total += slope(samples._replace(logits=finite(samples.logits.detach())), beta).cpu()
            return Slope(*sum_over_processes(total).tolist())

        self.temperature_ = torch.tensor(1 / _solve(evaluate, 1.0, 1e-7), dtype=torch.float64)
        return self

    def _log_probs(self, logits: Tensor) -> Tensor:
        return (logits / self.temperature_.to(logits.dtype)).log_softmax(dim=-1)


class Slope(NamedTuple):
    """Sums over samples at a given beta: their number n, the first and second derivative of the NLL in beta."""

    n: float
    first: float
    second: float


def optimal_temperature(samples: Samples) -> float:
    """The temperature that minimises the NLL of a batch of finite logits."""
    start, size = 1.0, len(samples.logits)
    step = size // 4096
    if step >= 4:  # a subsample gives a good starting point
        some = Samples(samples.logits[::step], samples.target[::step], samples.kept[::step])
        some = some if samples.soft is None else some._replace(soft=samples.soft[::step])
        if bool(some.kept.any()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                start = _solve(lambda beta: Slope(*slope(some, beta).tolist()), 1.0, 1e-3)
    tolerance = 1e-11 if samples.logits.dtype == torch.float64 else 1e-7
    return 1 / _solve(lambda beta: Slope(*slope(samples, beta).tolist()), start, tolerance)


def slope(samples: Samples, beta: float) -> Tensor:
    """The three sums of :class:`Slope`."""
    total = torch.zeros(3, dtype=torch.float64, device=samples.logits.device)
    for block in tensors.blocks(samples):
        first, second = _derivatives(block, beta)
        total += torch.stack(
            [block.kept.sum().double(), block.pick(first).double().sum(), block.pick(second).double().sum()]
        )
    return total


def _derivatives(block: Block, beta: float) -> tuple[Tensor, Tensor]:
    """Mean under the softmax minus the true logit, and the variance; logits relative to the largest."""
    distance = block.logits - block.logits.amax(dim=1, keepdim=True)
    if block.soft is None:
        own = distance.gather(1, block.target.unsqueeze(1)).squeeze(1)
    else:
        own = (block.soft * distance).sum(dim=1)
    weight = (beta * distance).exp_()
    total = weight.sum(dim=1)
    mean = weight.mul_(distance).sum(dim=1) / total
    square = weight.mul_(distance).sum(dim=1) / total
    return mean - own, square - mean**2


def _solve(evaluate: Callable[[float], Slope], start: float, tolerance: float) -> float:
    """Root of the first derivative in beta, by Newton's method in log beta between bounds."""
    low, high = -math.log(HIGHEST), -math.log(LOWEST)
    at = min(max(math.log(start), low), high)
    for _ in range(100):
        beta = math.exp(at)
        n, first, second = evaluate(beta)
        if not n:
            raise ValueError("there is nothing to fit: there are no samples, or all are labelled ignore_index")
        # Where the softmax is saturated on the true classes, the slope vanishes numerically: beta may still grow.
        low, high = (at, high) if first < 0 or (first == 0 and second == 0) else (low, at)
        step = -first / (beta * second) if second > 0 else math.inf
        new = at + step if low < at + step < high else (low + high) / 2
        if abs(new - at) <= tolerance or first == 0 != second:
            at = new if abs(new - at) <= tolerance else at
            break
        at = new
    bound = HIGHEST if at < -math.log(HIGHEST) + 1e-4 else LOWEST if at > -math.log(LOWEST) - 1e-4 else None
    if bound is None:
        return math.exp(at)
    if evaluate(1 / HIGHEST).second == 0:  # all logits of a sample are equal: every temperature is equally good
        warnings.warn("logits do not distinguish the classes; the temperature stays at 1", UserWarning, stacklevel=5)
        return 1.0
    why = (
        "every prediction is correct (too few samples, or the network's training data)"
        if bound == LOWEST
        else "the labels are unrelated to the logits (are they in the same order?)"
    )
    warnings.warn(f"the best temperature lies beyond the bound of {bound:g}: {why}", UserWarning, stacklevel=5)
    return 1 / bound
