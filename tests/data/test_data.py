"""Data sets, on small trees in the layouts that users have."""

import random
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from PIL import Image
from timm.data import create_transform
from timm.data.random_erasing import RandomErasing
from torchvision.transforms import v2

import trees
from calibrant import data
from calibrant.data import Files, Images, MissingDataError, long_tail_counts, split_off
from calibrant.data.augmentation import crop_and_flip, transform
from calibrant.data.splits import long_tail_indices
from calibrant.errors import InputError


def test_digits_have_a_long_tail() -> None:
    found = data.digits().long_tailed(20)
    counts = found.train_counts
    assert counts == [round(counts[0] * 20 ** (-k / 9)) for k in range(10)]
    assert counts[0] == 20 * counts[9] + 4  # 84 and 4, rounded
    parts = torch.cat([part.x.flatten(1) for part in (found.train, found.validation, found.test)])
    assert len(parts.unique(dim=0)) == len(parts)  # no image is in two parts
    assert len(data.digits(validation=0, test=0).train.y) == 1740
    assert found.train.x.shape[1:] == (1, 8, 8)


def test_digits() -> None:
    found = data.digits(seed=3).long_tailed(20, seed=3)
    assert found.train_counts[0] == 84
    assert found.train_counts[0] / found.train_counts[-1] == pytest.approx(20, rel=0.06)
    assert torch.bincount(found.validation.y).tolist() == [20] * 10
    assert torch.bincount(found.test.y).tolist() == [70] * 10
    everything = torch.cat(list(found.split.values()))
    assert len(everything.unique()) == len(everything)
    again, *others = (data.digits(seed=a).long_tailed(20, seed=b) for a, b in ((3, 3), (3, 4), (4, 3)))
    assert again.train.checksum() == found.train.checksum()
    assert len({part.train.checksum() for part in (found, *others)}) == 3
    assert 0 <= float(found.train.x.min()) < float(found.train.x.max()) == 1


def test_fashion_mnist_from_its_files(tmp_path: Path) -> None:
    trees.fashion_mnist(tmp_path)
    found = data.create("fashion-mnist", root=tmp_path, validation=50, seed=1)
    assert isinstance(found.train, Images)
    assert found.train.x.shape == (250, 1, 28, 28)
    assert found.train.x.dtype == torch.uint8
    assert len(found.validation), len(found.test) == (50, 40)
    assert found.classes[0] == "T-shirt/top"
    both = torch.cat([found.split["train"], found.split["validation"]])
    assert sorted(both.tolist()) == list(range(300))
    assert torch.equal(found.validation.y, torch.arange(300)[found.split["validation"]] % 10)


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: int) -> None:
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_, **__: True)  # of the full set
    trees.cifar(tmp_path, classes)
    found = data.create(f"cifar{classes}", root=tmp_path, validation=60)
    assert found.train.x.shape == (240, 3, 32, 32)
    assert found.num_classes == classes
    assert found.classes[3] == "class 3"
    k = int(found.test.y[7])
    row, column = divmod(k % 16, 4)
    assert bool((found.test.x[7, :, row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] == 255).all())


def test_tiny_imagenet(tmp_path: Path) -> None:
    trees.tiny_imagenet(tmp_path)
    found = data.create("tiny-imagenet", root=tmp_path, validation=2)
    assert found.train.x.shape == (12, 3, 64, 64)
    assert torch.bincount(found.validation.y).tolist() == [2, 2, 2]
    assert torch.bincount(found.test.y).tolist() == [4, 4, 4]
    assert list(found.classes) == ["thing n1000", "thing n1001", "thing n1002"]
    as_files = data.tiny_imagenet(tmp_path, validation=2, in_memory=False)
    assert isinstance(as_files.train, Files)
    assert torch.equal(as_files.train.y, found.train.y)
    for part in (found.train, found.validation, found.test):  # the bright square tells the class
        for x, k in zip(part.x, part.y.tolist(), strict=True):
            assert x[:, :16, 16 * k : 16 * k + 16].float().mean() > 240


def test_imagenet_divides_the_official_validation_set(tmp_path: Path) -> None:
    trees.imagenet(tmp_path)
    found = data.create("imagenet", root=tmp_path, validation=0.2)
    assert (len(found.train), len(found.validation), len(found.test)) == (18, 6, 24)
    assert not set(found.validation.paths) & set(found.test.paths)
    assert data.create("imagenet", root=tmp_path, validation=0.5).test.y.numel() == 15


