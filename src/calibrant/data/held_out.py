"""Validation data that are not like the training data: what the adaptive losses were not made for."""

from typing import Literal

import torch

from calibrant.data.corruptions import CORRUPTIONS, corrupt
from calibrant.data.parts import Files, Images, Masks, Part, Texts

ValidationSet = Literal["clean", "shifted", "small", "noisy"]
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
        if not isinstance(part, Images):
            raise TypeError("a shifted validation set is made of images in memory, not of texts or of images in files")
        x, chosen = part.x.clone(), torch.randint(len(CORRUPTIONS), (len(part),), generator=random)
        for number, name in enumerate(CORRUPTIONS):
            own = (chosen == number).nonzero().flatten()
            if len(own):
                x[own] = corrupt(x[own], name, SEVERITY, random)
        return Images(x, part.y)
    if kind == "noisy":
        if isinstance(part, Masks):
            raise TypeError("a noisy validation set is made of samples that have one class each, not of segmented images")
        wrong = torch.rand(len(part), generator=random) < NOISE
        other = (part.y + torch.randint(1, max(2, classes), (len(part),), generator=random)) % classes
        return _labelled(part, part.y.where(~wrong, other))
    return part


def _labelled(part: Images | Files | Texts, y: torch.Tensor) -> Part:
    if isinstance(part, Texts):
        return Texts(part.tokens, part.starts, y, part.length)
    return Images(part.x, y) if isinstance(part, Images) else Files(part.paths, y)
