import torch
from torch import Tensor

from calibrant import tensors
from calibrant.binning import bin_statistics, equal_width_edges


@torch.no_grad()
def ece(logits: Tensor, target: Tensor, num_bins: int = 15, *, ignore_index: int = -100) -> Tensor:
    r"""Expected calibration error, :math:`\sum_m \frac{|B_m|}{N} |A_m - C_m|` (CALS Eq. 14), a fraction.

    The bins :math:`B_m` are of equal width; A is the accuracy and C the mean confidence of the predicted class in a bin.
    """
    batch = tensors.batch(logits, target, ignore_index, look_at_values=True)
    confidence, correct = tensors.top_class(batch)
    kept = batch.kept
    bins = bin_statistics(confidence[kept].double(), correct[kept], equal_width_edges(num_bins).to(confidence.device))
    return (bins.correct - bins.confidence).abs().sum() / bins.counts.sum()


@torch.no_grad()
def accuracy(logits: Tensor, target: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Fraction of right predictions."""
    batch = tensors.batch(logits, target, ignore_index, look_at_values=True)
    return (batch.logits.argmax(dim=1) == batch.target)[batch.kept].double().mean()
