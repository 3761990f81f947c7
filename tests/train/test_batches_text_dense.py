"""Batches and runs of texts and of segmented images."""

import csv
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import jaccard_score
from torch import Tensor, nn

import trees
from calibrant import data, losses, models
from calibrant import functional as cal
from calibrant.data import Masks, MissingDataError, Texts
from calibrant.data.corruptions import corrupt
from calibrant.predictions import InputError, open_predictions
from calibrant.train import Recipe, Run, fit
from calibrant.train.batches import POOL, Batches, JointTransform, _Reader, by_length
from calibrant.train.fit import build
from calibrant.train.predictor import Predictor
from calibrant.train.recipe import Data, LossChoice, Model, Optimizer

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


def batches(part: Texts, size: int, *, epoch: int = 0, **options) -> Batches:
    found = Batches(data.DataSet("x", ["a", "b"], part, part, part), part, size, **options)
    found.epoch = epoch
    return found


def padded_total(chosen: list[Tensor], lengths: Tensor) -> int:
    return sum(len(batch) * int(lengths[batch].max()) for batch in chosen)


def test_batches_of_similar_length() -> None:
    lengths = texts(3001).lengths
    order = torch.randperm(3001, generator=torch.Generator().manual_seed(1))
    found = by_length(order, lengths, 16, torch.Generator().manual_seed(2))
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
    logits, target = Predictor(Recipe(eval_batch_size=size), whole, LastWord(), torch.device("cpu")).in_order(part)
    assert target.tolist() == list(range(61))
    assert logits[:, 0].tolist() == list(range(1, 62))
    assert logits[:, 1].tolist() == part.lengths.tolist()


