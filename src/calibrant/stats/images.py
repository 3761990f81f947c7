"""Intervals for dense predictions: whole images are resampled, as the pixels of an image are not independent."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from calibrant import inputs
from calibrant.binning import BinStatistics, sums_by, width_index
from calibrant.inputs import Array, Given, shown
from calibrant.metrics.table import MEASURES, Measure
from calibrant.outcomes import judged
from calibrant.stats.intervals import Interval, around
from calibrant.stats.resampling import image_weights

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ImageBins:
    """Sums over each image.

    Args:
        num_bins: Number of equal-width bins.

    Example:
        >>> from calibrant.stats import ImageBins
        >>> import torch
        >>> logits = torch.tensor([4.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 2, 4)
        >>> target = torch.tensor([[[0, 0, 0, 1], [0, 0, 0, 1]]])
        >>> images = ImageBins()
        >>> images.update(logits.expand(5, -1, -1, -1), target.expand(5, -1, -1))
        >>> images.intervals()["image_ece"]
        0.232 [0.232, 0.232]
    """

    def __init__(self, *, num_bins: int = 15) -> None:
        self.num_bins = num_bins
        self.bins: list[BinStatistics] = []
        self.areas: list[Tensor] = []

    @shown
    def update(self, logits: Array, target: Array, **given: "Unpack[Given]") -> None:
        """Add images ``(n, K, *spatial)``; unlabelled ones are skipped. See :class:`calibrant.inputs.Given`."""
        samples = inputs.for_measuring(logits, target, **given)
        confidence, correct = judged(samples)
        image, (size, classes) = samples.kept.nonzero()[:, 0].to(confidence.device), samples.logits.shape[:2]
        place = image * self.num_bins + width_index(confidence, self.num_bins)
        bins = sums_by(place, size * self.num_bins, confidence, correct).view(size, self.num_bins).double()
        label, predicted = samples.target[samples.kept], samples.logits.argmax(dim=1)[samples.kept]
        right = label == predicted
        pairs = [(label[right], image[right]), (label, image), (predicted, image)]
        areas = [torch.bincount(own * classes + k, minlength=size * classes).view(size, classes) for k, own in pairs]
        kept = bins.counts.sum(dim=1) > 0
        self.bins.append(BinStatistics(*(part[kept] for part in bins)))
        self.areas.append(torch.stack(areas).double().cpu()[:, kept])

    def intervals(self, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> dict[str, Interval]:
        """Intervals of all measures of bins and areas, pooled over pixels, and of the mean over images of their own ECE."""
        bins = BinStatistics(*(torch.cat(parts) for parts in zip(*self.bins, strict=True)))
        areas = torch.cat(self.areas, dim=1)
        size = len(bins.counts)
        weights = image_weights(size, np.random.default_rng(seed), resamples)
        everything = torch.cat([torch.ones(1, size, dtype=torch.float64), weights])
        pooled = BinStatistics(*(everything @ part for part in bins))
        pooled_areas = torch.stack([everything @ part for part in areas])

        def values(record: Measure) -> Tensor:
            """The value over all images first, then of each resample."""
            if record.on == "images":  # a mean over images: each counts as often as it was drawn
                return everything @ record.evaluate(bins, self.num_bins) / size
            if record.on == "predicted":
                return record.evaluate(BinStatistics(pooled_areas[1], pooled_areas[1], pooled_areas[0]), self.num_bins)
            return record.evaluate(pooled if record.on == "bins" else pooled_areas, self.num_bins)

        intervals = {}
        for record in MEASURES.values():
            if record.interval is None or record.on not in ("bins", "predicted", "areas", "images"):
                continue
            first, *draws = values(record).tolist()
            low, high = around(first, np.array(draws), level) if size > 1 else (0.0, 1.0)  # one image gives no information
            ends = max(low, 0.0), min(high, record.most)
            intervals[record.key] = Interval(first, *ends, level, resamples, "bootstrap of images")
        return intervals
