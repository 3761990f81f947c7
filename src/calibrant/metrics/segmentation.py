"""Measures for segmentation."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from calibrant import inputs, outcomes, tensors
from calibrant.checks import one_of
from calibrant.inputs import Array, Given, in_kind
from calibrant.tensors import Samples, Task

if TYPE_CHECKING:
    from typing_extensions import Unpack

Rule = Literal["standard", "released"]


@in_kind
def mean_iou(logits: Array, target: Array, *, rule: Rule = "standard", **given: "Unpack[Given]") -> Tensor:
    r"""Mean over classes of intersection over union, :math:`\frac{TP}{TP + FP + FN}`, pooled over all pixels.

    The background, class 0, counts; classes that occur neither as label nor as prediction are left out.
    ``rule="released"`` is that of the code released with CALS and MbLS: without the background, and with 0 for classes
    that do not occur.

    Example:
        >>> from calibrant.functional import mean_iou
        >>> import torch
        >>> logits = torch.tensor([4.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 2, 4)
        >>> target = torch.tensor([[[0, 0, 0, 1], [0, 0, 0, 1]]])
        >>> round(float(mean_iou(logits, target)), 4)
        0.375
    """
    one_of("rule", rule, ("standard", "released"))
    samples = inputs.for_measuring(logits, target, **given)
    tensors.check_not_empty(int(samples.kept.sum()), **given)
    return iou_of(areas(samples), rule=rule)


def per_image(
    metric: Callable[..., Tensor],
    logits: Array,
    target: Array,
    *,
    ignore_index: int = -100,
    probs: bool | None = None,
    task: Task = "multiclass",
    **options: Any,
) -> Tensor | float:
    """Mean over images of a metric of each image's pixels, as CALS evaluates segmentation.

    Images without labelled pixels are skipped. Pooling all pixels, as every metric does on its own, gives a different
    number, usually a smaller one.

    Args:
        metric: A function such as :func:`ece`.
        logits: ``(N, K, *spatial)``.
        target: ``(N, *spatial)``.
        ignore_index: Label of pixels to ignore.
        probs: Whether these are probabilities; see :class:`calibrant.inputs.Given`.
        task: ``"binary"`` if there is one score per pixel.
        **options: Passed on to ``metric``.

    Example:
        >>> from calibrant.functional import ece, per_image
        >>> import torch
        >>> logits = torch.tensor([4.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 2, 4)
        >>> target = torch.tensor([[[0, 0, 0, 1], [0, 0, 0, 1]]])
        >>> round(float(per_image(ece, logits, target)), 4)
        0.232
    """
    samples = inputs.for_measuring(logits, target, ignore_index, probs=probs, task=task)
    labels = samples.labels(ignore_index)
    images = labelled_images(samples)
    tensors.check_not_empty(len(images), ignore_index)
    parts = ((samples.logits[i : i + 1], labels[i : i + 1]) for i in images)
    options = {**reading(samples), **options}
    mean = torch.stack([metric(*part, ignore_index=ignore_index, **options) for part in parts]).mean()
    return mean if isinstance(logits, Tensor) else float(mean)


def reading(samples: Samples) -> dict[str, Any]:
    """Options by which a metric reads the logits of samples once more."""
    return {"task": samples.two_class_task} if samples.of_event else {}


def labelled_images(samples: Samples) -> list[int]:
    """Indices of the images with labelled pixels."""
    if samples.logits.dim() < 3:
        raise ValueError(f"a mean over images needs images (N, K, *spatial), got shape {tuple(samples.logits.shape)}")
    numbers: list[int] = samples.kept.flatten(1).any(dim=1).nonzero().flatten().tolist()
    return numbers


@torch.no_grad()
def areas(samples: Samples) -> Tensor:
    """Pixels of each class: in the intersection of label and prediction, labelled, predicted; ``(3, K)`` int64."""
    classes = samples.logits.shape[1]
    sums = torch.zeros(3, classes, dtype=torch.int64, device=samples.logits.device)
    for block in tensors.blocks(samples):
        largest, prediction = block.logits.max(dim=1)
        outcomes.check(block, ~largest.isfinite())
        predicted, label = block.pick(prediction), block.pick(block.target)
        sums += torch.stack([torch.bincount(x, minlength=classes) for x in (label[label == predicted], label, predicted)])
    return sums


def iou_of(areas: Tensor, *, rule: Rule = "standard") -> Tensor:
    """Mean intersection over union from :func:`areas` ``(3, *, K)``, such as those of resamples."""
    intersection, labelled, predicted = areas.double()
    union = labelled + predicted - intersection
    iou: Tensor = intersection / union.clamp(min=1)
    if rule == "released":
        return iou[..., 1:].mean(dim=-1)
    mean: Tensor = iou.sum(dim=-1) / (union > 0).sum(dim=-1)
    return mean
