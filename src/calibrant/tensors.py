"""Logits and labels as the mathematics needs them: checked, masked, in blocks.

Logits have shape ``(N, K, *spatial)`` with the classes in dimension 1, targets have shape ``(N, *spatial)``. Losses take
tensors of logits; predictions in other forms go through :mod:`calibrant.inputs` first.

Nothing is flattened or filtered on the way: dropping ignored pixels would make shapes depend on data (a device
synchronisation, a graph break in ``torch.compile``), so they are carried along and masked out of every sum.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]
#: What a row of scores predicts: one of K classes, one event, or L events.
Task = Literal["multiclass", "binary", "multilabel"]


class Samples(NamedTuple):
    """Checked logits and labels of samples or pixels.

    Attributes:
        logits: ``(N, K, *spatial)``, at least float32.
        target: ``(N, *spatial)``, int64, 0 at ignored places so that it can always be used as an index.
        kept: ``(N, *spatial)``, False at ignored places.
        task: What was predicted. Events have two classes, of which class 1 means that they happened; several events per
            sample, ``(N, 2, L, *spatial)``, are placed like pixels.
        soft: Soft targets, ``(N, K, *spatial)``; then ``target`` is the most probable class.
    """

    logits: Tensor
    target: Tensor
    kept: Tensor
    task: Task = "multiclass"
    soft: Tensor | None = None

    @property
    def of_event(self) -> bool:
        """Whether class 1 is an event whose probability was predicted."""
        return self.task != "multiclass"

    def labels(self, ignore_index: int = -100) -> Tensor:
        """The labels as passed, ``ignore_index`` where they are ignored."""
        return self.target.where(self.kept, ignore_index)

    def targets(self, ignore_index: int = -100) -> Tensor:
        """Labels or soft targets, such that they can be passed on with the logits and the task below."""
        if self.soft is None:
            return self.labels(ignore_index)
        return self.soft[:, 1].where(self.kept, ignore_index) if self.of_event else self.soft

    @property
    def two_class_task(self) -> Task:
        """The task that the logits stand for now that events have two classes."""
        return "binary" if self.of_event else "multiclass"


class Block(NamedTuple):
    """Some samples that are processed at once.

    Attributes:
        logits: ``(n, K)`` or ``(n, K, pixels)``, at least float32.
        target: ``(n,)`` or ``(n, pixels)``, as in :class:`Samples`.
        kept: False at ignored places.
        places: Where the flattened ``kept`` is True, or None if it is everywhere.
        soft: Soft targets, in the shape of the logits.
    """

    logits: Tensor
    target: Tensor
    kept: Tensor
    places: Tensor | None
    soft: Tensor | None = None

    def pick(self, values: Tensor) -> Tensor:
        """Those of ``values``, one per sample, that are not ignored, as a vector."""
        return values.flatten() if self.places is None else values.flatten()[self.places]


def for_training(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    *,
    num_classes: int | None = None,
    finite: bool = False,
) -> Samples:
    """Check ``logits`` and ``target`` for a loss, which computes in at least float32.

    Checking values means waiting for the device, so labels are checked on the CPU, and everywhere if ``finite`` is set,
    which also refuses logits that are not finite, or probabilities.
    """
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise TypeError(f"logits must be a floating point tensor, got {describe(logits)}; pass the network's raw outputs")
    if not isinstance(target, Tensor):
        raise TypeError(wrong_labels(target))
    if logits.dim() < 2:
        raise ValueError(
            f"logits must have shape (N, K) or (N, K, *spatial), got {shape_of(logits)}; for a single sample use "
            'logits.unsqueeze(0), for a binary network with one output pass task="binary"'
        )
    samples = checked(logits, target, ignore_index, num_classes, labels=finite)
    if finite and samples.kept.numel():
        _check_values(samples.logits, samples.kept)
    return samples._replace(logits=at_least_single(samples.logits))


def checked(logits: Tensor, target: Tensor, ignore_index: int, num_classes: int | None, *, labels: bool) -> Samples:
    """Shapes and types are always checked, labels if ``labels`` is set or they are on the CPU."""
    if target.dtype is torch.bool or target.is_floating_point() or target.is_complex():
        raise TypeError(wrong_labels(target))
    size, classes, *spatial = logits.shape
    if classes < 2:
        raise ValueError(
            f"logits must have at least 2 classes in dimension 1, got shape {shape_of(logits)}; for a binary network with "
            'one output pass task="binary"'
        )
    if num_classes is not None and classes != num_classes:
        raise ValueError(
            f"logits have {classes} classes in dimension 1 (shape {shape_of(logits)}), but num_classes={num_classes}; "
            "num_classes must be the network's number of outputs, and classes are in dimension 1"
        )
    if target.shape != (size, *spatial):
        raise ValueError(
            f"target must have shape {(size, *spatial)} to match logits of shape {shape_of(logits)}, got "
            f"{shape_of(target)}; logits are (N, K, *spatial), target is (N, *spatial)"
        )
    target = target.long()
    kept = target != ignore_index
    target = torch.where(kept, target, 0)
    if target.numel() and (labels or target.is_cpu) and not hidden(target):
        _check_labels(target, classes)
    return Samples(logits, target, kept)


def hidden(tensor: Tensor) -> bool:
    """Whether values cannot be inspected, because a compiler or a ``torch.func`` transform is tracing."""
    return torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # noqa: SLF001


def blocks(samples: Samples, most: int = 2**20) -> Iterator[Block]:
    """Split samples into blocks of ``(n, K)`` or ``(n, K, pixels)`` logits, ``most`` numbers that stay in cache.

    Accelerators get large blocks instead, as launching work is what costs there. Logits are at least float32 in each block.
    """
    logits = samples.logits
    size, classes = logits.shape[:2]
    most = most if logits.is_cpu else 2**24
    pixels = logits.shape[2:].numel()
    whole = max(1, most // max(1, classes * pixels))  # samples or images at a time
    everything = bool(samples.kept.all())

    def block(logits: Tensor, target: Tensor, kept: Tensor, soft: Tensor | None) -> Block:
        places = None if everything else kept.flatten().nonzero().squeeze(1)
        return Block(at_least_single(logits), target, kept, places, soft)

    for start in range(0, size, whole):
        images, target, kept = (part[start : start + whole] for part in samples[:3])
        soft = None if samples.soft is None else samples.soft[start : start + whole]
        if logits.dim() == 2:
            yield block(images, target, kept, soft)
            continue
        images, target, kept = images.flatten(2), target.flatten(1), kept.flatten(1)
        soft = None if soft is None else soft.flatten(2)
        width = max(1, most // (classes * len(images)))
        for left in range(0, pixels, width):
            columns = slice(left, left + width)
            own = None if soft is None else soft[..., columns]
            yield block(images[..., columns], target[:, columns], kept[:, columns], own)


def reduce(values: Tensor, kept: Tensor, reduction: Reduction) -> Tensor:
    """Reduce ``values`` ``(N, *spatial)`` over what is not ignored; if nothing is left, 0 with zero gradient."""
    values = torch.where(kept, values, 0)
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    if reduction == "mean":
        return values.sum() / kept.sum().clamp(min=1)
    raise ValueError(f"reduction must be one of {', '.join(get_args(Reduction))}, got {reduction!r}")


def per_class(vector: Tensor, logits: Tensor) -> Tensor:
    """View a vector of K values so that it broadcasts along the classes of ``logits``, in their type."""
    return vector.to(logits.dtype).view(-1, *[1] * (logits.dim() - 2))


def at_least_single(logits: Tensor) -> Tensor:
    """Half-precision ``logits`` in float32, others unchanged."""
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def double(tensor: Tensor) -> Tensor:
    """``tensor`` in float64, moved to the CPU if its device does not support that."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def sum_double(tensor: Tensor, dim: list[int]) -> Tensor:
    """Sum in float64, on the CPU if the device does not support that."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).sum(dim=dim, dtype=torch.float64)


def check_not_empty(count: int, ignore_index: int = -100, **_: object) -> None:
    """Refuse an empty set of samples; accepts all options of :class:`Given`."""
    if not count:
        raise ValueError(
            f"there is nothing to measure: no samples are left after ignoring those labelled ignore_index={ignore_index}"
        )


def _check_labels(target: Tensor, classes: int) -> None:
    lowest, highest = (int(value) for value in target.aminmax())
    if lowest < 0 or highest >= classes:
        wrong = highest if highest >= classes else lowest
        raise ValueError(
            f"target has value {wrong} but logits have {classes} classes (0..{classes - 1}); "
            f"if {wrong} marks samples or pixels to ignore, pass ignore_index={wrong}"
        )


def _check_values(logits: Tensor, kept: Tensor) -> None:
    """Refuse logits that are not finite, or probabilities as far as a few rows tell; waits for the device once."""
    finite = torch.stack(torch.aminmax(logits.detach())).isfinite().all()  # in one pass; NaN propagates
    few, own = corner(logits.detach(), 2), corner(kept, 1)
    alike = ((few.amin(dim=1) >= 0) & (off_one(few) <= rounding(few)) | ~own).all() & own.any()
    whole, probabilities = torch.stack([finite, alike]).tolist()
    broken = 0 if whole else int((~logits.isfinite().all(dim=1) & kept).sum())
    if broken:
        raise ValueError(
            f"logits must be finite, but {broken} of {int(kept.sum())} samples have a NaN or infinite logit; "
            "the network has diverged: lower the learning rate or clip gradients, and check the inputs"
        )
    if probabilities:
        raise ValueError(
            "logits are probabilities: no row has a negative value, and each adds up to 1; losses take the network's raw "
            "outputs: remove its final softmax"
        )


def wrong_labels(target: object) -> str:
    """What to say about labels that are not integers."""
    return (
        f"target must be a tensor of integer class labels, got {describe(target)}; turn one-hot labels into labels with "
        "target.argmax(1), others with target.long(); losses also take probabilities, in the shape of the logits"
    )


def describe(value: object) -> str:
    """The type of a value, for messages."""
    return f"a tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """A shape as messages print it."""
    return tuple(tensor.shape)


def corner(tensor: Tensor, spatial: int) -> Tensor:
    """The first samples, or a pixel of each of the first images; ``spatial`` is the dimension where pixels start."""
    tensor = tensor[:64]
    for dim in range(spatial, tensor.dim()):
        tensor = tensor.narrow(dim, 0, min(1, tensor.shape[dim]))
    return tensor


def off_one(scores: Tensor) -> Tensor:
    """How far the sum of each row ``(N, K, *spatial)`` is from 1."""
    return (sum_double(scores, [1]) - 1).abs().float().to(scores.device)


def rounding(scores: Tensor) -> float:
    """How far the sums of probabilities may be from 1 if they were rounded to their dtype only."""
    return max(1e-3, torch.finfo(scores.dtype).eps)