@pytest.mark.parametrize("vectors", [None, "v.txt"])
def test_a_run_on_texts(tmp_path: Path, vectors: str | None) -> None:
    trees.newsgroups(tmp_path / "data", articles=30)
    trees.vectors(tmp_path / "data" / "v.txt", " ".join(trees.TOPICS).split(), dim=12)
    mine = Recipe(
        data=Data("newsgroups20", root=str(tmp_path / "data"), validation=0.2, options={"vectors": vectors, "length": 40}),
        model=Model("gpool-cnn", {"width": 16}),
        loss=LossChoice("cals-alm", {"margin": 6.0}),
        optimizer=Optimizer("adam", lr=1e-2),
        epochs=8,
        batch_size=16,
        eval_batch_size=9,
        select="accuracy",
    )
    run = fit(mine, tmp_path / "run", quiet=True)
    assert run is not None
    assert run.metrics["test"]["accuracy"] > 0.8  # of four groups
    found = mine.load_data()
    assert isinstance(found.test, Texts)
    assert (len(found.train), len(found.validation), len(found.test)) == (72, 24, 24)
    network = mine.build_model(4, found.facts)
    content = torch.load(run.folder / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    network.load_state_dict({k[8:]: v for k, v in content.items() if k.startswith("network.")})
    logits, target = open_predictions(run.folder).load()
    with torch.no_grad():  # one by one, padded to the full length
        alone = torch.cat([network(found.test.padded(torch.tensor([i]), trim=False)) for i in range(24)])
    torch.testing.assert_close(logits, alone, rtol=1e-4, atol=1e-5)
    assert torch.equal(target, found.test.y)
    with np.load(run.folder / "split.npz") as split:
        assert sorted(np.concatenate([split[name] for name in split.files]).tolist()) == list(range(120))


# Segmented images


def test_three_lists_are_three_parts(tmp_path: Path) -> None:
    trees.voc(tmp_path, {"train": 5, "val": 3, "test": 4}, name="mine")
    found = data.load("voc", path="mine", root=tmp_path)
    parts = {"train": found.train, "val": found.validation, "test": found.test}
    for name, part in parts.items():
        assert isinstance(part, Masks)
        assert [Path(path).stem for path in part.images] == [f"{name}_{i:03}" for i in range(len(part))]
        assert [Path(path).stem for path in part.masks] == [Path(path).stem for path in part.images]
    assert [len(part) for part in parts.values()] == [5, 3, 4]
    assert (found.name, list(found.classes), found.ignore_index) == ("mine", [f"thing {k}" for k in range(4)], 255)
    image, mask = found.test.read(1)
    assert (image.shape, image.dtype, mask.shape, mask.dtype) == ((3, 48, 40), torch.uint8, (48, 40), torch.int64)
    assert bool((mask[:3, :5] == 255).all())
    colours = torch.from_numpy(trees.COLOURS).float()[mask.clamp(max=3)] + 10
    assert ((image.permute(1, 2, 0).float() - colours).abs() < 60)[3:].float().mean() > 0.95
    counted = torch.zeros(4, dtype=torch.int64)
    for path in found.train.masks:
        values, counts = np.unique(np.asarray(Image.open(path)), return_counts=True)
        for k, count in zip(values.tolist(), counts.tolist(), strict=True):
            if k != 255:
                counted[k] += count
    assert found.train_counts == counted.tolist()
    assert found.train.largest() == (48, 56)


def test_without_a_test_list_a_fifth_of_vocs_training_images_are_held_out(tmp_path: Path) -> None:
    trees.voc(tmp_path, {"train": 3, "val": 2}, classes=3, named=False)
    names = (tmp_path / "VOCdevkit/VOC2012/ImageSets/Segmentation/train.txt").read_text().split()
    (tmp_path / "VOCdevkit/VOC2012/ImageSets/Segmentation/train.txt").write_text("\n".join(names * 488) + "\n")
    found = data.load("voc", root=tmp_path)
    assert (len(found.train), len(found.validation), len(found.test)) == (1171, 293, 2)
    assert [Path(path).stem for path in found.test.images] == ["val_000", "val_001"]
    assert (found.classes[0], found.classes[15], found.num_classes) == ("background", "person", 21)
    everything = torch.cat([found.split["train"], found.split["validation"]])
    assert sorted(everything.tolist()) == list(range(1464))
    again, other = (data.voc(root=tmp_path, seed=seed) for seed in (0, 1))
    assert torch.equal(again.split["validation"], found.split["validation"])
    assert not torch.equal(other.split["validation"], found.split["validation"])


def test_a_test_list_without_masks_is_vocs_own(tmp_path: Path) -> None:
    trees.voc(tmp_path, {"train": 5, "val": 2, "test": 2})
    for path in (tmp_path / "VOCdevkit/VOC2012/SegmentationClass").glob("test_*"):
        path.unlink()
    found = data.voc(root=tmp_path)
    assert (len(found.train), len(found.validation)) == (4, 1)
    assert [Path(path).stem for path in found.test.images] == ["val_000", "val_001"]


def test_classes_and_void_may_be_given(tmp_path: Path) -> None:
    trees.voc(tmp_path, {"train": 2, "val": 1, "test": 1}, classes=3)
    assert list(data.voc(root=tmp_path).classes) == ["thing 0", "thing 1", "thing 2"]
    found = data.voc(root=tmp_path, classes=["a", "b"], void=2)
    assert (list(found.classes), found.ignore_index) == (["a", "b"], 2)
    with pytest.raises(ValueError, match="has class 255, but there are 2 classes .0..1. and void pixels have to be 2"):
        _ = found.train_counts


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("ImageSets", "VOCdevkit/VOC2012 is not in .* with JPEGImages"),
        ("ImageSets/Segmentation/val.txt", "val.txt does not exist; expected JPEGImages"),
        ("JPEGImages/train_001.jpg", "JPEGImages/train_001.jpg does not exist, but train.txt lists it"),
        ("SegmentationClass/val_000.png", "SegmentationClass/val_000.png does not exist, but val.txt lists it"),
    ],
)
def test_missing_segmented_images_are_named(tmp_path: Path, lost: str, message: str) -> None:
    trees.voc(tmp_path, {"train": 2, "val": 1})
    folder = tmp_path / "VOCdevkit" / "VOC2012"
    (folder / lost).rename(tmp_path / "elsewhere")
    with pytest.raises(MissingDataError, match=message) as caught:
        data.load("voc", root=tmp_path)
    assert str(folder) in str(caught.value)


