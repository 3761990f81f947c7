"""Out-of-distribution detection: does the network's uncertainty reveal data unlike its training data?"""

from collections.abc import Callable
from typing import Final, Literal

import torch
from torch import Tensor

from calibrant import outcomes, tensors
from calibrant.checks import one_of
from calibrant.outcomes import Softmax
from calibrant.tensors import Samples

Score = Literal["entropy", "max_prob", "energy"]


def ood_auroc(in_logits: Tensor, out_logits: Tensor, *, score: Score = "entropy") -> Tensor:
    r"""Area under the ROC curve: how often an OOD sample is more uncertain than an in-distribution one, ties counting half.

    Args:
        in_logits: Logits of in-distribution samples, ``(N, K)`` or ``(N, K, *spatial)``.
        out_logits: Logits of out-of-distribution samples.
        score: Uncertainty: ``"entropy"`` of the softmax, ``"max_prob"``, 1 minus the confidence, or ``"energy"``,
            :math:`-\log \sum_k e^{l_k}`.
    """
    known, unknown = (uncertainty(logits, score, name) for logits, name in ((in_logits, "in"), (out_logits, "out")))
    return placements(unknown, known).mean() / len(known)


def ood_fpr95(in_logits: Tensor, out_logits: Tensor, *, score: Score = "entropy") -> Tensor:
    """Fraction of OOD samples accepted by a threshold that accepts at least 95 % of the in-distribution samples."""
    known, unknown = (uncertainty(logits, score, name) for logits, name in ((in_logits, "in"), (out_logits, "out")))
    threshold = known.sort().values[-(-95 * len(known) // 100) - 1]
    return (unknown <= threshold).double().mean()


def ood_aupr(in_logits: Tensor, out_logits: Tensor, *, score: Score = "entropy") -> Tensor:
    r"""Area under the precision-recall curve for detecting OOD samples: the average precision.

    :math:`\sum_n (R_n - R_{n-1}) P_n` over the distinct values of the score, starting with the most uncertain.
    """
    known, unknown = (uncertainty(logits, score, name) for logits, name in ((in_logits, "in"), (out_logits, "out")))
    levels = unknown.unique().flip(0)
    found, false = (len(part) - torch.searchsorted(part.sort().values, levels) for part in (unknown, known))
    recall = found.double() / len(unknown)
    precision = found.double() / (found + false)
    return (recall.diff(prepend=recall.new_zeros(1)) * precision).sum()


def placements(values: Tensor, others: Tensor) -> Tensor:
    """How many of ``others`` are below each value, ties counting half; exact."""
    others = others.sort().values
    below, at_most = (torch.searchsorted(others, values, right=right) for right in (False, True))
    return (below + at_most).double() / 2


@torch.no_grad()
def uncertainty(logits: Tensor, score: Score, name: str = "") -> Tensor:
    """The score of each sample, in float64."""
    one_of("score", score, tuple(SCORES))
    argument = f"{name}_logits" if name else "logits"
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.dim() < 2 or not logits.numel():
        what = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"{argument} must be non-empty floating-point logits (N, K) or (N, K, *spatial), got {what}")
    shape = (logits.shape[0], *logits.shape[2:])
    labels = torch.zeros(shape, dtype=torch.int64, device=logits.device)
    blocks = tensors.blocks(Samples(logits, labels, torch.ones_like(labels, dtype=torch.bool)))
    return torch.cat([SCORES[score](outcomes.softmax(block)).flatten() for block in blocks])


def _entropy(softmax: Softmax) -> Tensor:
    entropy: Tensor = torch.special.entr(softmax.exponentials.double().div_(softmax.total))
    return entropy.sum(dim=1)


def _doubt(softmax: Softmax) -> Tensor:
    return 1 - 1 / softmax.total.double().squeeze(1)


def _energy(softmax: Softmax) -> Tensor:
    return -(softmax.largest.double() + softmax.total.double().log()).squeeze(1)


#: Uncertainty scores by name.
SCORES: Final[dict[Score, Callable[[Softmax], Tensor]]] = {"entropy": _entropy, "max_prob": _doubt, "energy": _energy}
