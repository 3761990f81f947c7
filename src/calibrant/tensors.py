"""From what a user passes to what the mathematics needs: the only place that validates and masks.

Logits have shape ``(N, K, *spatial)`` with the classes in dimension 1, targets have shape ``(N, *spatial)``.
Nothing is flattened or filtered on the way: dropping ignored pixels would make shapes depend on data (a device
synchronisation, a graph break in ``torch.compile``), so they are carried along and masked out of every sum.
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]


class Batch(NamedTuple):
    """Checked logits and labels.

    Attributes:
        logits: ``(N, K, *spatial)``, at least float32.
        target: ``(N, *spatial)``, int64, 0 at ignored places so that it can always be used as an index.
        kept: ``(N, *spatial)``, False at ignored places.
    """

    logits: Tensor
    target: Tensor
    kept: Tensor


def batch(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    *,
    num_classes: int | None = None,
    look_at_values: bool = False,
) -> Batch:
    """Check ``logits`` and ``target`` and bring them into the form of :class:`Batch`.

    Shapes and types are always checked. Values can only be checked by waiting for the device, so labels are looked at on
    the CPU, and everywhere when ``look_at_values`` is set, which also refuses logits that are not finite.
    """
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
            "build the loss with the network's number of outputs, and keep the classes in dimension 1"
        )
    if target.shape != (size, *spatial):
        raise ValueError(
            f"target must have shape {(size, *spatial)} to go with logits of shape {_shape(logits)}, got {_shape(target)}; "
            "logits are (N, K, *spatial), target is (N, *spatial)"
        )

    target = target.long()
    kept = target != ignore_index
    target = torch.where(kept, target, 0)
    if target.numel() and (look_at_values or (target.is_cpu and not torch.compiler.is_compiling())):
        _check_labels(target, classes)
    if look_at_values:
        _check_finite(logits, kept)
    return Batch(logits if logits.dtype in (torch.float32, torch.float64) else logits.float(), target, kept)


def reduce(values: Tensor, kept: Tensor, reduction: Reduction) -> Tensor:
    """Reduce ``values`` ``(N, *spatial)`` over what is kept; nothing kept gives 0 with zero gradient."""
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


def top_class(batch: Batch) -> tuple[Tensor, Tensor]:
    """Probability of the predicted class, and whether the prediction is right; both ``(N, *spatial)``."""
    top, prediction = batch.logits.max(dim=1)
    return (top - batch.logits.logsumexp(dim=1)).exp(), prediction == batch.target


def double(tensor: Tensor) -> Tensor:
    """``tensor`` in float64, moved to the CPU where its device does not know that type."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


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
