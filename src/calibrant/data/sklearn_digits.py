import torch

from calibrant.checks import whole
from calibrant.data.dataset import DataSet
from calibrant.data.images import Images
from calibrant.extras import require


def digits(*, validation: int = 20, test: int = 70, seed: int = 0) -> DataSet:
    """scikit-learn's handwritten digits: 8 x 8 grey pixels in [0, 1], 10 classes, no download.

    Each class has ``test`` test images, ``validation`` validation images, and as many training images as the smallest class
    has left: 84 with the defaults.

    Args:
        validation: Validation images of each class.
        test: Test images of each class.
        seed: Seed of the split.
    """
    whole("validation", validation, 0)
    whole("test", test, 0)
    data = require("sklearn.datasets", "calibrant.data.digits").load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(data.target, dtype=torch.int64)
    shuffle = torch.Generator().manual_seed(seed)
    classes = [torch.nonzero(y == k).flatten() for k in range(10)]
    classes = [members[torch.randperm(len(members), generator=shuffle)] for members in classes]
    smallest = min(map(len, classes))
    if test + validation >= smallest:
        raise ValueError(f"test + validation must be less than {smallest}, the size of the smallest class")
    bounds = {"test": (0, test), "validation": (test, test + validation), "train": (test + validation, smallest)}
    split = {name: torch.cat([members[a:b] for members in classes]).sort().values for name, (a, b) in bounds.items()}
    train, held, rest = (Images(x[split[name]], y[split[name]]) for name in ("train", "validation", "test"))
    return DataSet("digits", [str(k) for k in range(10)], train, held, rest, split=split)