def test_bad_masks_are_named(tmp_path: Path) -> None:
    trees.voc(tmp_path, {"train": 3, "val": 1, "test": 1})
    found = data.voc(root=tmp_path)
    folder = tmp_path / "VOCdevkit" / "VOC2012"
    Image.fromarray(np.zeros((9, 7), dtype=np.uint8)).save(folder / "SegmentationClass" / "train_000.png")
    with pytest.raises(ValueError, match=r"train_000.jpg is \(40, 56\), but its mask .*train_000.png is \(9, 7\)"):
        list(Batches(found, found.train, 2, train=True, size=32))
    Image.fromarray(np.zeros((48, 40, 3), dtype=np.uint8)).save(folder / "SegmentationClass" / "train_001.png")
    with pytest.raises(ValueError, match="train_001.png must hold class numbers, one channel or a palette, not RGB"):
        found.train.read(1)
    Image.fromarray(np.full((40, 56), 9, dtype=np.uint8)).save(folder / "SegmentationClass" / "train_002.png")
    with pytest.raises(ValueError, match=r"train_002.png has class 9, but there are 4 classes \(0..3\) and void .* be 255"):
        found.train.subset(torch.tensor([2])).counts(4)
    (folder / "ImageSets/Segmentation/train.txt").write_text("\n")
    with pytest.raises(MissingDataError, match="train.txt is empty; expected the name of an image on each line"):
        data.voc(root=tmp_path)


# The same change of images and masks


def marked(height: int, width: int) -> tuple[Tensor, Tensor]:
    """An image whose channels are 20 x (class + 1), row and column, and its mask."""
    mask = torch.randint(5, (height, width))
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([20 * (mask + 1), rows, columns]).to(torch.uint8), mask


@pytest.mark.parametrize(("height", "width"), [(40, 60), (20, 60), (20, 24), (32, 32)])
def test_crops_of_images_and_masks_agree_and_padding_is_void(height: int, width: int) -> None:
    change = JointTransform("none", 32, None, 255)
    places = set()
    for _ in range(30):
        image, mask = change(*marked(height, width))
        assert type(image) is type(mask) is Tensor
        assert (image.shape, mask.shape, image.dtype, mask.dtype) == ((3, 32, 32), (32, 32), torch.uint8, torch.int64)
        inside = mask != 255
        assert torch.equal(image[0][inside].long(), 20 * (mask[inside] + 1))
        assert not image[:, ~inside].any()
        assert int(inside.sum()) == min(height, 32) * min(width, 32)
        row, column = inside.nonzero()[0].tolist()
        own = image[1:, row : row + min(height, 32), column : column + min(width, 32)].long()
        assert bool((own[0].diff(dim=0) == 1).all())  # neither scaled nor mirrored
        assert bool((own[1].diff(dim=1) == 1).all())
        places.add((row - int(own[0, 0, 0]), column - int(own[1, 0, 0])))
    assert (len(places) == 1) if (height, width) == (32, 32) else (len(places) > 5)


def test_images_are_scaled_to_their_longest_side() -> None:
    squares = torch.randint(5, (4, 8)).repeat_interleave(20, 0).repeat_interleave(20, 1)
    image = (40 * (squares + 1)).to(torch.uint8).expand(3, -1, -1)
    found, mask = JointTransform("none", 64, 48, 255)(image, squares)  # 80 x 160 becomes 24 x 48
    inside = mask != 255
    assert int(inside.sum()) == 24 * 48
    rows, columns = inside.any(1).nonzero().flatten(), inside.any(0).nonzero().flatten()
    assert (len(rows), len(columns)) == (24, 48)
    assert set(mask[inside].tolist()) <= set(range(5))  # classes are not mixed
    near = (found[0][inside].float() - 40 * (mask[inside] + 1)).abs() < 20
    assert near.float().mean() > 0.8  # all but the edges of squares, where colours are mixed
    larger, _ = JointTransform("none", 240, 240, 255)(image, squares)
    assert int((larger[0] != 0).sum()) == 120 * 240


