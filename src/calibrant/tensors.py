"""From what a user passes to what the mathematics needs: the only place that validates and masks.

Logits have shape ``(N, K, *spatial)`` with the classes in dimension 1, targets have shape ``(N, *spatial)``.
Nothing is flattened or filtered on the way: dropping ignored pixels would make shapes depend on data (a device
synchronisation, a graph break in ``torch.compile``), so they are carried along and masked out of every sum.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]


class Samples(NamedTuple):
    """Checked logits and labels of samples or pixels.

    Attributes:
        logits: ``(N, K, *spatial)``, at least float32.
        target: ``(N, *spatial)``, int64, 0 at ignored places so that it can always be used as an index.
        kept: ``(N, *spatial)``, False at ignored places.
    """

    logits: Tensor
    target: Tensor
    kept: Tensor


class Block(NamedTuple):
    """Some samples that are processed at once.

    Attributes:
        logits: ``(n, K)`` or ``(n, K, pixels)``, at least float32.
        target: ``(n,)`` or ``(n, pixels)``, as in :class:`Samples`.
        kept: False at ignored places.
        places: Where the flattened ``kept`` is True, or None if it is everywhere.
    """

    logits: Tensor
    target: Tensor
    kept: Tensor
    places: Tensor | None

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

    Values can only be checked by waiting for the device, so labels are looked at on the CPU, and everywhere when ``finite``
    is set, which also refuses logits that are not finite.
    """
    samples = _checked(logits, target, ignore_index, num_classes, labels=finite)
    if finite:
        _check_finite(samples.logits, samples.kept)
    return samples._replace(logits=_at_least_single(samples.logits))


def for_measuring(logits: Tensor, target: Tensor, ignore_index: int = -100, *, num_classes: int | None = None) -> Samples:
    """Check ``logits`` and ``target``, all labels included, for a metric; logits keep their type."""
    return _checked(logits, target, ignore_index, num_classes, labels=True)


