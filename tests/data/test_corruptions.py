"""Corruptions against Pillow, scipy and arithmetic by hand; unknown data and altered validation sets."""

import colorsys
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from calibrant import data
from calibrant.data import CORRUPTIONS, Files, Images, MissingDataError, Texts
from calibrant.data.corruptions import box, corrupt, plasma
from calibrant.data.out_of_distribution import resized
from trees import class_tree, fashion_mnist

PICTURES = torch.from_numpy(
    np.stack(
        [np.random.default_rng(k).integers(0, 256, (3, 8, 8), dtype=np.uint8).repeat(4, 1).repeat(4, 2) for k in range(6)]
    )
)


def changed(name: str, severity: int, x: torch.Tensor = PICTURES, seed: int = 0) -> torch.Tensor:
    return corrupt(x, name, severity, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_keep_the_form_and_grow_with_severity(name: str) -> None:
    gaps = []
    for severity in (1, 5):
        found = changed(name, severity)
        assert found.shape == PICTURES.shape
        assert found.dtype == torch.uint8
        assert torch.equal(found, changed(name, severity))
        gaps.append(float((found.float() - PICTURES.float()).abs().mean()))
    assert 0 < gaps[0] < gaps[1]


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("channels", [1, 3])
def test_floats_and_bytes_agree(name: str, channels: int) -> None:
    x = PICTURES[:, :channels]
    floats = changed(name, 3, x.float() / 255)
    assert floats.dtype == torch.float32
    assert float((floats * 255 - changed(name, 3, x)).abs().max()) <= (1.01 if name == "pixelate" else 0.51)


def test_large_images_get_the_strengths_of_imagenet() -> None:
    x = torch.full((1, 1, 128, 128), 0.5)
    assert float(changed("gaussian_noise", 1, x).std()) == pytest.approx(0.08, rel=0.03)
    assert float(changed("gaussian_noise", 1, x[..., :32, :32]).std()) == pytest.approx(0.04, rel=0.1)


def test_noises_have_their_moments() -> None:
    x = torch.full((40, 1, 32, 32), 0.4)
    photons = changed("shot_noise", 3, x)
    assert float(photons.mean()) == pytest.approx(0.4, abs=2e-3)
    assert float(photons.var()) == pytest.approx(0.4 / 100, rel=0.05)
    salted = changed("impulse_noise", 5, x)
    for value in (0.0, 1.0):
        assert float((salted == value).float().mean()) == pytest.approx(0.035, abs=3e-3)


@pytest.mark.parametrize("severity", range(1, 6))
def test_blur_is_scipys(severity: int) -> None:
    strength = CORRUPTIONS["gaussian_blur"].small[severity - 1]
    x = PICTURES.float() / 255
    expected = ndimage.gaussian_filter(x.numpy(), (0, 0, strength, strength), mode="nearest", truncate=4)
    assert np.allclose(changed("gaussian_blur", severity, x).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("side", [28, 32])
def test_pixelate_is_pillows(severity: int, side: int) -> None:
    strength = CORRUPTIONS["pixelate"].small[severity - 1]
    x = PICTURES[..., :side, :side]
    small = int(side * strength)
    for found, image in zip(changed("pixelate", severity, x), x, strict=True):
        picture = Image.fromarray(image.movedim(0, -1).numpy())
        expected = picture.resize((small, small), Image.Resampling.BOX).resize((side, side), Image.Resampling.BOX)
        assert np.abs(found.movedim(0, -1).numpy().astype(int) - np.array(expected).astype(int)).max() <= 1


def test_box_filters_keep_what_is_flat() -> None:
    for before, after in ((32, 20), (20, 32), (7, 3), (3, 7)):
        assert torch.allclose(box(before, after).sum(dim=1), torch.ones(after))


def test_contrast_and_brightness_by_hand() -> None:
    x = PICTURES.double() / 255
    mean = x.mean(dim=(2, 3), keepdim=True)
    expected = ((x - mean) * 0.4 + mean).clamp(0, 1)
    assert torch.allclose(changed("contrast", 3, x), expected, atol=1e-6)
    brighter = changed("brightness", 4, x)
    for image in range(2):
        for row, column in ((0, 0), (9, 17), (31, 31)):
            h, s, v = colorsys.rgb_to_hsv(*x[image, :, row, column].tolist())
            by_hand = colorsys.hsv_to_rgb(h, s, min(1.0, v + 0.2))
            assert brighter[image, :, row, column].tolist() == pytest.approx(by_hand, abs=1e-5)


def test_jpeg_is_what_a_file_would_hold() -> None:
    file = io.BytesIO()
    Image.fromarray(PICTURES[2].movedim(0, -1).numpy()).save(file, "JPEG", quality=40)
    assert np.array_equal(changed("jpeg_compression", 5)[2].movedim(0, -1).numpy(), np.array(Image.open(file)))


def test_fog_is_cloudy_and_bright() -> None:
    dark = torch.full((30, 3, 32, 32), 0.2)
    fog = changed("fog", 5, dark)
    assert float(fog.amax()) <= 0.2 + 1e-6  # as bright as the brightest, and darker elsewhere
    assert float(fog.mean()) < 0.2
    assert torch.equal(fog[:, 0], fog[:, 1])
    assert float(fog.std(dim=(2, 3)).mean()) > 0.02
    smooth, rough = (plasma(20, 32, decay, torch.Generator().manual_seed(0)) for decay in (3.0, 1.2))
    for cloud in (smooth, rough):
        assert float(cloud.amin()) == 0
        assert float(cloud.amax()) == 1
    assert float(smooth.diff(dim=2).abs().mean()) < 0.7 * float(rough.diff(dim=2).abs().mean())


def published_cloud(side: int, decay: float, random: np.random.Generator) -> np.ndarray:
    """The published algorithm, point by point: what decays is multiplied with a number between minus and plus itself."""
    cloud, step, wibble = np.zeros((side, side)), side, 100.0

    def wibbled(*points: tuple[int, int]) -> float:
        return sum(cloud[i % side, j % side] for i, j in points) / 4 + wibble * random.uniform(-wibble, wibble)

    while step >= 2:
        half, corners = step // 2, range(0, side, step)
        for i in corners:
            for j in corners:
                cloud[i + half, j + half] = wibbled((i, j), (i + step, j), (i, j + step), (i + step, j + step))
        for i in corners:
            for j in corners:
                cloud[i, j + half] = wibbled((i, j), (i, j + step), (i - half, j + half), (i + half, j + half))
                cloud[i + half, j] = wibbled((i, j), (i + step, j), (i + half, j - half), (i + half, j + half))
        step, wibble = half, wibble / decay
    return (cloud - cloud.min()) / (cloud - cloud.min()).max()


@pytest.mark.parametrize("decay", [3.0, 2.0, 1.75])
def test_clouds_are_as_rough_as_the_published_ones(decay: float) -> None:
    random = np.random.default_rng(0)
    expected = np.stack([published_cloud(32, decay, random) for _ in range(250)])
    found = plasma(600, 32, decay, torch.Generator().manual_seed(0)).numpy()
    for step in (1, 4):
        roughness = [float(np.abs(c - np.roll(c, step, axis=2)).mean()) for c in (found, expected)]
        assert roughness[0] == pytest.approx(roughness[1], rel=0.06)
    assert float(found.mean()) == pytest.approx(float(expected.mean()), abs=0.03)


def test_wrong_names_and_severities() -> None:
    with pytest.raises(ValueError, match=r"values in \[0, 1\]; these range from -1 to 255"):
        changed("fog", 1, torch.tensor([-1.0, 255.0]).view(1, 1, 1, 2))
    with pytest.raises(ValueError, match="corruption must be one of gaussian_noise"):
        changed("rain", 1)
    with pytest.raises(ValueError, match="severity must be one of 1, 2, 3, 4, 5, got 6"):
        changed("fog", 6)


# Unknown data


def known(channels: int = 1, side: int = 28, kind: torch.dtype = torch.uint8) -> data.DataSet:
    x = torch.randint(0, 256, (12, channels, side, side), dtype=torch.uint8)
    x = x if kind == torch.uint8 else x.float() / 255
    part = Images(x, torch.arange(12) % 3)
    return data.DataSet("known", ["a", "b", "c"], part, part, part)


def test_unknown_images_take_the_form_of_the_known(tmp_path: Path) -> None:
    fashion_mnist(tmp_path, 20, 10, name="MNIST")
    for channels, side in ((1, 28), (3, 32)):
        part = data.unknown("mnist", known(channels, side), root=tmp_path)
        assert part.x.shape == (10, channels, side, side)
        assert part.x.dtype == torch.uint8
    same = data.unknown("mnist", known(), root=tmp_path)
    assert torch.equal(same.x, data.create("mnist", root=tmp_path, validation=5).test.x)
    floats = data.unknown("mnist", known(kind=torch.float32), root=tmp_path)
    assert torch.equal(floats.x, same.x.float() / 255)
    some = data.unknown("mnist", known(), root=tmp_path, limit=4).x
    assert len(some) == 4
    assert not torch.equal(some, same.x[:4])  # drawn: the first ones may all be of one class
    assert all(any(torch.equal(image, other) for other in same.x) for image in some)


def test_resized_is_pillows_antialiased_one() -> None:
    x = PICTURES[:1]
    expected = np.array(Image.fromarray(x[0].movedim(0, -1).numpy()).resize((12, 20), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(resized(x, (3, 20, 12))[0].movedim(0, -1).numpy().astype(int) - expected).max() <= 1
    grey = resized(x, (1, 32, 32))[0, 0].numpy().astype(int)
    assert np.abs(grey - np.array(Image.fromarray(x[0].movedim(0, -1).numpy()).convert("L")).astype(int)).max() <= 1


def test_noise_folders_and_arrays(tmp_path: Path) -> None:
    noise = data.unknown("noise", known(side=64), limit=200).x.float() / 255
    inside = noise[(noise > 0) & (noise < 1)]
    assert float((noise == 0).float().mean()) == pytest.approx(0.3085, abs=5e-3)
    assert float(inside.mean()) == pytest.approx(0.5, abs=5e-3)
    for k in range(3):
        Image.fromarray(PICTURES[k].movedim(0, -1).numpy()).save(tmp_path / f"{k}.png")
    found = data.unknown(str(tmp_path), known(3, 32))
    assert torch.equal(found.x, PICTURES[:3])
    np.savez(tmp_path / "own.npz", x=PICTURES.movedim(1, -1).numpy())
    assert torch.equal(data.unknown("own.npz", known(3, 32), root=tmp_path).x, PICTURES)
    like = known(3, 32)
    foggy = data.unknown("fog:4", like, seed=3)
    assert torch.equal(foggy.x, corrupt(like.test.x, "fog", 4, torch.Generator().manual_seed(3)))


def test_arrays_of_any_kind_of_number(tmp_path: Path) -> None:
    numbers = PICTURES.numpy()
    arrays = {
        "whole": numbers.astype(np.int64),
        "half": (numbers / 255).astype(np.float64),
        "wide": numbers.astype(np.float32),
    }
    arrays["signed"] = numbers.astype(np.int32) - 128
    for name, x in arrays.items():
        np.savez(tmp_path / f"{name}.npz", x=x)
    assert torch.equal(data.unknown("whole.npz", known(3, 32), root=tmp_path).x, PICTURES)
    half = data.unknown("half.npz", known(3, 32), root=tmp_path).x
    assert half.dtype == torch.float32
    assert torch.allclose(half, PICTURES / 255)
    with pytest.raises(ValueError, match="range from 0 to 255; expected 0 to 1, or uint8"):
        data.unknown("wide.npz", known(3, 32), root=tmp_path)
    with pytest.raises(ValueError, match="must have values from 0 to 255, got -128 to 127"):
        data.unknown("signed.npz", known(3, 32), root=tmp_path)
    like = known(3, 32, torch.float32)
    like = replace(like, test=Images(like.test.x * 8 - 4, like.test.y))
    assert torch.equal(data.unknown("wide.npz", like, root=tmp_path).x, PICTURES.float())
    with pytest.raises(ValueError, match="cannot be converted to that scale"):
        data.unknown("noise", like)


def test_images_of_sixteen_bits_are_scaled(tmp_path: Path) -> None:
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1040
    Image.fromarray(deep).save(tmp_path / "deep.png")
    found = data.unknown(str(tmp_path), known(1, 8)).x
    assert np.abs(found[0, 0].numpy() - deep / 257).max() <= 1


def test_a_picture_is_not_a_text(tmp_path: Path) -> None:
    part = Texts(torch.tensor([1, 2], dtype=torch.int32), torch.tensor([0, 1, 2]), torch.tensor([0, 1]))
    class_tree(tmp_path / "other", {"a": 1})
    with pytest.raises(ValueError, match="JPEG is not a text file"):
        data.unknown("other", data.DataSet("texts", ["a", "b"], part, part, part, vocabulary=["moon"]), root=tmp_path)


def test_unknown_files_are_read_as_the_known_files(tmp_path: Path) -> None:
    class_tree(tmp_path / "other", {"a": 4})
    own = Files(["x.png", "y.png"], torch.tensor([0, 1]))
    found = data.unknown("other", data.DataSet("files", ["a", "b"], own, own, own), root=tmp_path, limit=5)
    assert isinstance(found, Files)
    assert len(found) == 5
    assert len({Path(path).parent for path in found.paths}) > 1
    assert found.read_one(0)[0].shape[0] == 3


def test_unknown_texts_are_read_with_the_known_words(tmp_path: Path) -> None:
    part = Texts(torch.tensor([1, 2], dtype=torch.int32), torch.tensor([0, 1, 2]), torch.tensor([0, 1]))
    like = data.DataSet("texts", ["a", "b"], part, part, part, vocabulary=["moon", "goal"])
    (tmp_path / "x.csv").write_text("text,label\nThe goal! The moon.,b\nnothing,a\n")
    found = data.unknown("x.csv", like, root=tmp_path)
    assert found.tokens.tolist() == [2, 1]
    assert found.lengths.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nowhere", MissingDataError, "no folder, .npz or .npy of that name exists"),
        ("fog", ValueError, "a corruption needs a severity, from fog:1 to fog:5"),
        ("bare.npz", ValueError, "has no array x, test_x or images; it has z"),
        ("empty", MissingDataError, "holds no images"),
        ("none.npz", ValueError, "none.npz holds no images"),
        ("words.npz", ValueError, "words.npz is neither a folder nor an .npz of images"),
        ("svhn", MissingDataError, "svhn is not in"),
    ],
)
def test_unknown_data_that_is_not_there(name: str, error: type[Exception], message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "bare.npz", z=np.zeros(3))
    np.savez(tmp_path / "none.npz", x=np.zeros((0, 8, 8)))
    (tmp_path / "words.npz").write_text("nothing of the kind")
    with pytest.raises(error, match=message):
        data.unknown(name, known(), root=tmp_path)


# Validation sets


def test_altered_validation_sets() -> None:
    part = Images(PICTURES.repeat(100, 1, 1, 1), torch.arange(600) % 5)
    assert data.altered(part, "clean", 5) is part
    small = data.altered(part, "small", 5)
    assert len(small) == 60
    noisy = data.altered(part, "noisy", 5, seed=1)
    assert float((noisy.y != part.y).float().mean()) == pytest.approx(0.2, abs=0.05)
    wrong = noisy.y[noisy.y != part.y]
    assert set(wrong.tolist()) == set(range(5))
    assert torch.equal(noisy.x, part.x)
    shifted = data.altered(part, "shifted", 5, seed=1)
    assert torch.equal(shifted.y, part.y)
    assert bool((shifted.x != part.x).flatten(1).any(dim=1).float().mean() > 0.95)
    assert torch.equal(shifted.x, data.altered(part, "shifted", 5, seed=1).x)
    texts = Texts(torch.zeros(3, dtype=torch.int32), torch.arange(4), torch.arange(3))
    with pytest.raises(TypeError, match="images in memory"):
        data.altered(texts, "shifted", 3)
