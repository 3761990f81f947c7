from typing import Literal

import torch
from torch import Tensor

from calibrant import tensors
from calibrant.tensors import Batch
from calibrant.validation import one_of

Rule = Literal["standard", "released"]


def mean_iou(logits: Tensor, target: Tensor, rule: Rule = "standard", *, ignore_index: int = -100) -> Tensor:
    r"""Mean over classes of intersection over union, :math:`\frac{TP}{TP + FP + FN}`, pooled over all pixels.

    The background, class 0, counts; classes that occur neither as label nor as prediction are left out.
    ``rule="released"`` is that of the code released with CALS and MbLS: without the background, and with 0 for classes
    that do not occur.
    """
    one_of("rule", rule, ("standard", "released"))
    batch = tensors.check(logits, target, ignore_index)
    tensors.check_not_empty(int(batch.kept.sum()), ignore_index)
    return iou_of(areas(batch), rule)


@torch.no_grad()
def areas(batch: Batch) -> Tensor:
    """Pixels of each class: in the intersection of label and prediction, labelled, predicted; ``(3, K)`` int64."""
    classes = batch.logits.shape[1]
    sums = torch.zeros(3, classes, dtype=torch.int64, device=batch.logits.device)
    for block in tensors.blocks(batch):
        predicted, label = block.pick(block.logits.max(dim=1).indices), block.pick(block.target)
        sums += torch.stack([torch.bincount(x, minlength=classes) for x in (label[label == predicted], label, predicted)])
    return sums


def iou_of(areas: Tensor, rule: Rule = "standard") -> Tensor:
    """Mean intersection over union from :func:`areas`."""
    intersection, labelled, predicted = areas.double()
    union = labelled + predicted - intersection
    iou: Tensor = intersection / union.clamp(min=1)
    return iou[union > 0].mean() if rule == "standard" else iou[1:].mean()
