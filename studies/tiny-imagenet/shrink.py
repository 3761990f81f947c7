"""Tiny-ImageNet at 32 x 32 pixels, in one .npz: python shrink.py DATA_FOLDER OUT.npz.

Averages over 2 x 2 pixels. Five training images of each class become the validation part, the same ones for every seed.
"""

import sys
from pathlib import Path

import numpy as np
from torch.nn.functional import avg_pool2d

from calibrant.data import create

root, out = sys.argv[1:]
data = create("tiny-imagenet", root=root, validation=5, seed=1)
arrays: dict[str, np.ndarray] = {"classes": np.array(data.classes)}
for name in ("train", "validation", "test"):
    part = data.part(name)
    arrays[f"{name}_x"] = avg_pool2d(part.x.float(), 2).round().byte().numpy()  # type: ignore[union-attr]
    arrays[f"{name}_y"] = part.y.numpy()
np.savez(Path(out), **arrays)
