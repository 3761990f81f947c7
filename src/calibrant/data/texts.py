"""Texts as word indices."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.data.part import Feed, Part, digest_of, label_counts
from calibrant.errors import InputError

#: Characters that separate words, those of the Keras tokenizer that the papers used.
FILTERS = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n'
_TO_SPACES = str.maketrans(dict.fromkeys(FILTERS, " "))
#: Number of batches that are drawn together, then sorted by length.
POOL = 40


@dataclass(frozen=True)
class Texts(Part):
    """Texts in memory, as concatenated word indices.

    Attributes:
        tokens: Word indices of all texts, ``(total,)``.
        starts: Where each text begins, and where the last one ends, ``(N + 1,)``.
        y: Labels ``(N,)``.
        length: Texts are padded to at most this many words.
    """

    name: ClassVar[str] = "texts"
    medium: ClassVar[Literal["images", "texts"]] = "texts"
    impossible: ClassVar[Mapping[str, str]] = {"shift": "corruptions apply to images; these samples are texts"}
    tokens: Tensor
    starts: Tensor
    y: Tensor
    length: int = 1000

    def __len__(self) -> int:
        return len(self.y)

    @property
    def labels(self) -> Tensor:
        """Labels ``(N,)``."""
        return self.y

    @property
    def lengths(self) -> Tensor:
        """Words of each text."""
        return self.starts.diff()

    def subset(self, indices: Tensor) -> "Texts":
        """The texts with the given indices."""
        lengths = self.lengths[indices]
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        place = torch.arange(int(starts[-1])) + (self.starts[indices] - starts[:-1]).repeat_interleave(lengths)
        return Texts(self.tokens[place], starts, self.y[indices], self.length)

    def checksum(self) -> str:
        """A short fingerprint of words and labels."""
        return digest_of(self.y, self.tokens, self.starts)

    def counts(self, classes: int) -> list[int]:
        """Texts of each class."""
        return label_counts(self.y, classes)

    def relabelled(self, y: Tensor) -> "Texts":
        """The same texts with other labels."""
        return Texts(self.tokens, self.starts, y, self.length)

    def padded(self, indices: Tensor, *, padding: int | None = None) -> Tensor:
        """Word indices ``(len(indices), time)``, padded with zeros in front.

        Args:
            indices: Which texts.
            padding: Pad to the longest of these texts plus this many words, instead of to ``length``.
        """
        lengths = self.lengths[indices].view(-1, 1)
        longest = int(lengths.max()) if len(lengths) else 0
        width = self.length if padding is None else min(self.length, longest + padding)
        place = torch.arange(width) - (width - lengths)
        if not len(self.tokens):
            return torch.zeros_like(place)
        words = self.tokens[(self.starts[indices].view(-1, 1) + place).clamp(0, len(self.tokens) - 1)]
        return words.long().masked_fill(place < 0, 0)

    def read(self, batches: Sequence[Tensor], feed: Feed) -> Iterator[tuple[Tensor, Tensor]]:
        """Word indices and labels of each batch."""
        if feed.padding > self.length:
            raise InputError(
                f"the network needs texts of at least {feed.padding} words, but `data.options.length` is {self.length}"
            )
        for indices in batches:
            yield self.padded(indices, padding=feed.padding), self.y[indices]

    def in_order(self, indices: Tensor) -> Tensor:
        """Sort by length, so that batches need little padding."""
        return indices[self.lengths[indices].argsort(stable=True)]

    def arranged(self, order: Tensor, batch_size: int, random: torch.Generator) -> list[Tensor]:
        """Batches of similar length, in random order: sorted within pools of :data:`POOL` batches, the smallest last."""
        pools = [self.in_order(pool) for pool in order.split(POOL * batch_size)]
        batches = [batch for pool in pools for batch in pool.split(batch_size)]
        full = [batch for batch in batches if len(batch) == batch_size]
        shuffled = [full[i] for i in torch.randperm(len(full), generator=random).tolist()]
        return shuffled + [batch for batch in batches if len(batch) < batch_size]


def words(text: str) -> list[str]:
    """Words in lower case, without punctuation."""
    return text.lower().translate(_TO_SPACES).split()


def learn_vocabulary(documents: Iterable[Sequence[str]], size: int) -> list[str]:
    """The most frequent words, at most ``size - 1`` of them; the first has index 1, as 0 is padding."""
    counts = Counter(chain.from_iterable(documents))
    return [word for word, _ in counts.most_common(size - 1)]


def encode(documents: Sequence[Sequence[str]], vocabulary: Sequence[str], y: Tensor, length: int = 1000) -> Texts:
    """Indices of the known words, the last ``length`` of each text."""
    number = {word: i for i, word in enumerate(vocabulary, 1)}
    encoded = [[number[word] for word in document if word in number][-length:] for document in documents]
    lengths = torch.tensor([len(document) for document in encoded])
    tokens = torch.tensor(np.fromiter(chain.from_iterable(encoded), np.int32, int(lengths.sum())))
    return Texts(tokens, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), y, length)
