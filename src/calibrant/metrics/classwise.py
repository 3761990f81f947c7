"""Calibration of the probability of every class, not only the predicted one."""

import torch
from torch import Tensor

from calibrant import outcomes, tensors
from calibrant.binning import BinStatistics, bin_index, equal_width_edges
from calibrant.metrics import cells as on_cells
from calibrant.metrics.cells import Binning
from calibrant.outcomes import Softmax
from calibrant.tensors import Batch, Block
from calibrant.validation import one_of, whole


def classwise_ece(
    logits: Tensor,
    target: Tensor,
    num_bins: int = 15,
    binning: Binning = "width",
    norm: int = 1,
    *,
    ignore_index: int = -100,
) -> Tensor:
    r"""Classwise ECE: the calibration error of each class's probability, averaged over all K classes.

    .. math:: \frac1K \sum_k \Big(\sum_b \frac{n_{kb}}{N} |C_{kb} - A_{kb}|^p\Big)^{1/p}

    In bin b of class k are the samples whose probability of class k lies in it; :math:`C_{kb}` is its mean,
    :math:`A_{kb}` how often k is the true class. Classes without samples count too, unlike in the released codes, which
    stop at the largest label.
    """
    batch = tensors.check(logits, target, ignore_index)
    tensors.check_not_empty(int(batch.kept.sum()), ignore_index)
    one_of("norm", norm, (1, 2))
    whole("num_bins", num_bins, 1)
    if one_of("binning", binning, ("mass", "width")) == "width":
        return on_cells.calibration_error(class_bins(batch, num_bins), norm).mean()
    return _of_equal_mass(batch, num_bins, norm)


@torch.no_grad()
def class_bins(batch: Batch, num_bins: int) -> BinStatistics:
    """Bins of equal width of each class's probability, ``(K, M)``."""
    sums = empty_bins(batch.logits.shape[1], num_bins, batch.logits.device)
    for block in tensors.blocks(batch):
        softmax = outcomes.softmax(block)
        outcomes.check_softmax(block, softmax.total)
        add_class_bins(sums, block, softmax)
    return sums


def empty_bins(rows: int, num_bins: int, device: torch.device) -> BinStatistics:
    """Bins that hold nothing yet, ``(rows, M)``."""
    shape = (rows, num_bins)
    counts, correct = (torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(2))
    return BinStatistics(counts, torch.zeros(shape, dtype=torch.float64, device=device), correct)


def add_class_bins(sums: BinStatistics, block: Block, softmax: Softmax) -> None:
    """Add a block to the bins of each class's probability; uses up the exponentials.

    Of a sample's K probabilities fewer than M exceed 1 / M. Only those are looked up; what is left, nearly all of them when
    there are many classes, belongs to the first bin, whose sums follow from the sums over all bins.
    """
    classes, num_bins = sums.counts.shape
    probabilities = softmax.exponentials.div_(softmax.total)
    if block.places is not None:
        probabilities.masked_fill_(~block.kept.unsqueeze(1), 0)
    edges = equal_width_edges(num_bins).to(probabilities.device)

    flat = probabilities.flatten()
    beyond = (flat > (1 - 1e-6) / num_bins).nonzero().squeeze(1)  # what float32 may mistake for the edge is looked up too
    values = flat[beyond].double()
    pixels = max(1, probabilities.shape[2:].numel())
    cell = beyond // pixels % classes * num_bins + bin_index(values, edges)
    own = block.pick(probabilities.gather(1, block.target.unsqueeze(1))).double()
    counts = torch.bincount(cell, minlength=classes * num_bins).view(classes, num_bins)
    confidence = values.new_zeros(classes * num_bins).index_add_(0, cell, values).view(classes, num_bins)
    over_samples = [0, *range(2, probabilities.dim())]
    counts[:, 0] += len(own) - counts.sum(dim=1)
    confidence[:, 0] += probabilities.sum(dim=over_samples, dtype=torch.float64) - confidence.sum(dim=1)

    cell = block.pick(block.target) * num_bins + bin_index(own, edges)
    correct = torch.bincount(cell, minlength=classes * num_bins).view(classes, num_bins)
    for total, part in zip(sums, (counts, confidence, correct), strict=True):
        total.add_(part)


@torch.no_grad()
def _of_equal_mass(batch: Batch, num_bins: int, norm: int) -> Tensor:
    """Mean over classes with bins of equal mass, one class at a time: each has its own order."""
    logits, target = batch.logits, batch.target[batch.kept]
    normalisers, errors = [], []
    for block in tensors.blocks(batch):
        softmax = outcomes.softmax(block)
        outcomes.check_softmax(block, softmax.total)
        normalisers.append(block.pick(softmax.largest + softmax.total.log()))
    normaliser = torch.cat(normalisers)
    for k in range(logits.shape[1]):
        probability = (logits[:, k][batch.kept].to(normaliser.dtype) - normaliser).exp()
        cells = on_cells.cells_of(outcomes.Outcomes(probability, target == k))
        errors.append(on_cells.calibration_error(on_cells.bins_of_equal_mass(cells, num_bins), norm))
    return torch.stack(errors).mean()
