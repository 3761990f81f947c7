"""Splits: held-out samples and long tails, drawn with a seed."""

import torch
from torch import Tensor

from calibrant.checks import in_range, one_of
from calibrant.data.table import LongTailKind


def split_off(y: Tensor, held: float, seed: int, *, per_class: bool = False) -> tuple[Tensor, Tensor]:
    """Indices of the samples that stay and of those held out, drawn at random.

    Args:
        y: Labels.
        held: How many to hold out: a number, or a fraction below 1.
        seed: Seed of the split.
        per_class: Hold out this many of each class; of a fraction, at least one sample stays.
    """
    random = torch.Generator().manual_seed(seed)
    if per_class:
        members = [torch.nonzero(y == k).flatten() for k in range(int(y.max()) + 1)]
        shares = [min(held, (len(own) - 1) / max(1, len(own))) if held < 1 else held for own in members]
        parts = [
            split_off(own, max(0.0, share), seed + k) for k, (own, share) in enumerate(zip(members, shares, strict=True))
        ]
        kept, out = (torch.cat([own[part[i]] for own, part in zip(members, parts, strict=True)]) for i in range(2))
        return kept.sort().values, out.sort().values
    number = round(held * len(y)) if held < 1 else int(held)
    if not 0 <= number < max(1, len(y)):
        raise ValueError(f"cannot hold out {held} of {len(y)} samples")
    order = torch.randperm(len(y), generator=random)
    return order[number:].sort().values, order[:number].sort().values


def long_tail_counts(most: int, classes: int, ratio: float, kind: LongTailKind = "exp") -> list[int]:
    r"""Samples of each class of a long-tailed set, class 0 the largest.

    ``"exp"``: :math:`n_k = n_0 \rho^{-k/(K-1)}` (Cui et al., CVPR 2019). ``"step"``: the second half of the classes has
    :math:`n_0 / \rho`. ``"pareto"``: the shape of ImageNet-LT (Liu et al., CVPR 2019), a power of 6:
    :math:`n_k = n_0 (1 + (\rho^{1/6} - 1) \frac{k}{K-1})^{-6}`.
    """
    in_range("ratio", ratio, 1)
    one_of("kind", kind, ("exp", "pareto", "step"))
    place = torch.arange(classes, dtype=torch.float64) / max(1, classes - 1)
    if kind == "exp":
        share = ratio**-place
    elif kind == "step":
        share = torch.where(torch.arange(classes) < classes // 2, 1.0, 1 / ratio).double()
    else:
        share = (1 + (ratio ** (1 / 6) - 1) * place) ** -6
    return [max(1, round(most * float(s))) for s in share]


def long_tail_indices(
    y: Tensor, ratio: float, *, kind: LongTailKind = "exp", seed: int = 0, most: int | None = None
) -> Tensor:
    """Indices of the samples that stay when classes are cut down to a long tail.

    Args:
        y: Labels of a balanced set.
        ratio: Imbalance ratio, samples of the largest class over those of the smallest.
        kind: Shape of the tail, see :func:`long_tail_counts`.
        seed: Seed of the choice of samples.
        most: Samples of class 0; the size of the smallest class if None.
    """
    classes = int(y.max()) + 1
    members = [torch.nonzero(y == k).flatten() for k in range(classes)]
    counts = long_tail_counts(most or min(map(len, members)), classes, ratio, kind)
    random = torch.Generator().manual_seed(seed)
    chosen = [own[torch.randperm(len(own), generator=random)][:n] for own, n in zip(members, counts, strict=True)]
    return torch.cat(chosen).sort().values