def test_segmentation_mirrors_both_and_changes_colours_only_of_the_image() -> None:
    image = torch.full((3, 32, 32), 40, dtype=torch.uint8)
    mask = torch.zeros(32, 32, dtype=torch.int64)
    image[:, 4:12, 2:9] = torch.tensor([200, 150, 170], dtype=torch.uint8).view(3, 1, 1)  # the class is where it is bright
    mask[4:12, 2:9] = 1
    change, mirrored, colours = JointTransform("segmentation", 32, None, 255), 0, set()
    for _ in range(60):
        x, y = change(image, mask)
        bright = x.float().mean(0)
        assert torch.equal((bright > (bright.min() + bright.max()) / 2).long(), y)
        assert torch.equal(y, mask) or torch.equal(y, mask.flip(1))
        mirrored += int(not torch.equal(y, mask))
        colours.add(tuple(x[:, 0, 15].tolist() + x.amax((1, 2)).tolist()))
    assert 15 <= mirrored <= 45
    assert len(colours) > 50
    flipped = [JointTransform("none", 32, None, 255)(image, mask)[0] for _ in range(20)]
    assert all(torch.equal(x, image) for x in flipped)


def test_training_crops_follow_from_seed_and_epoch(tmp_path: Path) -> None:
    trees.voc(tmp_path, {"train": 7, "val": 1, "test": 1})
    found = data.voc(root=tmp_path)
    runs = []
    for epoch in (0, 0, 1):
        loader = Batches(found, found.train, 3, seed=1, train=True, augmentation="segmentation", size=32, workers=1)
        loader.epoch = epoch
        runs.append(list(loader))
    assert [len(y) for _, y, _ in runs[0]] == [3, 3, 1]
    assert runs[0][0][0].shape == (3, 3, 32, 32)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(runs[0], runs[1], strict=True))
    assert not torch.equal(runs[0][0][0], runs[2][0][0])


@pytest.mark.parametrize("train", [True, False])
def test_what_reads_files_can_be_sent_to_a_spawned_process(tmp_path: Path, train: bool) -> None:
    trees.voc(tmp_path / "voc", {"train": 3, "val": 1, "test": 1})
    trees.imagenet(tmp_path / "imagenet")
    for found, ways in (
        (data.voc(root=tmp_path / "voc"), ("none", "segmentation")),
        (data.imagenet(tmp_path / "imagenet"), ("none", "crop-flip", "imagenet", "timm")),
    ):
        for augmentation in ways:
            loader = Batches(found, found.train, 2, train=train, augmentation=augmentation, size=32, longest=48)
            reader = _Reader(loader.part, loader._change(loader.part))
            sent = pickle.loads(pickle.dumps(reader))  # noqa: S301
            draws = []
            for each in (reader, sent):
                torch.manual_seed(3)
                draws.append(each[1])
            assert torch.equal(draws[0][0], draws[1][0])
            assert torch.equal(draws[0][1], draws[1][1])


# Runs


