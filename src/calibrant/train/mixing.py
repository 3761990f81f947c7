"""Mixing of training images: mixup and CutMix by torchvision, from random numbers of their own."""

from typing import Any

import torch
from torch import Tensor

from calibrant.extras import require
from calibrant.recipes import Recipe

#: Default parameters of the Beta distributions; RegMixup's is one of its paper's, 10 to 20.
ALPHAS = {"mixup": 1.0, "cutmix": 1.0, "regmixup": 10.0}


class Mixer:
    """Mixes the images of a batch, and their labels into soft targets.

    The random numbers of a batch depend only on seed, epoch, step and process, so that a resumed run sees what it would have
    seen; those of dropout do not change.

    Args:
        recipe: The recipe.
        num_classes: Number of classes.
    """

    def __init__(self, recipe: Recipe, num_classes: int) -> None:
        v2 = require("torchvision.transforms.v2", f"mixing {recipe.mixing}")
        alpha = ALPHAS[recipe.mixing] if recipe.mixing_alpha is None else recipe.mixing_alpha
        kind = v2.CutMix if recipe.mixing == "cutmix" else v2.MixUp
        self.seed = recipe.seed
        self.mix: Any = kind(alpha=alpha, num_classes=num_classes)

    @staticmethod
    def of(recipe: Recipe, num_classes: int) -> "Mixer | None":
        """The mixer of a recipe, if it has one."""
        return None if recipe.mixing == "none" else Mixer(recipe, num_classes)

    def __call__(self, x: Tensor, y: Tensor, epoch: int, step: int, rank: int) -> tuple[Tensor, Tensor]:
        """Mixed images, and the shares of the classes in each of them."""
        number = ((self.seed * 1_000_003 + epoch) * 1009 + 700 + rank) * 1_000_003 + step
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator of the CPU
            torch.default_generator.manual_seed(number % 2**63)
            mixed, shares = self.mix(x, y)
        return mixed, shares
