"""Sums over all pairs of samples as running sums over sorted confidences."""

import torch
from torch import Tensor
from torch.nn import functional


def order_with_ties(r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The order that sorts r and, for each position, where its run of equal values starts and ends."""
    # Non-negative floats sort like their bits as integers, several times faster.
    ordered, order = r.view(torch.int64 if r.dtype is torch.float64 else torch.int32).sort()
    place = torch.arange(len(r), device=r.device)
    changes = functional.pad(ordered[1:] != ordered[:-1], (1, 1), value=True)
    first = place.where(changes[:-1], 0).cummax(dim=0).values
    last = (place + 1).where(changes[1:], len(r)).flip(0).cummin(dim=0).values.flip(0)
    return order, first, last


def running_sum(values: Tensor) -> Tensor:
    """Sums of the first 0, 1, ..., N values of each row."""
    return functional.pad(values.cumsum(dim=1), (1, 0))