def reference_inputs(part: Masks, side: int) -> tuple[Tensor, Tensor]:
    """Images as the network sees them, and labels, with numpy."""
    x, y = np.zeros((len(part), side, side, 3)), np.full((len(part), side, side), 255)
    for i, (image, mask) in enumerate(zip(part.images, part.masks, strict=True)):
        pixels, labels = np.asarray(Image.open(image).convert("RGB")), np.asarray(Image.open(mask))
        height, width = labels.shape
        x[i, :height, :width], y[i, :height, :width] = pixels / 255, labels
    x = (x - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    return torch.from_numpy(x.transpose(0, 3, 1, 2).astype(np.float32)), torch.from_numpy(y)


def calibration_error(logits: Tensor, target: Tensor) -> float:
    """By NumPy in float64; torchmetrics, which adds up in float32, is off by a millionth."""
    kept = target != 255
    confidence, predicted = (part[kept].numpy() for part in logits.double().softmax(1).max(1))
    gap = (predicted == target[kept].numpy()) - confidence
    sums = np.bincount(np.ceil(confidence * 15).astype(int), gap)
    return float(np.abs(sums).sum() / len(gap))


def check_measures(found: dict, logits: Tensor, target: Tensor) -> None:
    """Of all pixels: by scikit-learn, NumPy, and our own functions."""
    kept = target != 255
    label, predicted = target[kept].numpy(), logits.argmax(1)[kept].numpy()
    present = sorted({*label.tolist(), *predicted.tolist()})
    per_image = [calibration_error(x[None], y[None]) for x, y in zip(logits, target, strict=True)]
    assert found["samples"] == int(kept.sum())
    assert found["accuracy"] == pytest.approx((label == predicted).mean(), abs=1e-9)
    assert found["mean_iou"] == pytest.approx(jaccard_score(label, predicted, labels=present, average="macro"), abs=1e-9)
    assert found["mean_iou"] == pytest.approx(float(cal.mean_iou(logits, target, ignore_index=255)), abs=1e-9)
    assert found["ece"] == pytest.approx(calibration_error(logits, target), abs=1e-6)
    assert found["image_ece"] == pytest.approx(np.mean(per_image), abs=1e-6)
    assert found["image_ece"] == pytest.approx(float(cal.per_image(cal.ece, logits, target, ignore_index=255)), abs=1e-6)
    for name in ("accuracy", "mean_iou", "ece", "image_ece"):
        interval = found["intervals"][name]
        assert interval["value"] == pytest.approx(found[name], abs=1e-6)
        assert 0 <= interval["low"] <= interval["value"] <= interval["high"] <= 1
        assert interval["low"] < interval["high"]
    assert found["calibration_test"] is None  # pixels are not independent


def dense_recipe(root: Path, model: Model, loss: str = "cals-alm", **more) -> Recipe:
    return Recipe(
        name="dense",
        data=Data("voc", root=str(root), size=32, workers=0, stride=more.pop("stride", 3)),
        model=model,
        loss=LossChoice(loss),
        optimizer=Optimizer("adamw", lr=3e-3),
        batch_size=4,
        eval_batch_size=3,
        augmentation="segmentation",
        **more,
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voc")
    trees.voc(folder, {"train": 8, "val": 4, "test": 5})
    return folder


UNET = Model("smp:Unet", {"encoder": "resnet18", "encoder_depth": 3, "decoder_channels": [16, 8, 8]})


@pytest.fixture(scope="module")
def finished(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Run]:
    mine = dense_recipe(root, UNET, epochs=3, select="mean_iou")
    run = fit(mine, tmp_path_factory.mktemp("run") / "a", quiet=True)
    assert run is not None
    return mine, run


@pytest.fixture(scope="module")
def recomputed(finished: tuple[Recipe, Run]) -> Callable[[str], tuple[Tensor, Tensor]]:
    """Logits and labels of all pixels of a part, from the weights that were kept."""
    mine, run = finished
    network = mine.build_model(4, {"channels": 3})
    content = torch.load(run.folder / "checkpoints" / "best.ckpt", weights_only=True)
    network.load_state_dict({k[8:]: v for k, v in content["state_dict"].items() if k.startswith("network.")})
    network.eval()

    @torch.no_grad()
    def of(part: str) -> tuple[Tensor, Tensor]:
        x, y = reference_inputs(getattr(mine.load_data(), part), 64)  # 48 x 56 at most: the next multiples of 32
        return network(x), y

    return of


@pytest.mark.parametrize("part", ["validation", "test"])
def test_measures_of_a_dense_run_are_of_all_pixels(finished: tuple[Recipe, Run], recomputed, part: str) -> None:
    _, run = finished
    logits, target = recomputed(part)
    check_measures(run.metrics[part], logits, target)
    assert run.metrics[part]["classes"][1]["name"] == "thing 1"


def test_measures_after_temperature(finished: tuple[Recipe, Run], recomputed) -> None:
    _, run = finished
    logits, target = recomputed("test")
    check_measures(run.metrics["test_after_temperature"], logits / run.metrics["temperature"], target)


def test_predictions_of_a_dense_run_are_a_grid(finished: tuple[Recipe, Run], recomputed) -> None:
    _, run = finished
    for part in ("validation", "test"):
        logits, target = recomputed(part)
        with np.load(run.folder / "predictions" / f"{part}.npz") as found:
            assert found["logits"].shape == (len(target), 4, 22, 22)
            torch.testing.assert_close(torch.from_numpy(found["logits"]), logits[:, :, ::3, ::3], rtol=1e-4, atol=1e-4)
            expected = target[:, ::3, ::3]
            assert found["target"].tolist() == torch.where(expected == 255, -100, expected).tolist()
            assert set(np.unique(found["target"])) == {-100, 0, 1, 2, 3}
            assert found["classes"].tolist() == [f"thing {k}" for k in range(4)]
            assert found["train_counts"].tolist() == data.voc(root=Path(finished[0].data.root or "")).train_counts


def test_the_network_with_the_best_mean_iou_is_reported(finished: tuple[Recipe, Run]) -> None:
    _, run = finished
    with (run.folder / "history.csv").open() as file:
        values = [float(row["mean_iou"]) for row in csv.DictReader(file)]
    assert len(set(values)) == 3
    assert run.metrics["reported"] == f"mean_iou checkpoint, epoch {1 + values.index(max(values))} of 3"
    assert run.metrics["validation"]["mean_iou"] == pytest.approx(max(values), abs=1e-6)


def test_figures_of_pixels_are_drawn(finished: tuple[Recipe, Run]) -> None:
    _, run = finished
    figures = sorted((run.folder / "figures").iterdir())
    assert [path.name for path in figures] == [f"pixels-test_00{i}.png" for i in (0, 2, 4)]
    for path in figures:
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert min(image.size) > 200
            assert len(image.convert("RGB").getcolors(2**24) or []) > 50


class Pixels(nn.Module):
    """A convolution, which is quick."""

    def __init__(self, num_classes: int, channels: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, num_classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


@pytest.mark.parametrize("loss", losses.METHODS)
def test_every_loss_trains_on_pixels(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    monkeypatch.setitem(models.MODELS, "pixels", Pixels)  # type: ignore[arg-type]
    monkeypatch.setattr(import_module("calibrant.train.fit"), "draw_pixels", lambda *_: None)
    mine = dense_recipe(root, Model("pixels"), loss, epochs=2, stride=1)
    run = fit(mine, tmp_path / "run", quiet=True)
    assert run is not None
    logits, target = open_predictions(run.folder).load()
    assert logits.shape == (5, 4, 64, 64)
    check_measures(run.metrics["test"], logits, torch.where(target == -100, 255, target))
    state = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    first = build(mine, mine.load_data())[0].state_dict()
    assert any(not torch.equal(first[name], state[f"network.{name}"]) for name in first)
    assert all(value.isfinite().all() for value in state.values() if value.is_floating_point())


@pytest.mark.parametrize("part", ["val", "test"])
def test_masks_are_looked_at_before_training(tmp_path: Path, part: str) -> None:
    trees.voc(tmp_path, {"train": 3, "val": 2, "test": 2})
    place = tmp_path / "VOCdevkit/VOC2012/SegmentationClass" / f"{part}_001.png"
    mask = np.array(Image.open(place))
    for wrong, message in ((mask[:-3], "but its mask"), (np.full_like(mask, 77), f"{part}_001.png has class 77")):
        Image.fromarray(wrong).save(place)
        with pytest.raises(InputError, match=message):
            fit(dense_recipe(tmp_path, UNET, epochs=1), tmp_path / "run", quiet=True)
        assert not (tmp_path / "run/history.csv").exists()


@pytest.mark.parametrize("augmentation", ["crop-flip", "imagenet", "timm"])
def test_augmentations_that_are_not_for_masks_are_refused(root: Path, tmp_path: Path, augmentation: str) -> None:
    mine = replace(dense_recipe(root, UNET, epochs=1), augmentation=augmentation)
    with pytest.raises(InputError, match=f"augmentation {augmentation} is not for segmented images; choose from none, segm"):
        fit(mine, tmp_path / "run", quiet=True)


def test_corruptions_do_not_see_the_padding(root: Path) -> None:
    found = data.voc(root=root)
    dull = partial(corrupt, name="contrast", severity=3, random=torch.Generator())
    for x, _, _ in Batches(found, found.test, 5, change=dull):
        padded = x
    for index in range(5):
        image = found.test.read(index)[0]
        height, width = image.shape[1:]
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (found.mean, found.std))
        own = padded[index, :, :height, :width] * std + mean
        assert torch.allclose(own, dull(image.unsqueeze(0))[0] / 255, atol=1e-5)
        assert torch.allclose(padded[index, :, height:], (-mean / std).expand_as(padded[index, :, height:]))


def test_a_class_that_does_not_exist_stops_a_run_by_name(root: Path, tmp_path: Path) -> None:
    mine = dense_recipe(root, UNET, epochs=1)
    mine.data = replace(mine.data, options={"classes": ["a", "b", "c"]})
    with pytest.raises(ValueError, match=r"train_00\d.png has class 3, but there are 3 classes \(0..2\)"):
        fit(mine, tmp_path / "run", quiet=True)
