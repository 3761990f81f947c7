"""Validation sets that are not like the training set: what adaptive losses were not made for."""

import torch
from torch import Tensor

from calibrant.data.corruptions import corrupt
from calibrant.data.part import Part
from calibrant.data.table import CORRUPTIONS, ValidationSet

#: Severity of the corruptions of a shifted validation set.
SEVERITY = 3
#: Share of the samples that a small validation set keeps.
SMALL = 0.1
#: Share of the labels that a noisy validation set gets wrong.
NOISE = 0.2


def altered(part: Part, kind: ValidationSet, classes: int, seed: int = 0) -> Part:
    """A validation set as one might have it in practice.

    Args:
        part: The validation set.
        kind: ``"clean"``, as it is; ``"shifted"``, each image corrupted in one of the ways of
            :data:`calibrant.data.CORRUPTIONS`, of severity 3; ``"small"``, a tenth of it; ``"noisy"``, a fifth of the labels
            replaced by other classes.
        classes: Number of classes.
        seed: Of what is drawn.
    """
    random = torch.Generator().manual_seed(seed)
    if kind == "small":
        number = max(1, round(SMALL * len(part)))
        return part.subset(torch.randperm(len(part), generator=random)[:number].sort().values)
    if kind == "shifted":
        return part.corrupted(lambda x, numbers: _mixed_corruptions(x, numbers, random))
    if kind == "noisy":
        part.refuse("noisy labels")
        y = part.labels
        wrong = torch.rand(len(part), generator=random) < NOISE
        other = (y + torch.randint(1, max(2, classes), (len(part),), generator=random)) % classes
        return part.relabelled(y.where(~wrong, other))
    return part


def _mixed_corruptions(x: Tensor, numbers: Tensor, random: torch.Generator) -> Tensor:
    """Each image corrupted in one of the ways."""
    x, chosen = x.clone(), torch.randint(len(CORRUPTIONS), (len(numbers),), generator=random)
    for number, name in enumerate(CORRUPTIONS):
        own = (chosen == number).nonzero().flatten()
        if len(own):
            x[own] = corrupt(x[own], name, SEVERITY, random)
    return x
