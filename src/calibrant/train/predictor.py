"""Prediction with a trained network."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.data import DataSet, Masks, Part
from calibrant.losses import Loss
from calibrant.losses.base import predictive
from calibrant.models import needs
from calibrant.plots import PixelReliability
from calibrant.predictions import Chunk, Predictions
from calibrant.recipes import Recipe
from calibrant.train.batches import Batches, feed_of


@dataclass(frozen=True)
class Predictor:
    """A network, and how its recipe feeds it.

    Attributes:
        recipe: The recipe.
        data: The data set it was trained on.
        network: The network, in eval mode.
        loss: The loss it was trained with, which knows how its outputs become predictions.
        device: Its device.
    """

    recipe: Recipe
    data: DataSet
    network: nn.Module
    loss: Loss
    device: torch.device

    @torch.no_grad()
    def batches(self, part: Part, change: Callable[[Tensor], Tensor] | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits and labels of samples in the format of its data, batch by batch; texts are sorted by length.

        Args:
            part: The samples.
            change: Applied to images before they are normalised, such as a corruption.
        """
        for x, y, _ in self._feed(part, change):
            yield predictive(self.loss, self.network(x.to(self.device)).float()).cpu(), y

    def in_order(self, part: Part) -> tuple[Tensor, Tensor]:
        """All logits and labels, in the order of the part."""
        logits, target = zip(*self.batches(part), strict=True)
        place = torch.cat([indices for indices, _ in self._feed(part).indices()]).argsort()
        return torch.cat(logits)[place], torch.cat(target)[place]

    def _feed(self, part: Part, change: Callable[[Tensor], Tensor] | None = None) -> Batches:
        feed = feed_of(self.recipe, self.data, needs(self.network), change=change)
        return Batches(part, self.recipe.eval_batch_size, feed)


class DensePredictions(Predictions):
    """Predictions of segmented images, recomputed whenever they are read: storing all of them could fill a disk.

    Args:
        predictor: The network.
        name: Name of the part.
        part: The part.
    """

    def __init__(self, predictor: Predictor, name: str, part: Masks) -> None:
        data = predictor.data
        self.path, self.kind, self.has_target = Path(f"the network on {name}"), "logits", True
        self.num_classes, self.classes = data.num_classes, list(data.classes)
        self.train_counts, self.ignore_index = data.train_counts, data.ignore_index
        self.predictor, self.part = predictor, part
        self.shape = part.largest()

    def count(self) -> int:
        """Number of images."""
        return len(self.part)

    def _read(self, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        del rows  # images come in the batches of the network
        for logits, target in self.predictor.batches(self.part):
            yield logits.numpy(), target.numpy()

    def grid(self, stride: int) -> Iterator[Chunk]:
        """Every n-th row and column, as written to a file."""
        for start, logits, target in self.chunks():
            assert target is not None  # noqa: S101
            some = target[:, ::stride, ::stride]
            yield Chunk(start, logits[:, :, ::stride, ::stride], some.masked_fill(some == self.ignore_index, -100))


def draw_pixels(predictor: Predictor, part: Masks, folder: Path, images: int = 3) -> None:
    """Draw where the network is wrong and how confident it is, on a few images."""
    folder.mkdir(exist_ok=True)
    some = part.subset(torch.linspace(0, len(part) - 1, min(images, len(part))).round().long())
    logits, target = predictor.in_order(some)
    for place, name in enumerate(some.images):
        image, mask = some.read_one(place)
        height, width = mask.shape
        shown = PixelReliability.from_logits(
            image.float() / 255,
            logits[place, :, :height, :width],
            target[place, :height, :width],
            list(predictor.data.classes),
            ignore_index=part.ignore_index,
        )
        shown.save(folder / f"pixels-{Path(name).stem}.png")
