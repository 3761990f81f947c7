"""Intervals of segmented images, which are drawn as a whole."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import jaccard_score
from torch import Tensor

from calibrant import functional as cal, stats


def segmented(images: int = 6, k: int = 4, side: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images of different difficulty, some of whose pixels are void, and one that is void altogether."""
    random = torch.Generator().manual_seed(seed)
    hard = torch.linspace(0.3, 3, images, dtype=torch.float64).view(-1, 1, 1, 1)
    logits = 3 * torch.randn(images, k, side, side + 1, generator=random, dtype=torch.float64)
    noise = torch.randn(images, k, side, side + 1, generator=random, dtype=torch.float64)
    target = (logits + hard * noise).argmax(1)
    target[torch.rand(target.shape, generator=random) < 0.2] = 255
    target[1] = 255
    return logits, target


def brute_force(logits: Tensor, target: Tensor, num_bins: int) -> dict[str, float]:
    """Pixel by pixel."""
    pooled, own = [], []
    for image, labels in zip(logits.numpy(), target.numpy(), strict=True):
        pixels = []
        for row in range(labels.shape[0]):
            for column in range(labels.shape[1]):
                if labels[row, column] != 255:
                    z = np.exp(image[:, row, column] - image[:, row, column].max())
                    pixels.append((z.max() / z.sum(), int(z.argmax()), int(labels[row, column])))
        pooled += pixels
        own += [mean_gap(pixels, num_bins)] if pixels else []
    label, predicted = [p[2] for p in pooled], [p[1] for p in pooled]
    classes = sorted({*label, *predicted})
    of_each = jaccard_score(label, predicted, labels=range(1, logits.shape[1]), average=None, zero_division=0)
    return {
        "accuracy": float(np.mean(np.array(label) == np.array(predicted))),
        "mean_iou": float(jaccard_score(label, predicted, labels=classes, average="macro")),
        "foreground_iou": float(np.mean(of_each)),
        "ece": mean_gap(pooled, num_bins),
        "overconfidence": sum(w * max(0.0, g) for w, g in gaps(pooled, num_bins)),
        "underconfidence": sum(w * max(0.0, -g) for w, g in gaps(pooled, num_bins)),
        "image_ece": float(np.mean(own)),
    }


def mean_gap(pixels: list[tuple[float, int, int]], num_bins: int) -> float:
    return sum(w * abs(g) for w, g in gaps(pixels, num_bins))


def gaps(pixels: list[tuple[float, int, int]], num_bins: int) -> list[tuple[float, float]]:
    """Weight and mean confidence minus accuracy of each bin that is not empty."""
    bins: dict[int, list[tuple[float, int, int]]] = {}
    for pixel in pixels:
        bins.setdefault(min(int(pixel[0] * num_bins), num_bins - 1), []).append(pixel)
    return [(len(own) / len(pixels), sum(c - (p == y) for c, p, y in own) / len(own)) for own in bins.values()]


@pytest.mark.parametrize("num_bins", [15, 4])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_values_are_those_of_loops_over_pixels(num_bins: int, size: int) -> None:
    logits, target = segmented()
    bins = stats.ImageBins(num_bins=num_bins)
    for x, y in zip(logits.split(size), target.split(size), strict=True):
        bins.update(x, y, ignore_index=255)
    found = bins.intervals(resamples=50)
    expected = brute_force(logits, target, num_bins)
    assert {name: interval.value for name, interval in found.items()} == pytest.approx(expected, abs=1e-12)
    assert found["mean_iou"].value == pytest.approx(float(cal.mean_iou(logits, target, ignore_index=255)))
    for interval in found.values():
        assert 0 <= interval.low <= interval.value <= interval.high <= 1
        assert interval.method == "bootstrap of images"


def test_a_class_that_nobody_sees_does_not_count() -> None:
    logits, target = segmented(k=4)
    logits[:, 3] = -50
    target[target == 3] = 0
    bins = stats.ImageBins()
    bins.update(logits, target, ignore_index=255)
    found = bins.intervals(resamples=20)
    assert found["mean_iou"].value == pytest.approx(brute_force(logits, target, 15)["mean_iou"], abs=1e-12)


def test_images_that_are_worked_on_in_pieces_are_told_apart() -> None:
    """Images of more than a million logits are cut up on the way."""
    torch.manual_seed(0)
    logits = 3 * torch.randn(2, 21, 230, 230)
    target = logits.argmax(1)
    target[1] = torch.randint(21, (230, 230))  # all of the first are right, few of the second
    target[:, :, ::7] = 255
    bins = stats.ImageBins()
    bins.update(logits, target, ignore_index=255)
    found = bins.intervals(resamples=20)
    for name in ("accuracy", "ece", "overconfidence", "underconfidence", "mean_iou"):
        expected = float(getattr(cal, name)(logits, target, ignore_index=255))
        assert found[name].value == pytest.approx(expected, abs=1e-6), name
    expected = float(cal.per_image(cal.ece, logits, target, ignore_index=255))
    assert found["image_ece"].value == pytest.approx(expected, abs=1e-6)
    alone = [float(cal.accuracy(logits[i : i + 1], target[i : i + 1], ignore_index=255)) for i in range(2)]
    sums = bins.bins[0]
    assert (sums.correct.sum(1) / sums.counts.sum(1)).tolist() == pytest.approx(alone)


def test_one_image_says_nothing_of_others() -> None:
    logits, target = segmented()
    bins = stats.ImageBins()
    bins.update(logits[:1], target[:1], ignore_index=255)
    for interval in bins.intervals(resamples=50).values():
        assert (interval.low, interval.high) == (0.0, 1.0)


def test_intervals_are_those_of_drawing_images() -> None:
    """An image with its pixels at a time, copied and measured anew."""
    logits, target = segmented(images=12)
    bins = stats.ImageBins()
    bins.update(logits, target, ignore_index=255)
    found = bins.intervals(resamples=4000, seed=1)
    kept = [i for i in range(12) if i != 1]
    random = np.random.default_rng(2)
    measures = {
        **{name: getattr(cal, name) for name in found if name not in ("image_ece", "foreground_iou")},
        "foreground_iou": partial(cal.mean_iou, rule="released"),
        "image_ece": lambda x, y, ignore_index: cal.per_image(cal.ece, x, y, ignore_index=ignore_index),
    }
    drawn: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(250):
        chosen = torch.from_numpy(random.choice(kept, size=len(kept)))
        for name, measure in measures.items():
            drawn[name].append(float(measure(logits[chosen], target[chosen], ignore_index=255)))
    for name, values in drawn.items():
        low, high = found[name].value + np.mean(values) - np.quantile(values, [0.975, 0.025])
        width = min(high, 1) - max(low, 0)
        assert found[name].high - found[name].low == pytest.approx(width, rel=0.25), name
