"""Segmented images in the layout of PASCAL VOC, and the same change of images and masks."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import ColorJitter, RandomCrop

import trees
from calibrant import data
from calibrant.data import Feed, Masks, MissingDataError, Part
from calibrant.data.augmentation import JointTransform

# Segmented images


def test_three_lists_are_three_parts(tmp_path: Path) -> None:
    trees.voc(tmp_path, {"train": 5, "val": 3, "test": 4}, name="mine")
    found = data.create("voc", path="mine", root=tmp_path)
    parts = {"train": found.train, "val": found.validation, "test": found.test}
    for name, part in parts.items():
        assert isinstance(part, Masks)
        assert [Path(path).stem for path in part.images] == [f"{name}_{i:03}" for i in range(len(part))]
        assert [Path(path).stem for path in part.masks] == [Path(path).stem for path in part.images]
    assert [len(part) for part in parts.values()] == [5, 3, 4]
    assert (found.name, list(found.classes), found.ignore_index) == ("mine", [f"thing {k}" for k in range(4)], 255)
    image, mask = found.test.read_one(1)
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
    found = data.create("voc", root=tmp_path)
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
    with pytest.raises(ValueError, match="has class 255, but there are 2 classes .0..1. and void pixels must be 2"):
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
        data.create("voc", root=tmp_path)
    assert str(folder) in str(caught.value)


def test_bad_masks_are_named(tmp_path: Path) -> None:
    trees.voc(tmp_path, {"train": 3, "val": 1, "test": 1})
    found = data.voc(root=tmp_path)
    folder = tmp_path / "VOCdevkit" / "VOC2012"
    Image.fromarray(np.zeros((9, 7), dtype=np.uint8)).save(folder / "SegmentationClass" / "train_000.png")
    with pytest.raises(ValueError, match=r"train_000.jpg is \(40, 56\), but its mask .*train_000.png is \(9, 7\)"):
        list(found.train.read([torch.arange(3)], Feed(train=True, size=32)))
    Image.fromarray(np.zeros((48, 40, 3), dtype=np.uint8)).save(folder / "SegmentationClass" / "train_001.png")
    with pytest.raises(ValueError, match="train_001.png must hold class indices .one channel or a palette., not RGB"):
        found.train.read_one(1)
    Image.fromarray(np.full((40, 56), 9, dtype=np.uint8)).save(folder / "SegmentationClass" / "train_002.png")
    with pytest.raises(ValueError, match=r"train_002.png has class 9, but there are 4 classes \(0..3\) and void .* be 255"):
        found.train.subset(torch.tensor([2])).counts(4)
    (folder / "ImageSets/Segmentation/train.txt").write_text("\n")
    with pytest.raises(MissingDataError, match="train.txt is empty; expected one image name per line"):
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


def test_segmented_images_are_changed_as_torchvision_does_it() -> None:
    """The same random numbers, image alone and mask alone, in torchvision's classic transforms."""
    image = torch.randint(256, (3, 50, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    mask = image[0].long() % 5
    change, crop, jitter = JointTransform("segmentation", 32, None, 255), RandomCrop(32), ColorJitter(0.3, 0.3, 0.3, 0.05)
    mirrored = 0
    for seed in range(20):
        torch.manual_seed(seed)
        x, y = change(image, mask)
        torch.manual_seed(seed)
        top, left, height, width = crop.get_params(image, (32, 32))
        own = [part[..., top : top + height, left : left + width] for part in (image, mask)]
        if torch.rand(1) < 0.5:
            own, mirrored = [part.flip(-1) for part in own], mirrored + 1
        assert torch.equal(y, own[1])
        assert (x.int() - jitter(own[0]).int()).abs().max() <= 2  # which rounds differently
    assert 3 < mirrored < 17


def reader_of(part: Part, feed: Feed) -> Dataset[tuple[Tensor, Tensor]]:
    """What worker processes are sent."""
    sent = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calibrant.data.images.DataLoader", lambda reader, **_: sent.append(reader) or [])
        list(part.read([], feed))
    return sent[0]


@pytest.mark.parametrize("train", [True, False])
def test_what_reads_files_can_be_sent_to_a_spawned_process(tmp_path: Path, train: bool) -> None:
    trees.voc(tmp_path / "voc", {"train": 3, "val": 1, "test": 1})
    trees.imagenet(tmp_path / "imagenet")
    for found, ways in (
        (data.voc(root=tmp_path / "voc"), ("none", "segmentation")),
        (data.imagenet(tmp_path / "imagenet"), ("none", "crop-flip", "imagenet", "timm")),
    ):
        for augmentation in ways:
            reader = reader_of(found.train, Feed(train=train, augmentation=augmentation, size=32, longest=48))
            sent = pickle.loads(pickle.dumps(reader))  # noqa: S301
            draws = []
            for each in (reader, sent):
                torch.manual_seed(3)
                draws.append(each[1])
            assert torch.equal(draws[0][0], draws[1][0])
            assert torch.equal(draws[0][1], draws[1][1])
