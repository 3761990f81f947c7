"""Image corruptions at five severities, like those of CIFAR-10-C and ImageNet-C (Hendrycks and Dietterich, ICLR 2019).

All work on a batch ``(N, C, H, W)``, uint8 or floating point in [0, 1], and return the same kind. Strengths are those of the
published sets: of CIFAR-10-C for images of up to 64 pixels, of ImageNet-C for larger ones.
"""

import io
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from calibrant.checks import one_of
from calibrant.data.table import CORRUPTIONS, SEVERITIES
from calibrant.errors import lookup
from calibrant.extras import require

#: Longest side of images that get the strengths of CIFAR-10-C.
SMALL = 64


def corrupt(x: Tensor, name: str, severity: int, random: torch.Generator) -> Tensor:
    """Corrupt a batch of images.

    Args:
        x: Images ``(N, C, H, W)``, uint8 or floating point in [0, 1].
        name: A key of :data:`CORRUPTIONS`.
        severity: From 1 to 5.
        random: Random generator.
    """
    entry = lookup(name, CORRUPTIONS, "corruption")
    one_of("severity", severity, SEVERITIES)
    if not in_unit_range(x):
        raise ValueError(f"corruptions need images with values in [0, 1]; these range from {x.min():.4g} to {x.max():.4g}")
    strength = (entry.small if max(x.shape[-2:]) <= SMALL else entry.large)[severity - 1]
    values = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    changed: Tensor = entry.load()(values, strength, random).clamp(0, 1)
    return (changed * 255).round().to(torch.uint8) if x.dtype == torch.uint8 else changed.to(x.dtype)


def in_unit_range(x: Tensor) -> bool:
    """Whether all floating-point values are in [0, 1]; integers always pass."""
    return not x.is_floating_point() or not x.numel() or bool(x.min() >= 0 and x.max() <= 1)


def gaussian_noise(x: Tensor, strength: float, random: torch.Generator) -> Tensor:
    """Noise of the given standard deviation."""
    return x + strength * torch.randn(x.shape, generator=random)


def shot_noise(x: Tensor, strength: float, random: torch.Generator) -> Tensor:
    """Poisson noise: white is an expected count of ``strength`` photons."""
    return torch.poisson(x * strength, generator=random) / strength


def impulse_noise(x: Tensor, strength: float, random: torch.Generator) -> Tensor:
    """Salt and pepper on the given fraction of the values."""
    draw = torch.rand(x.shape, generator=random)
    return x.where(draw > strength, (draw > strength / 2).float())


def gaussian_blur(x: Tensor, strength: float, random: torch.Generator) -> Tensor:
    """A Gaussian blur of the given standard deviation, truncated at four of them."""
    del random
    reach = int(4 * strength + 0.5)
    place = torch.arange(-reach, reach + 1, dtype=torch.float32)
    kernel = (-0.5 * (place / strength) ** 2).exp()
    kernel /= kernel.sum()
    channels = x.shape[1]
    for shape, pad in (((1, 1, -1, 1), (0, 0, reach, reach)), ((1, 1, 1, -1), (reach, reach, 0, 0))):
        padded = torch.nn.functional.pad(x, pad, mode="replicate")
        x = torch.nn.functional.conv2d(padded, kernel.view(shape).expand(channels, -1, -1, -1), groups=channels)
    return x


def contrast(x: Tensor, strength: float, random: torch.Generator) -> Tensor:
    """Shrink the distances from each channel's mean."""
    del random
    mean = x.mean(dim=(2, 3), keepdim=True)
    return (x - mean) * strength + mean


def brightness(x: Tensor, strength: float, random: torch.Generator) -> Tensor:
    """Increase each pixel's HSV value, its largest channel; keep hue and saturation."""
    del random
    value = x.amax(dim=1, keepdim=True)
    brighter = (value + strength).clamp(max=1)
    return torch.where(value > 0, x * (brighter / value.clamp(min=1e-6)), brighter)


def fog(x: Tensor, strength: tuple[float, float], random: torch.Generator) -> Tensor:
    """A cloud over the image, rescaled to the image's brightness."""
    amount, decay = strength
    height, width = x.shape[-2:]
    side = 2 ** math.ceil(math.log2(max(height, width, 4)))
    cloud = plasma(len(x), side, decay, random)[:, None, :height, :width]
    largest = x.amax(dim=(1, 2, 3), keepdim=True)
    return (x + amount * cloud) * largest / (largest + amount)


def pixelate(x: Tensor, strength: float, random: torch.Generator) -> Tensor:
    """Downscale, then upscale again."""
    del random
    height, width = x.shape[-2:]
    down = [box(side, max(1, int(side * strength))) for side in (height, width)]
    up = [box(max(1, int(side * strength)), side) for side in (height, width)]
    small = (down[0] @ x @ down[1].T * 255).round() / 255
    return up[0] @ small @ up[1].T


def jpeg_compression(x: Tensor, strength: int, random: torch.Generator) -> Tensor:
    """Compress as JPEG of the given quality."""
    del random
    images = require("PIL.Image", "JPEG compression")

    def through(pixels: np.ndarray) -> np.ndarray:
        file = io.BytesIO()
        images.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(file, "JPEG", quality=strength)
        with images.open(file) as image:
            return np.array(image).reshape(pixels.shape)

    with ThreadPoolExecutor() as pool:
        done = list(pool.map(through, (x * 255).round().to(torch.uint8).movedim(1, -1).numpy()))
    return torch.from_numpy(np.stack(done)).movedim(-1, 1).float() / 255


def plasma(count: int, side: int, decay: float, random: torch.Generator) -> Tensor:
    """Clouds ``(count, side, side)`` in [0, 1], by the diamond-square algorithm on a torus; ``side`` is a power of 2."""
    cloud = torch.zeros(count, side, side)
    step, size = side, 1.0
    while step >= 2:
        half = step // 2
        corners = cloud[:, ::step, ::step]

        def jitter(mean: Tensor, size: float = size) -> Tensor:
            return mean + size * (2 * torch.rand(mean.shape, generator=random) - 1)

        right = corners.roll(-1, 2)
        below = corners.roll(-1, 1)
        centre = jitter((corners + right + below + right.roll(-1, 1)) / 4)
        cloud[:, half::step, half::step] = centre
        cloud[:, ::step, half::step] = jitter((corners + right + centre + centre.roll(1, 1)) / 4)
        cloud[:, half::step, ::step] = jitter((corners + below + centre + centre.roll(1, 2)) / 4)
        step, size = half, size / decay**2  # the published code applies the decay twice
    low = cloud.amin(dim=(1, 2), keepdim=True)
    return (cloud - low) / (cloud - low).amax(dim=(1, 2), keepdim=True)


def box(before: int, after: int) -> Tensor:
    """The matrix ``(after, before)`` that resizes a row of pixels by a box filter, as Pillow does."""
    scale = before / after
    reach = max(scale, 1.0)
    centre = (torch.arange(after, dtype=torch.float64) + 0.5) * scale
    distance = (torch.arange(before, dtype=torch.float64) + 0.5 - centre.view(-1, 1)) / reach
    weights = ((distance > -0.5) & (distance <= 0.5)).double()
    return (weights / weights.sum(dim=1, keepdim=True)).float()
