"""Networks, losses and data that a user might have, named in recipes by their import paths."""

import multiprocessing
import os
import signal
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.data import DataSet, Images
from calibrant.losses import Loss
from calibrant.study.launchers import _prepare


class Pixels(nn.Module):
    """A convolution, which is quick."""

    def __init__(self, num_classes: int, channels: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, num_classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


class Flat(nn.Module):
    """A classifier of the digits that needs its images with channels first."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.linear = nn.Linear(4 * 64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.convolutions(x).view(len(x), -1))
        return logits


class Squared(Loss):
    """Squared distance of the logits from the labels, which has to know the number of classes."""

    def __init__(self, num_classes: int, *, scale: float = 1.0, ignore_index: int = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.num_classes, self.scale = num_classes, scale

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        wanted = nn.functional.one_hot(target, self.num_classes)
        return self.scale * (logits - wanted).square().mean()


class Plain(nn.Module):
    """Cross-entropy as a module that knows nothing of calibrant."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return self.scale * nn.functional.cross_entropy(logits, target)


class Deadly(Plain):
    """Kills the process that trains with it, if the environment says so."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        if "DEADLY" in os.environ and logits.requires_grad:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(logits, target)


def squares(size: int = 60, *, validation: int = 20, seed: int = 0) -> DataSet:
    """Images of noise with a bright half."""
    random = torch.Generator().manual_seed(seed)
    x, y = torch.rand(size, 1, 8, 8, generator=random) / 2, torch.arange(size) % 2
    x[y == 1, :, 4:] += 0.5
    part = Images(x, y)
    held, rest = torch.arange(validation), torch.arange(validation, size)
    return DataSet("squares", ["upper", "lower"], part.subset(rest), part.subset(held), part)


def tell_circumstances(pipe: Any) -> None:
    """Under what a process of a study works."""
    _prepare()
    pipe.send((multiprocessing.get_start_method(), os.environ["OMP_WAIT_POLICY"], os.environ["KMP_BLOCKTIME"]))
