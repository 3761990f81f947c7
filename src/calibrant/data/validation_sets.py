"""Imperfect validation sets, which adaptive losses were not designed for."""

import torch
from torch import Tensor

from calibrant.data.corruptions import corrupt
from calibrant.data.part import Part
from calibrant.data.table import CORRUPTIONS, ValidationSet

#: Severity of the corruptions of a shifted validation set.
SEVERITY = 3
#: Fraction of the samples kept in a small validation set.
SMALL = 0.1
#: Fraction of wrong labels in a noisy validation set.
NOISE = 0.2


def altered(part: Part, kind: ValidationSet, classes: int, seed: int = 0) -> Part:
    """A validation set as found in practice.

    Args:
        part: The validation set.
        kind: ``"clean"``, unchanged; ``"shifted"``, each image corrupted by a random one of
            :data:`calibrant.data.CORRUPTIONS`, of severity 3; ``"small"``, a tenth of it; ``"noisy"``, a fifth of the labels
            replaced by other classes.
        classes: Number of classes.
        seed: Random seed.
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
    """Corrupt each image by one corruption, chosen at random."""
    x, chosen = x.clone(), torch.randint(len(CORRUPTIONS), (len(numbers),), generator=random)
    for number, name in enumerate(CORRUPTIONS):
        own = (chosen == number).nonzero().flatten()
        if len(own):
            x[own] = corrupt(x[own], name, SEVERITY, random)
    return x
