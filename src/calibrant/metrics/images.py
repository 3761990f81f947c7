from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibrant import tensors


def per_image(
    metric: Callable[..., Tensor], logits: Tensor, target: Tensor, *, ignore_index: int = -100, **options: Any
) -> Tensor:
    """Mean over images of a metric of each image's pixels, as CALS evaluates segmentation.

    Images without a label do not count. Pooling all pixels, which every metric does by itself, gives another number, usually
    a smaller one.

    Args:
        metric: A function such as :func:`ece`.
        logits: ``(N, K, *spatial)``.
        target: ``(N, *spatial)``.
        ignore_index: Label of pixels to leave out.
        **options: Passed on to ``metric``.
    """
    kept = tensors.check(logits, target, ignore_index).kept.flatten(1).any(dim=1)
    images = kept.nonzero().flatten().tolist()
    tensors.check_not_empty(len(images), ignore_index)
    values = [metric(logits[i : i + 1], target[i : i + 1], ignore_index=ignore_index, **options) for i in images]
    return torch.stack(values).mean()
