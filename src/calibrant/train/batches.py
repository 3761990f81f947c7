"""Batches of a part of a data set.

Order and augmentation depend only on seed and epoch, so that a resumed run sees what it would have seen. Each process of a
distributed job takes its share of every training batch, and every n-th validation sample: nothing is padded and nothing
counted twice.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from calibrant.data import DataSet, Feed, Part
from calibrant.models import Needs
from calibrant.recipes import Recipe

#: Inputs, labels, and the size of the whole batch over all processes.
Batch = tuple[Tensor, Tensor, int]


class Batches:
    """An iterable over one part of a data set; an item is inputs, labels, and the size of the whole batch.

    Args:
        part: The part.
        batch_size: Samples per batch, over all processes.
        feed: How samples are fed to the network; its random generator is set for each epoch.
        seed: Seed of order and augmentation.
        drop_last: Leave out the last training batch if it is smaller.
        rank: Rank of this process.
        world: Number of processes.
    """

    def __init__(
        self,
        part: Part,
        batch_size: int,
        feed: Feed | None = None,
        *,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.part, self.batch_size, self.feed = part, batch_size, feed or Feed()
        self.seed, self.drop_last, self.rank, self.world, self.epoch = seed, drop_last, rank, world, 0

    def __len__(self) -> int:
        own = len(self.part) if self.feed.train else len(range(self.rank, len(self.part), self.world))
        size = self.batch_size if self.feed.train else max(1, self.batch_size // self.world)
        whole, rest = divmod(own, size)
        least = 1 if not self.feed.train else size if self.drop_last else self.world
        return whole + (rest > 0 and (rest >= least or not whole))

    def indices(self) -> list[tuple[Tensor, int]]:
        """Indices of this process's samples of each batch, and the size of the whole batch."""
        if not self.feed.train:
            own = self.part.in_order(torch.arange(self.rank, len(self.part), self.world))
            return [(batch, len(batch)) for batch in own.split(max(1, self.batch_size // self.world))]
        random = self._random(0)
        order = torch.randperm(len(self.part), generator=random)
        batches = self.part.arranged(order, self.batch_size, random)
        least = self.batch_size if self.drop_last else self.world  # with fewer samples, a process would get none
        if len(batches) > 1 and len(batches[-1]) < least:
            batches.pop()
        return [(batch[self.rank :: self.world], len(batch)) for batch in batches]

    def __iter__(self) -> Iterator[Batch]:
        batches = self.indices()
        feed = replace(self.feed, random=self._random(1 + self.rank))
        for (x, y), (_, whole) in zip(self.part.read([own for own, _ in batches], feed), batches, strict=True):
            yield x, y, whole

    def _random(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) * 1009 + stream)


def feed_of(
    recipe: Recipe,
    data: DataSet,
    needs: Needs,
    *,
    train: bool = False,
    change: Callable[[Tensor], Tensor] | None = None,
) -> Feed:
    """How a recipe feeds the samples of its data set to a network."""
    return Feed(
        train=train,
        augmentation=recipe.augmentation,
        size=recipe.data.size,
        longest=recipe.data.longest,
        workers=recipe.data.workers,
        change=change,
        padding=needs.padding_words,
        multiple=needs.side_multiple,
        mean=data.mean,
        std=data.std,
    )
