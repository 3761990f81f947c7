"""Runs on segmented images."""

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
from torch import Tensor

import trees
from calibrant import data, functional as cal, losses
from calibrant.audit import Audit
from calibrant.data import Feed, Masks
from calibrant.data.corruptions import corrupt
from calibrant.errors import InputError
from calibrant.recipes import Data, LossChoice, Model, Optimizer, Recipe
from calibrant.train import Run, fit
from calibrant.train.batches import Batches
from calibrant.train.preparing import prepare


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


def check_measures(found: Audit, logits: Tensor, target: Tensor, rounding: float = 0.0) -> None:
    """Of all pixels: by scikit-learn, NumPy, and our own functions.

    Logits of other batches are added up in another order, and differ by ``rounding`` times the largest: where the best two
    are as close, either may be the predicted class.
    """
    kept = target != 255
    best, second = logits.topk(2, dim=1).values.unbind(1)
    close = int((best - second < rounding * logits.abs().max())[kept].sum())
    of_pixels, of_classes = 1e-9 + close / int(kept.sum()), 1e-9 + 2 * close / int(target[kept].bincount().min())
    label, predicted = target[kept].numpy(), logits.argmax(1)[kept].numpy()
    present = sorted({*label.tolist(), *predicted.tolist()})
    per_image = [calibration_error(x[None], y[None]) for x, y in zip(logits, target, strict=True)]
    assert found.samples == int(kept.sum())
    assert found["accuracy"] == pytest.approx((label == predicted).mean(), abs=of_pixels)
    overlap = jaccard_score(label, predicted, labels=present, average="macro")
    assert found["mean_iou"] == pytest.approx(overlap, abs=of_classes)
    assert float(cal.mean_iou(logits, target, ignore_index=255)) == pytest.approx(overlap, abs=1e-9)
    each = jaccard_score(label, predicted, labels=range(1, logits.shape[1]), average=None, zero_division=0)
    # Without the background, as released with CALS.
    assert found["foreground_iou"] == pytest.approx(each.mean(), abs=of_classes)
    edge = (3 + 2 * close) / int(kept.sum())  # NumPy's softmax may put a pixel or two on the other side of a bin's edge
    assert found["ece"] == pytest.approx(calibration_error(logits, target), abs=edge)
    assert found["image_ece"] == pytest.approx(np.mean(per_image), abs=edge)
    assert found["image_ece"] == pytest.approx(float(cal.per_image(cal.ece, logits, target, ignore_index=255)), abs=edge)
    for name in ("accuracy", "mean_iou", "foreground_iou", "ece", "image_ece"):
        interval = found.intervals[name]
        assert interval.value == pytest.approx(found[name], abs=1e-6)
        assert 0 <= interval.low <= interval.value <= interval.high <= 1
        assert interval.low < interval.high
    assert found.test is None  # pixels are not independent


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
    content = torch.load(run.folder.checkpoint("best"), weights_only=True)
    network.load_state_dict({k[8:]: v for k, v in content["state_dict"].items() if k.startswith("network.")})
    network.eval()

    @torch.no_grad()
    def of(part: str) -> tuple[Tensor, Tensor]:
        x, y = reference_inputs(mine.load_data().part(part), 64)  # 48 x 56 at most: the next multiples of 32
        return network(x), y

    return of


@pytest.mark.parametrize("part", ["validation", "test"])
def test_measures_of_a_dense_run_are_of_all_pixels(finished: tuple[Recipe, Run], recomputed, part: str) -> None:
    _, run = finished
    logits, target = recomputed(part)
    found: Audit = getattr(run.result, part)
    check_measures(found, logits, target, rounding=1e-5)
    assert found.classes[1].name == "thing 1"


def test_measures_after_temperature(finished: tuple[Recipe, Run], recomputed) -> None:
    _, run = finished
    logits, target = recomputed("test")
    check_measures(run.result.at("after"), logits / run.result.temperature, target, rounding=1e-5)


def test_predictions_of_a_dense_run_are_a_grid(finished: tuple[Recipe, Run], recomputed) -> None:
    _, run = finished
    for part in ("validation", "test"):
        logits, target = recomputed(part)
        with np.load(run.folder.predictions(part)) as found:
            assert found["logits"].shape == (len(target), 4, 22, 22)
            torch.testing.assert_close(torch.from_numpy(found["logits"]), logits[:, :, ::3, ::3], rtol=1e-4, atol=1e-4)
            expected = target[:, ::3, ::3]
            assert found["target"].tolist() == torch.where(expected == 255, -100, expected).tolist()
            assert set(np.unique(found["target"])) == {-100, 0, 1, 2, 3}
            assert found["classes"].tolist() == [f"thing {k}" for k in range(4)]
            assert found["train_counts"].tolist() == data.voc(root=Path(finished[0].data.root or "")).train_counts


def test_the_network_with_the_best_mean_iou_is_reported(finished: tuple[Recipe, Run]) -> None:
    _, run = finished
    values = [row["mean_iou"] for row in run.folder.history()]
    assert len(set(values)) > 1
    assert run.result.reported == f"mean_iou checkpoint, epoch {1 + values.index(max(values))} of 3"
    assert run.result.validation["mean_iou"] == pytest.approx(max(values), abs=1e-6)


def test_figures_of_pixels_are_drawn(finished: tuple[Recipe, Run]) -> None:
    _, run = finished
    figures = sorted(run.folder.figures.iterdir())
    assert [path.name for path in figures] == [f"pixels-test_00{i}.png" for i in (0, 2, 4)]
    for path in figures:
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert min(image.size) > 200
            assert len(image.convert("RGB").getcolors(2**24) or []) > 50


@pytest.mark.parametrize("loss", losses.METHODS)
def test_every_loss_trains_on_pixels(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    monkeypatch.setattr(import_module("calibrant.train.fit"), "draw_pixels", lambda *_: None)
    mine = dense_recipe(root, Model("own_code.Pixels"), loss, epochs=2, stride=1)
    run = fit(mine, tmp_path / "run", quiet=True, allow_code=True)
    assert run is not None
    logits, target = run.folder.open().read_all()
    assert logits.shape == (5, 4, 48, 56)  # this network does not need sides that are multiples of 32
    check_measures(run.result.test, logits, torch.where(target == -100, 255, target))
    state = torch.load(run.folder.checkpoint("last"), weights_only=True)["state_dict"]
    first = prepare(mine, allow_code=True).network.state_dict()
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
    with pytest.raises(
        InputError, match=f"augmentation {augmentation} does not apply to segmented images; choose one of none, segm"
    ):
        fit(mine, tmp_path / "run", quiet=True)


def test_corruptions_do_not_see_the_padding(root: Path) -> None:
    found = data.voc(root=root)
    dull = partial(corrupt, name="contrast", severity=3, random=torch.Generator())
    for x, _, _ in Batches(found.test, 5, Feed(change=dull, multiple=32, mean=found.mean, std=found.std)):
        padded = x
    for index in range(5):
        image = found.test.read_one(index)[0]
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
