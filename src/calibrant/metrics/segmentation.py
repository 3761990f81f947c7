"""Measures for segmentation."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant import tensors
from calibrant.checks import one_of
from calibrant.tensors import Samples

Rule = Literal["standard", "released"]


def mean_iou(logits: Tensor, target: Tensor, *, rule: Rule = "standard", ignore_index: int = -100) -> Tensor:
    r"""Mean over classes of intersection over union, :math:`\frac{TP}{TP + FP + FN}`, pooled over all pixels.

    The background, class 0, counts; classes that occur neither as label nor as prediction are left out.
    ``rule="released"`` is that of the code released with CALS and MbLS: without the background, and with 0 for classes
    that do not occur.
    """
    one_of("rule", rule, ("standard", "released"))
    samples = tensors.for_measuring(logits, target, ignore_index)
    tensors.check_not_empty(int(samples.kept.sum()), ignore_index)
    return iou_of(areas(samples), rule=rule)


def per_image(
    metric: Callable[..., Tensor], logits: Tensor, target: Tensor, *, ignore_index: int = -100, **options: Any
) -> Tensor:
    """Mean over images of a metric of each image's pixels, as CALS evaluates segmentation.

    Images without labelled pixels are skipped. Pooling all pixels, as every metric does on its own, gives a different
    number, usually a smaller one.

    Args:
        metric: A function such as :func:`ece`.
        logits: ``(N, K, *spatial)``.
        target: ``(N, *spatial)``.
        ignore_index: Label of pixels to ignore.
        **options: Passed on to ``metric``.
    """
    kept = tensors.for_measuring(logits, target, ignore_index).kept.flatten(1).any(dim=1)
    images = kept.nonzero().flatten().tolist()
    tensors.check_not_empty(len(images), ignore_index)
    values = [metric(logits[i : i + 1], target[i : i + 1], ignore_index=ignore_index, **options) for i in images]
    return torch.stack(values).mean()


@torch.no_grad()
def areas(samples: Samples) -> Tensor:
    """Pixels of each class: in the intersection of label and prediction, labelled, predicted; ``(3, K)`` int64."""
    classes = samples.logits.shape[1]
    sums = torch.zeros(3, classes, dtype=torch.int64, device=samples.logits.device)
    for block in tensors.blocks(samples):
        predicted, label = block.pick(block.logits.max(dim=1).indices), block.pick(block.target)
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
