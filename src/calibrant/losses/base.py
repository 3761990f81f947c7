"""What all losses share, and the protocol of those that learn from validation data."""

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast, get_args

import torch
from torch import Tensor, nn

from calibrant import tensors
from calibrant.checks import one_of, whole
from calibrant.distributed import sum_over_processes
from calibrant.losses.targets import OPTIONS, Batch, Options, batch, weights_of, with_options, without_weights
from calibrant.tensors import Reduction, Task

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Loss(nn.Module, ABC):
    """A loss on logits: ``loss(logits, target)``.

    Logits are ``(N, K)`` or ``(N, K, *spatial)``, targets ``(N,)`` or ``(N, *spatial)`` with integer labels, or
    soft targets in the shape of the logits, as from mixup, distillation or several annotators. Samples or pixels labelled
    ``ignore_index`` are left out of every term. Half-precision logits are upcast to float32. The options that all losses
    share are described in :class:`calibrant.losses.targets.Options`.
    Every constructor argument is stored under its own name.

    Example:
        >>> import torch
        >>> from calibrant import losses
        >>> loss = losses.create("fl", gamma=2.0, ignore_index=255)
        >>> logits, labels = torch.randn(2, 21, 8, 8), torch.full((2, 8, 8), 255)
        >>> float(loss(logits, labels))  # all pixels are ignored
        0.0
    """

    class_weights: Tensor | None

    @with_options
    def __init__(self, **options: "Unpack[Options]") -> None:
        super().__init__()
        chosen: Options = {**OPTIONS, **options}
        self.ignore_index = whole("ignore_index", chosen["ignore_index"])
        self.reduction: Reduction = one_of("reduction", chosen["reduction"], get_args(Reduction))
        self.task: Task = one_of("task", chosen["task"], get_args(Task))
        # Moves with the loss, but is not part of its state.
        self.register_buffer("class_weights", weights_of(chosen["class_weights"]), persistent=False)

    def _hold(self, name: str, value: Any) -> None:
        """Store an option; a loss that learns it overrides this."""
        setattr(self, name, value)

    @property
    def options(self) -> Options:
        """The options that all losses share."""
        return {
            "ignore_index": self.ignore_index,
            "reduction": self.reduction,
            "class_weights": self.class_weights,
            "task": self.task,
        }

    @abstractmethod
    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar or, with ``reduction="none"``, ``(N, *spatial)``."""

    def predictive(self, logits: Tensor) -> Tensor:
        """Logits whose softmax is the prediction: the network's own, unless the loss trains something else."""
        return logits

    def extra_repr(self) -> str:
        """Hyper-parameters as passed; shared options only where they differ from the default."""
        given = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        usual: Mapping[str, Any] = {**OPTIONS, "weight": self.class_weights}
        unusual = {name for name in given if name in usual and not _alike(given[name], usual[name])}
        shown = {name: value for name, value in given.items() if name not in usual or name in unusual}
        return ", ".join(f"{name}={_written(value)}" for name, value in shown.items())


def _written(value: Any) -> str:
    """A value in a repr; a learned number in the fewest digits that give it back, 0.05 and not 0.05000000074505806."""
    if not isinstance(value, Tensor):
        return repr(value)
    return str(value.numpy(force=True)) if value.dim() == 0 else repr(value.tolist())


def _alike(a: Any, b: Any) -> bool:
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)


def predictive(loss: nn.Module, logits: Tensor) -> Tensor:
    """Logits whose softmax is the prediction of a network trained with a loss, which may be any module."""
    return loss.predictive(logits) if isinstance(loss, Loss) else logits


