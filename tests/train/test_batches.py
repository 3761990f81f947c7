"""Batches of images, texts and segmented images."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import trees
from calibrant import data
from calibrant.data import Feed, Images, Part, Texts
from calibrant.data.texts import POOL
from calibrant.losses import CrossEntropy
from calibrant.recipes import Recipe
from calibrant.train.batches import Batches
from calibrant.train.predictor import Predictor


def batches(part: Part, size: int, *, train: bool = False, epoch: int = 0, padding: int = 21, **options) -> Batches:
    found = Batches(part, size, Feed(train=train, padding=padding, mean=(0.5,), std=(2.0,)), **options)
    found.epoch = epoch
    return found


# Images


PART = Images((torch.arange(23 * 64) % 256).to(torch.uint8).view(23, 1, 8, 8), torch.arange(23))


def test_every_sample_comes_once_in_an_order_of_the_epoch() -> None:
    loader = batches(PART, 5, seed=1, train=True)
    orders = []
    for epoch in (0, 1, 0):
        loader.epoch = epoch
        found = list(loader)
        assert len(found) == len(loader) == 5
        assert [whole for _, _, whole in found] == [5, 5, 5, 5, 3]
        orders.append(torch.cat([y for _, y, _ in found]).tolist())
        assert sorted(orders[-1]) == list(range(23))
    assert orders[0] == orders[2] != orders[1] != list(range(23))
    x = next(iter(loader))[0]
    expected = (PART.x[orders[0][:5]].float() / 255 - 0.5) / 2
    torch.testing.assert_close(x, expected)
    assert len(list(batches(PART, 5, train=True, drop_last=True))) == len(batches(PART, 5, train=True, drop_last=True)) == 4


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_every_batch_and_pad_nothing(world: int) -> None:
    ranks = [list(batches(PART, 5, seed=1, train=True, rank=r, world=world)) for r in range(world)]
    alone = list(batches(PART, 5, seed=1, train=True))
    for step, whole in enumerate(alone):
        together = torch.cat([rank[step][1] for rank in ranks])
        assert sorted(together.tolist()) == sorted(whole[1].tolist())
    seen = Counter(y for r in range(world) for _, ys, _ in batches(PART, 6, rank=r, world=world) for y in ys.tolist())
    assert seen == Counter(range(23))


def test_files_are_read_and_resized(tmp_path: Path) -> None:
    trees.imagenet(tmp_path)
    found = data.imagenet(tmp_path)
    for workers in (0, 2):
        runs = []
        for _ in range(2):
            torch.manual_seed(workers + len(runs))  # what is drawn in workers follows from seed and epoch alone
            feed = Feed(train=True, augmentation="timm", size=32, workers=workers, mean=found.mean, std=found.std)
            loader = Batches(found.train, 4, feed, seed=1)
            if workers == 0:
                torch.manual_seed(7)
            runs.append([(x, y) for x, y, _ in loader])
        assert runs[0][0][0].shape == (4, 3, 32, 32)
        assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(*runs, strict=True))
    plain = [x for x, _, _ in Batches(found.test, 5, Feed(size=32, mean=found.mean, std=found.std))]
    assert sum(map(len, plain)) == 24
    assert abs(float(torch.cat(plain).mean())) < 2


# Texts


def texts(count: int, seed: int = 0, longest: int = 300) -> Texts:
    """Texts of very different lengths, whose label is their number and whose last word is that plus 1."""
    random = torch.Generator().manual_seed(seed)
    lengths = (torch.rand(count, generator=random) ** 3 * longest).long() + 1
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    tokens = torch.randint(1, 50, (int(starts[-1]),), generator=random)
    tokens[starts[1:] - 1] = torch.arange(1, count + 1)
    return Texts(tokens.int(), starts, torch.arange(count), longest)


def words_of(part: Texts, index: int) -> list[int]:
    return part.tokens[int(part.starts[index]) : int(part.starts[index + 1])].tolist()


def padded_total(chosen: list[Tensor], lengths: Tensor) -> int:
    return sum(len(batch) * int(lengths[batch].max()) for batch in chosen)


def test_batches_of_similar_length() -> None:
    part = texts(3001)
    lengths = part.lengths
    order = torch.randperm(3001, generator=torch.Generator().manual_seed(1))
    found = part.arranged(order, 16, torch.Generator().manual_seed(2))
    assert sorted(torch.cat(found).tolist()) == list(range(3001))
    assert [len(batch) for batch in found] == [16] * 187 + [9]
    least, random, ours = (padded_total(b, lengths) for b in (lengths.argsort().split(16), order.split(16), found))
    assert least < ours < 1.15 * least
    assert ours < 0.45 * random
    means = [float(lengths[batch].float().mean()) for batch in found[:-1]]
    assert 0.35 < np.mean(np.diff(means) > 0) < 0.65  # the order of batches says nothing of their length
    pool = set(order[: POOL * 16].tolist())  # what is not drawn together is never in one batch
    assert all(not set(batch.tolist()) & pool or set(batch.tolist()) <= pool for batch in found)


def test_texts_come_once_in_an_order_of_seed_and_epoch() -> None:
    part = texts(203)
    runs = {
        (seed, epoch, again): [y.tolist() for _, y, _ in batches(part, 8, seed=seed, train=True, epoch=epoch)]
        for seed, epoch, again in [(1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0)]
    }
    for found in runs.values():
        assert Counter(y for batch in found for y in batch) == Counter(range(203))
        assert [len(batch) for batch in found] == [8] * 25 + [3]
    assert runs[1, 0, 0] == runs[1, 0, 1]
    assert runs[1, 0, 0] != runs[1, 1, 0] != runs[2, 0, 0] != runs[1, 0, 0]
    whole = batches(part, 8, train=True, drop_last=True)
    assert [len(y) for _, y, _ in whole] == [8] * 25
    assert len(whole) == 25


@pytest.mark.parametrize("train", [True, False])
def test_batches_hold_the_words_of_their_texts(train: bool) -> None:
    part = texts(61)
    for x, y, whole in batches(part, 9, train=train):
        assert whole == len(x) == len(y)
        longest = max(len(words_of(part, i)) for i in y.tolist())
        assert x.shape[1] == min(300, longest + 21)
        for row, i in zip(x.tolist(), y.tolist(), strict=True):
            own = words_of(part, i)
            assert row == [0] * (len(row) - len(own)) + own


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_batches_of_texts(world: int) -> None:
    part = texts(50)  # in batches of 7: the last text is alone, and left out, for other processes would have nothing of it
    alone = list(batches(part, 7, seed=3, train=True))
    ranks = [list(batches(part, 7, seed=3, train=True, rank=r, world=world)) for r in range(world)]
    assert [len(rank) for rank in ranks] == [7] * world == [len(batches(part, 7, train=True, world=world))] * world
    for step, (_, labels, _) in enumerate(alone[:7]):
        shares = [rank[step][1].tolist() for rank in ranks]
        assert sorted(y for share in shares for y in share) == sorted(labels.tolist())
        assert {rank[step][2] for rank in ranks} == {len(labels)}
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    seen = [y for r in range(world) for _, ys, _ in batches(part, 6, rank=r, world=world) for y in ys.tolist()]
    assert sorted(seen) == list(range(50))


class LastWord(nn.Module):
    """Logits from which the text can be told: its last word and its number of words."""

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.stack([tokens[:, -1], (tokens != 0).sum(1)], dim=1).float()


@pytest.mark.parametrize("size", [1, 7, 100])
def test_predictions_come_in_the_order_of_the_texts(size: int) -> None:
    part = texts(61)
    whole = data.DataSet("x", ["a", "b"], part, part, part)
    logits, target = Predictor(
        Recipe(eval_batch_size=size), whole, LastWord(), CrossEntropy(), torch.device("cpu")
    ).in_order(part)
    assert target.tolist() == list(range(61))
    assert logits[:, 0].tolist() == list(range(1, 62))
    assert logits[:, 1].tolist() == part.lengths.tolist()


# Segmented images


def test_training_crops_follow_from_seed_and_epoch(tmp_path: Path) -> None:
    trees.voc(tmp_path, {"train": 7, "val": 1, "test": 1})
    found = data.voc(root=tmp_path)
    runs = []
    for epoch in (0, 0, 1):
        loader = Batches(found.train, 3, Feed(train=True, augmentation="segmentation", size=32, workers=1), seed=1)
        loader.epoch = epoch
        runs.append(list(loader))
    assert [len(y) for _, y, _ in runs[0]] == [3, 3, 1]
    assert runs[0][0][0].shape == (3, 3, 32, 32)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(runs[0], runs[1], strict=True))
    assert not torch.equal(runs[0][0][0], runs[2][0][0])