def test_imagenet_lt_follows_the_lists(tmp_path: Path) -> None:
    trees.imagenet(tmp_path)
    found = data.create("imagenet-lt", root=tmp_path)
    assert found.train_counts == [6, 3, 1]
    assert torch.bincount(found.validation.y).tolist() == [2, 2, 2]
    assert torch.bincount(found.test.y).tolist() == [5, 5, 5]
    assert list(found.classes) == ["n1000", "n1001", "n1002"]
    assert all(Path(path).exists() for part in (found.train, found.validation, found.test) for path in part.paths)


def test_class_folders(tmp_path: Path) -> None:
    trees.class_tree(tmp_path / "mine", {"train": 10, "test": 2})
    found = data.create("folders", path="mine", root=tmp_path, validation=0.2)
    assert (len(found.train), len(found.validation), len(found.test)) == (24, 6, 6)
    trees.class_tree(tmp_path / "mine", {"val": 3})
    assert len(data.create("folders", path=tmp_path / "mine").validation) == 9


def test_class_folders_without_a_test_part(tmp_path: Path) -> None:
    """The layout of ImageNet and of many tutorials: what is called val is what is reported on."""
    trees.class_tree(tmp_path / "mine", {"train": 10, "val": 3})
    (tmp_path / "mine" / "train" / ".ipynb_checkpoints").mkdir()
    said = "mine has no test folder: val is the test part, and 0.2 of the images in train are held out for validation"
    with pytest.warns(UserWarning, match=said):
        found = data.create("folders", path="mine", root=tmp_path, validation=0.2)
    assert [len(part) for part in (found.train, found.validation, found.test)] == [24, 6, 9]
    assert all("/val/" in path for path in found.test.paths)
    assert all("/train/" in path for path in [*found.train.paths, *found.validation.paths])
    assert not set(found.train.paths) & set(found.validation.paths)
    assert found.num_classes == 3
    trees.class_tree(tmp_path / "mine", {"test": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(data.create("folders", path="mine", root=tmp_path).validation) == 9


def test_class_folders_that_cannot_be_divided(tmp_path: Path) -> None:
    trees.class_tree(tmp_path / "mine", {"train": 2})
    with pytest.raises(data.MissingDataError, match="test does not exist; expected a folder of images for each class"):
        data.create("folders", path="mine", root=tmp_path)
    trees.class_tree(tmp_path / "mine", {"test": 2}, classes=4)
    with pytest.raises(data.MissingDataError, match="test has the class 'n1003', but there are no images of it to train on"):
        data.create("folders", path="mine", root=tmp_path)


def test_npz(tmp_path: Path) -> None:
    x = np.stack([trees.image(k % 4, 16) for k in range(40)])
    y = np.arange(40) % 4
    np.savez(tmp_path / "a.npz", train_x=x, train_y=y, test_x=x[:8], test_y=y[:8], classes=np.array(list("abcd")))
    found = data.create("npz", path="a.npz", root=tmp_path, validation=0.25)
    assert found.train.x.shape == (30, 3, 16, 16)
    assert list(found.classes) == list("abcd")
    assert found.mean == pytest.approx([float(x[..., c].mean()) / 255 for c in range(3)], abs=1e-3)
    np.savez(tmp_path / "b.npz", train_x=x, train_y=y, test_x=x[:8])
    with pytest.raises(ValueError, match="has no array test_y; it has train_x, train_y, test_x"):
        data.create("npz", path=tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", train_x=x.astype(object), train_y=y, test_x=x, test_y=y)
    with pytest.raises(ValueError, match="cannot be read as an .npz of numbers"):
        data.create("npz", path=tmp_path / "c.npz")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fashion-mnist", "expected .*FashionMNIST/raw/.* pass `data.download=True` to download it"),
        ("cifar10", "cifar10 is not in .*: expected .*cifar-10-batches-py/"),
        ("svhn", "expected .*{train,test}_32x32.mat"),
        ("tiny-imagenet", "tiny-imagenet-200 is not in .* with wnids.txt, train/WNID/images"),
        ("imagenet", "imagenet is not in .* with train/WNID"),
        ("imagenet-lt", "with ImageNet_LT_train.txt"),
    ],
)
def test_missing_data_is_named_with_its_place_and_layout(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(MissingDataError, match=message) as caught:
        data.create(name, root=tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="data must be one of digits, mnist.*did you mean 'cifar10'"):
        data.create("cifer10")
    with pytest.raises(ValueError, match="data set digits takes no option 'colour'"):
        data.create("digits", colour=3)


@pytest.mark.parametrize("kind", ["exp", "pareto", "step"])
def test_long_tails(kind) -> None:
    counts = long_tail_counts(1000, 50, 100, kind)
    assert counts[0] == 1000
    assert counts[-1] == 10
    assert counts == sorted(counts, reverse=True)
    if kind == "exp":
        assert counts[25] == pytest.approx(1000 * 100 ** (-25 / 49), abs=1)
    part = Images(torch.zeros(500, 1, 2, 2), torch.arange(500) % 5)
    indices = long_tail_indices(part.y, 10, kind=kind, seed=1)
    assert torch.bincount(part.y[indices]).tolist() == long_tail_counts(100, 5, 10, kind)
    assert torch.bincount(part.y[long_tail_indices(part.y, 10, kind=kind, most=50)]).tolist() == long_tail_counts(
        50, 5, 10, kind
    )
    before = torch.arange(1000, 1500)
    whole = data.DataSet("x", list("abcde"), part, part, part, split={"train": before, "test": torch.arange(3)})
    small = whole.long_tailed(10, kind=kind, seed=1)
    assert torch.equal(small.train.y, part.y[indices])
    assert torch.equal(small.split["train"], before[indices])  # numbers of the source, not of what was left of it
    assert torch.equal(small.split["test"], torch.arange(3))
    assert small.test is whole.test


def test_the_pareto_tail_has_the_shape_of_imagenet_lt() -> None:
    counts = np.array(long_tail_counts(1280, 1000, 256, "pareto"))
    assert 0.7 < counts.sum() / 115_846 < 1.5  # the published one; an exponential tail has twice as many
    assert np.array(long_tail_counts(1280, 1000, 256, "exp")).sum() / 115_846 > 1.9


def test_a_data_set_may_be_limited() -> None:
    found = data.digits()
    some, again, other = (found.limited(50, seed=seed) for seed in (0, 0, 1))
    assert [len(some.part(name)) for name in ("train", "validation", "test")] == [50, 50, 50]
    assert some.test.checksum() == again.test.checksum() != other.test.checksum()
    rows = {tuple(row) for row in found.test.x.flatten(1).tolist()}
    assert {tuple(row) for row in some.test.x.flatten(1).tolist()} < rows
    assert len(found.limited(10_000).test) == len(found.test)
    assert repr(some) == "DataSet(digits: 50 / 50 / 50 images in memory of 10 classes)"


def test_what_cannot_be_done_with_samples_is_said(tmp_path: Path) -> None:
    trees.voc(tmp_path, {"train": 2, "val": 1, "test": 1})
    dense, plain = data.voc(root=tmp_path), data.digits()
    with pytest.raises(TypeError, match="a long tail needs samples with one class each, not segmented images"):
        dense.long_tailed(10)
    with pytest.raises(TypeError, match="segmented images do not have one label each"):
        _ = dense.train.labels
    with pytest.raises(TypeError, match="a noisy validation set needs samples with one class each"):
        data.altered(dense.validation, "noisy", 4)
    with pytest.raises(TypeError, match="out-of-distribution detection needs images with one class each"):
        data.unknown("noise", dense)
    plain.test.refuse("shift")
    plain.train.check_augmentation("crop-flip")
    with pytest.raises(ValueError, match="augmentation timm does not apply to images in memory; choose one of none, crop-f"):
        plain.train.check_augmentation("timm")


def test_wrong_labels_are_named_with_their_part() -> None:
    found = data.digits()
    wrong = data.DataSet("x", list("abc"), found.train.relabelled(found.train.y % 3), found.validation, found.test)
    with pytest.raises(InputError, match="the validation part: labels must be 0..2, found 0..9"):
        wrong.check()
    found.check()


def test_splits() -> None:
    y = torch.arange(100) % 4
    kept, out = split_off(y, 0.3, seed=1)
    assert len(out) == 30
    assert sorted([*kept.tolist(), *out.tolist()]) == list(range(100))
    assert torch.equal(split_off(y, 30, seed=1)[1], out)
    assert not torch.equal(split_off(y, 30, seed=2)[1], out)
    assert torch.bincount(y[split_off(y, 5, seed=1, per_class=True)[1]]).tolist() == [5] * 4


# Batches


def test_augmentation_as_a_batch_has_the_statistics_of_one_by_one() -> None:
    """Where each pixel ends up, over many draws of both."""
    marks = torch.zeros(1, 3, 12, 12, dtype=torch.uint8)
    marks[0, :, 5, 4] = 200
    marks[0, 1, 2, 9] = 100
    count = 6000
    batch = crop_and_flip(marks.expand(count, -1, -1, -1), torch.Generator().manual_seed(0)).double()
    torch.manual_seed(0)
    per_sample = v2.Compose([v2.RandomCrop(12, padding=4), v2.RandomHorizontalFlip()])
    alone = torch.stack([per_sample(marks[0]) for _ in range(count)]).double()
    error = 200 * (2 / (81 * count)) ** 0.5
    assert (batch.mean(0) - alone.mean(0)).abs().max() < 6 * error
    pairs = [(x[:, 0, 3:7, 3:7] > 0).flatten(1).double() for x in (batch, alone)]  # images move as a whole
    assert (pairs[0].mean(0) - pairs[1].mean(0)).abs().max() < 0.02
    assert set(batch.unique().tolist()) == {0, 100, 200}
    assert {int(x) for x in (batch[:, 0] == 200).sum((1, 2))} == {1}


def erased(images: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    """Share of the pixels of each image that differ from its one colour, and their values."""
    colour = images.flatten(2).median(dim=2).values[..., None, None]
    other = (images != colour).any(dim=1)
    return other.flatten(1).double().mean(1), images.transpose(0, 1)[:, other].flatten().numpy()


def test_random_erasing_is_that_of_timm() -> None:
    """Of images of one colour: how many have a patch, its size, and N(0, 1) in it, where normalised pixels have mean 0."""
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.2, 0.2)
    change = transform("timm", 24, train=True, mean=mean, std=std)
    grey = torch.full((3, 30, 30), 120, dtype=torch.uint8)
    torch.manual_seed(0)
    ours, values = erased(torch.stack([change(grey) for _ in range(1500)]))
    theirs, expected = erased(RandomErasing(0.25, mode="pixel", device="cpu")(torch.full((1500, 3, 24, 24), 0.25)))
    assert abs(float((ours > 0).double().mean()) - 0.25) < 0.05
    assert scipy.stats.ks_2samp(ours[ours > 0], theirs[theirs > 0]).pvalue > 1e-3
    assert (values.mean(), values.std()) == pytest.approx((0, 1), abs=0.02)
    assert scipy.stats.kstest(values[:3000], "norm").pvalue > 1e-3
    assert (expected.mean(), expected.std()) == pytest.approx((0, 1), abs=0.02)


def test_the_augmentation_of_timm_is_that_of_timm() -> None:
    """Crops, flips, colour jitter, normalisation and erasing of one image, many times: means, deviations and slopes."""
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    rows, columns = np.mgrid[:40, :40]
    image = np.stack([5 * rows + columns, 6 * columns, 100 + 2 * rows], axis=-1).astype(np.uint8)
    ours = transform("timm", 24, train=True, mean=mean, std=std)
    jitter_and_erasing = {"color_jitter": 0.4, "auto_augment": None, "re_prob": 0.25, "re_mode": "pixel"}
    theirs = create_transform(24, True, interpolation="bicubic", mean=mean, std=std, **jitter_and_erasing)
    torch.manual_seed(0)
    random.seed(0)
    tensor, picture = torch.from_numpy(image).movedim(-1, 0), Image.fromarray(image)
    both = [torch.stack([change(given) for _ in range(800)]) for change, given in ((ours, tensor), (theirs, picture))]
    for statistic in (
        *(lambda x, c=c: x[:, c].mean((1, 2)) for c in range(3)),
        *(lambda x, c=c: x[:, c].std((1, 2)) for c in range(3)),
        lambda x: (x[:, 1, :, 12:] - x[:, 1, :, :12]).mean((1, 2)),  # which mirroring turns round
        lambda x: (x[:, 0] - x[:, 2]).mean((1, 2)),  # which saturation changes
    ):
        assert scipy.stats.ks_2samp(*(statistic(x).numpy() for x in both)).pvalue > 1e-3


def test_images_from_files_are_changed_as_torchvision_does_it() -> None:
    image = torch.randint(256, (3, 50, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    cubic, none = v2.InterpolationMode.BICUBIC, {"mean": (0.0,), "std": (1.0,)}
    resized = v2.Compose([v2.Resize(37, interpolation=cubic, antialias=True), v2.CenterCrop(32)])(image)
    for augmentation in ("none", "imagenet", "timm"):
        assert torch.equal(transform(augmentation, 32, train=False, **none)(image), resized)
    steps = [v2.RandomResizedCrop(32, interpolation=cubic, antialias=True), v2.RandomHorizontalFlip()]
    expected = {"crop-flip": [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()], "imagenet": steps}
    for augmentation, own in expected.items():
        for seed in range(5):
            torch.manual_seed(seed)
            found = transform(augmentation, 32, train=True, **none)(image)
            torch.manual_seed(seed)
            assert torch.equal(found, v2.Compose(own)(image)), augmentation