class AdaptiveLoss(Loss):
    """A loss that learns its own weights from validation data.

    After each epoch of training, ``observe(logits, target)`` every validation batch, then ``adapt()`` once::

        for x, y in validation:
            loss.observe(model(x), y)
        loss.adapt()

    Learned state lives in buffers: it moves with ``.to()``, is saved by ``state_dict()``, and a run that loads it resumes
    where it stopped. Observations between two calls of ``adapt`` are not saved. Under ``torch.distributed`` each process
    observes its own share of the data and all of them call ``adapt``, which sums over processes; shares may be uneven or
    empty.

    Example:
        >>> import torch
        >>> from calibrant.losses import AdaFocal
        >>> loss = AdaFocal(num_bins=3)
        >>> loss.observe(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        >>> loss.adapt()
        >>> int(loss.epoch), sorted(loss.state_dict())
        (1, ['accuracies', 'confidences', 'edges', 'epoch', 'gammas'])
    """

    #: Names of the buffers that :meth:`history` records.
    learned: ClassVar[tuple[str, ...]]
    #: Those of them that are logged every epoch: minimum, mean and maximum, or the value of a scalar.
    logged: ClassVar[tuple[str, ...]] = ()
    epoch: Tensor

    @with_options
    def __init__(self, **options: "Unpack[Options]") -> None:
        super().__init__(**options)
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64))
        self._path: list[dict[str, Tensor]] = []
        self._epochs: Epochs | None = Epochs()  # until it adapts, or the caller is known to handle it

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss; warn once if epochs pass and it never adapts."""
        if not torch.compiler.is_compiling() and self._epochs is not None and self.training:
            self._count_step(logits)
        loss: Tensor = super().__call__(logits, target)
        return loss

    def train(self, mode: bool = True) -> "AdaptiveLoss":
        """Set the mode; switching back to training after an evaluation counts as the start of another epoch."""
        if mode and not self.training and self._epochs is not None:
            self._epochs.resumed()
        return super().train(mode)

    def _count_step(self, logits: Tensor) -> None:
        """Count a training step, and warn if there were too many."""
        if self._epochs is None or not getattr(logits, "requires_grad", False) or not torch.is_grad_enabled():
            return
        self._epochs.step(len(logits))
        if not self._epochs.passed:
            return
        steps, self._epochs = self._epochs.steps, None
        missing = "    loss.adapt()  # once"
        if not self._observed():
            missing = f"    loss.observe(model(x), y)  # every batch of the validation data\n{missing}"
        warnings.warn(
            f"{type(self).__name__} has been training for {steps:,} steps, more than an epoch, without learning anything: "
            f"its weights are still the initial ones. After each epoch, add\n{missing}",
            UserWarning,
            stacklevel=3,  # where the loss is called
        )

    @abstractmethod
    def _collect(self, given: Batch) -> None:
        """Add validation samples to the statistics."""

    @abstractmethod
    def _learn(self) -> None:
        """Update the learned buffers from the statistics of all processes."""

    @abstractmethod
    def _forget(self) -> None:
        """Clear the statistics, which are kept on the CPU; also called by the constructor to create them."""

    @abstractmethod
    def _observed(self) -> int:
        """Number of samples or pixels that this process has collected since the last :meth:`adapt`."""

    @torch.no_grad()
    def observe(self, logits: Tensor, target: Tensor) -> None:
        """Observe a batch of validation logits, of any size; the network should be in ``eval()`` mode."""
        classes = getattr(self, "num_classes", None)
        self._collect(batch(logits, target, num_classes=classes, finite=True, **without_weights(self.options)))

    @torch.no_grad()
    def adapt(self) -> None:
        """Update the weights from everything observed since the last call, then clear it; call once per epoch."""
        if not int(self._add_up(torch.tensor(self._observed(), device="cpu"))):
            raise RuntimeError(
                f"{type(self).__name__}.adapt() has nothing to learn from: call observe(logits, target) on the validation "
                "batches first (samples labelled ignore_index do not count)"
            )
        if not self._path:
            self._path.append(self._snapshot())
        self._learn()
        self._epochs = None
        self.epoch += 1
        self._path.append(self._snapshot())
        self._forget()

    def scheduled(self) -> None:
        """Tell the loss that its caller adapts it by a schedule, so that it does not warn of missing calls."""
        self._epochs = None

    def summary(self) -> str:
        """What has been learned, in a few words for the progress bar."""
        return ""

    def history(self) -> dict[str, Tensor]:
        """Learned state over time: ``epoch``, and each buffer of :attr:`learned` stacked along dimension 0.

        The first row is the initial state (in a resumed run, the loaded one); each :meth:`adapt` adds a row.
        """
        path = self._path or [self._snapshot()]
        return {name: torch.stack([row[name] for row in path]) for name in ("epoch", *self.learned)}

    def _snapshot(self) -> dict[str, Tensor]:
        return {name: self.get_buffer(name).detach().to("cpu", copy=True) for name in ("epoch", *self.learned)}

    def _add_up(self, tensor: Tensor) -> Tensor:
        """Sum over processes."""
        return sum_over_processes(tensor, self.epoch.device)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._epochs = None if int(self.epoch) else self._epochs
        # Observations and history belong to the state that is replaced.
        self._forget()
        self._path.clear()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # Learned state stays in at least float32 when a model is converted to half precision, which cannot represent a
        # multiplier of 1e-6; it still follows the device.
        def apply(tensor: Tensor) -> Tensor:
            applied = fn(tensor)
            return tensor.to(applied.device) if applied.dtype in (torch.float16, torch.bfloat16) else applied

        return super()._apply(apply, recurse)


class Epochs:
    """Infers from training steps alone that an epoch must have passed; batch sizes need no device synchronisation.

    Nothing marks the end of an epoch, and a first epoch may be long. Sure signs are: the same short batch came twice, after
    equally many full ones, as at the end of an epoch; training was resumed twice after an evaluation; or there were more
    steps than in the longest epoch in common use, 20,018 for ImageNet in batches of 64.

    Attributes:
        steps: Steps so far.
        passed: Whether an epoch has passed.
    """

    LONGEST = 25_000

    def __init__(self) -> None:
        self.steps = 0
        self.passed = False
        self._full, self._since = 0, 0  # size of a full batch, and full ones since the last short one
        self._short: tuple[int, int] | None = None
        self._rounds, self._trained = 0, False

    def step(self, size: int) -> None:
        """Count a batch of training samples."""
        self.steps += 1
        self._trained = True
        if size > self._full:
            self._full, self._since, self._short = size, 0, None
        if size == self._full:
            self._since += 1
        else:
            short, self._since = (size, self._since), 0
            self.passed |= short == self._short and short[1] >= 5  # with fewer, two batch sizes may just alternate
            self._short = short
        self.passed |= self._rounds >= 2 or self.steps > self.LONGEST

    def resumed(self) -> None:
        """Training resumes after an evaluation."""
        self._rounds += self._trained
        self._trained = False


class _KnownGradient(torch.autograd.Function):
    """Values ``(N, *spatial)`` whose gradient ``(N, K, *spatial)`` with respect to the logits is already computed."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, values: Tensor, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return values.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        logits, _, gradient = inputs
        ctx.save_for_backward(logits, gradient)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        logits, gradient = ctx.saved_tensors
        return only_once(logits, gradient) * grad_output.unsqueeze(1), None, None


