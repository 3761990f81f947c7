import torch

from calibrant.data.base import DataSet, long_tail_counts
from calibrant.data.parts import Images
from calibrant.extras import require
from calibrant.validation import in_range, whole


def digits(imbalance: float = 1.0, *, validation: int = 20, test: int = 70, seed: int = 0) -> DataSet:
    r"""Handwritten digits, 8 x 8 grey pixels in [0, 1], 10 classes: scikit-learn's, no download.

    Each class gives ``test`` and ``validation`` images to those parts; of the rest, class k keeps
    :math:`n_k = n_0 \rho^{-k/9}` for training, with :math:`\rho` the ``imbalance`` and :math:`n_0` what the smallest class
    has left.

    Args:
        imbalance: How many times as many images class 0 keeps as class 9.
        validation: Validation images of each class.
        test: Test images of each class.
        seed: Which images go where.
    """
    in_range("imbalance", imbalance, 1)
    whole("validation", validation, 0)
    whole("test", test, 0)
    data = require("sklearn.datasets", "calibrant.data.digits").load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(data.target, dtype=torch.int64)
    shuffle = torch.Generator().manual_seed(seed)
    classes = [torch.nonzero(y == k).flatten() for k in range(10)]
    classes = [members[torch.randperm(len(members), generator=shuffle)] for members in classes]
    most = min(map(len, classes)) - test - validation
    if most < 1:
        raise ValueError(f"test + validation must be less than {most + test + validation}, the images of the smallest class")
    counts = long_tail_counts(most, 10, imbalance)
    bounds = {"test": (0, test), "validation": (test, test + validation)}
    split = {name: torch.cat([members[a:b] for members in classes]) for name, (a, b) in bounds.items()}
    start = test + validation
    split["train"] = torch.cat([m[start : start + n] for m, n in zip(classes, counts, strict=True)])
    train, held, rest = (Images(x[split[name]], y[split[name]]) for name in ("train", "validation", "test"))
    return DataSet("digits", [str(k) for k in range(10)], train, held, rest, split=split)