def _checked(logits: Tensor, target: Tensor, ignore_index: int, num_classes: int | None, *, labels: bool) -> Samples:
    """Shapes and types are always checked, labels if ``labels`` is set or they are on the CPU."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise TypeError(f"logits must be a floating point tensor, got {_describe(logits)}; pass the network's raw outputs")
    if not isinstance(target, Tensor) or target.dtype is torch.bool or target.is_floating_point() or target.is_complex():
        raise TypeError(
            f"target must be a tensor of integer class labels, got {_describe(target)}; "
            "turn one-hot or soft labels into labels with target.argmax(1), float labels with target.long()"
        )
    if logits.dim() < 2:
        raise ValueError(
            f"logits must have shape (N, K) or (N, K, *spatial), got {_shape(logits)}; "
            "for a single sample use logits.unsqueeze(0)"
        )
    size, classes, *spatial = logits.shape
    if classes < 2:
        raise ValueError(
            f"logits must have at least 2 classes in dimension 1, got shape {_shape(logits)}; for a binary network with one "
            "output z use torch.cat([torch.zeros_like(z), z], dim=1)"
        )
    if num_classes is not None and classes != num_classes:
        raise ValueError(
            f"logits have {classes} classes in dimension 1 (shape {_shape(logits)}), but num_classes={num_classes}; "
            "num_classes has to be the network's number of outputs, and the classes are in dimension 1"
        )
    if target.shape != (size, *spatial):
        raise ValueError(
            f"target must have shape {(size, *spatial)} to go with logits of shape {_shape(logits)}, got {_shape(target)}; "
            "logits are (N, K, *spatial), target is (N, *spatial)"
        )
    target = target.long()
    kept = target != ignore_index
    target = torch.where(kept, target, 0)
    if target.numel() and (labels or target.is_cpu) and not torch.compiler.is_compiling():
        _check_labels(target, classes)
    return Samples(logits, target, kept)


def blocks(samples: Samples) -> Iterator[Block]:
    """Split samples into blocks of ``(n, K)`` or ``(n, K, pixels)`` logits that stay in cache.

    Accelerators get large blocks instead, as launching work is what costs there. Logits are at least float32 in each block.
    """
    logits = samples.logits
    size, classes = logits.shape[:2]
    most = 2**20 if logits.is_cpu else 2**24
    pixels = logits.shape[2:].numel()
    whole = max(1, most // max(1, classes * pixels))  # samples or images at a time
    everything = bool(samples.kept.all())

    def block(logits: Tensor, target: Tensor, kept: Tensor) -> Block:
        places = None if everything else kept.flatten().nonzero().squeeze(1)
        return Block(_at_least_single(logits), target, kept, places)

    for start in range(0, size, whole):
        images, target, kept = (part[start : start + whole] for part in samples)
        if logits.dim() == 2:
            yield block(images, target, kept)
            continue
        images, target, kept = images.flatten(2), target.flatten(1), kept.flatten(1)
        width = max(1, most // (classes * len(images)))
        for left in range(0, pixels, width):
            columns = slice(left, left + width)
            yield block(images[..., columns], target[:, columns], kept[:, columns])


def from_probs(probs: Tensor, tolerance: float = 1e-3) -> Tensor:
    """Turn probabilities into logits: their logarithms, whose softmax they are.

    Args:
        probs: ``(N, K)`` or ``(N, K, *spatial)``, adding up to 1 over dimension 1; probabilities of 0 become -infinity.
        tolerance: How far a sum may be from 1; rounded probabilities of many classes may need more than the default.

    Raises:
        ValueError: If a value is not a probability; the message names the first row.
    """
    if not isinstance(probs, Tensor) or not probs.is_floating_point() or probs.dim() < 2:
        what = f"{_describe(probs)} of shape {_shape(probs)}" if isinstance(probs, Tensor) else type(probs).__name__
        raise TypeError(f"probs must be a floating point tensor (N, K) or (N, K, *spatial), got {what}")
    wide = double(probs)
    total = wide.sum(dim=1)
    for wrong, message in (
        (
            ~(wide >= 0).all(dim=1),
            "has the value {value:g}, which is no probability; if these are logits, pass them as they are",
        ),
        (~((total - 1).abs() <= tolerance), "adds up to {total:g}, not to 1; if these are logits, pass them as they are"),
    ):
        if wrong.any():
            place = wrong.nonzero()[0].tolist()
            row = wide.movedim(1, -1)[tuple(place)]
            where = f"row {place[0]}" + (f" at pixel {tuple(place[1:])}" if len(place) > 1 else "")
            raise ValueError(f"probs: {where} {message.format(value=float(row.min()), total=float(row.sum()))}")
    return probs.log()


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


def _at_least_single(logits: Tensor) -> Tensor:
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def double(tensor: Tensor) -> Tensor:
    """``tensor`` in float64, moved to the CPU if its device does not support that."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def sum_double(tensor: Tensor, dim: list[int]) -> Tensor:
    """Sum in float64, on the CPU if the device does not support that."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).sum(dim=dim, dtype=torch.float64)


def check_not_empty(count: int, ignore_index: int) -> None:
    """Refuse to measure nothing."""
    if not count:
        raise ValueError(
            f"there is nothing to measure: no sample is left after leaving out those labelled ignore_index={ignore_index}"
        )


def _check_labels(target: Tensor, classes: int) -> None:
    lowest, highest = (int(value) for value in target.aminmax())
    if lowest < 0 or highest >= classes:
        wrong = highest if highest >= classes else lowest
        raise ValueError(
            f"target has value {wrong} but logits have {classes} classes (0..{classes - 1}); "
            f"if {wrong} marks samples or pixels to leave out, pass ignore_index={wrong}"
        )


def _check_finite(logits: Tensor, kept: Tensor) -> None:
    wrong = int((~logits.isfinite().all(dim=1) & kept).sum())
    if wrong:
        raise ValueError(
            f"logits must be finite, but {wrong} of {int(kept.sum())} samples have a NaN or infinite logit; "
            "the network has diverged: lower the learning rate or clip gradients, and check the inputs"
        )


def _describe(value: object) -> str:
    return f"a tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