class _OnlyOnce(torch.autograd.Function):
    """A gradient whose dependence on its origin is unknown to autograd."""

    generate_vmap_rule = True

    @staticmethod
    def forward(origin: Tensor, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Save nothing: backward only raises an error."""

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        raise RuntimeError(
            "this loss computes its own gradient and has no second derivative; use create_graph=False, or a loss such "
            "as CrossEntropy or Focal if you need second derivatives"
        )


def only_once(origin: Tensor, gradient: Tensor) -> Tensor:
    """Return ``gradient``, and refuse to differentiate it with respect to ``origin``."""
    return cast("Tensor", _OnlyOnce.apply(origin, gradient))


def number_of_classes(num_classes: int, task: Task) -> int:
    """The number of classes of a class-adaptive loss, checked; 2 for events."""
    if whole("num_classes", num_classes, 2) != 2 and task != "multiclass":
        raise ValueError(f'with task="{task}" each decision is between two classes: num_classes=2, not {num_classes}')
    return num_classes


def reduce_finite(values: Tensor, given: Batch) -> Tensor:
    """Reduce a loss that is infinite where a wrong class has a logit of -infinity.

    On the CPU, where checking costs nothing, an error says so.
    """
    if values.is_cpu and not tensors.hidden(values):
        wrong = given.kept & ~values.detach().isfinite()
        if bool(wrong.any()):
            logits = given.logits.detach().movedim(1, -1)[wrong]
            own = given.expected(given.logits.detach())[wrong]
            masked = (logits == -torch.inf).any(dim=1) & (logits < torch.inf).all(dim=1) & own.isfinite()
            if bool(masked.any()):
                raise ValueError(
                    f"{int(masked.sum())} of {int(given.kept.sum())} samples have a logit of -infinity, as of a masked "
                    "class: its distance to the others is infinite, and so is this loss; drop the class from the logits, "
                    "or use a loss that depends on probabilities only, such as CrossEntropy, Focal or Brier"
                )
    return given.reduce(values)


def with_gradient(logits: Tensor, values: Tensor, gradient: Tensor) -> Tensor:
    """Attach ``gradient``, the derivative of each of ``values`` with respect to its own logits, to ``values``."""
    return cast("Tensor", _KnownGradient.apply(logits, values, gradient))
