"""Out-of-distribution detection: does the network's uncertainty reveal data unlike its training data?"""

from collections.abc import Callable
from typing import Final, Literal

import torch
from torch import Tensor

from calibrant import inputs, outcomes, tensors
from calibrant.checks import one_of
from calibrant.inputs import Array, in_kind
from calibrant.outcomes import Softmax
from calibrant.tensors import Samples

Score = Literal["entropy", "max_prob", "energy"]


@in_kind
def ood_auroc(in_logits: Array, out_logits: Array, *, score: Score = "entropy", probs: bool | None = None) -> Tensor:
    r"""Area under the ROC curve: how often an OOD sample is more uncertain than an in-distribution one, ties counting half.

    Args:
        in_logits: Logits of in-distribution samples, ``(N, K)`` or ``(N, K, *spatial)``.
        out_logits: Logits of out-of-distribution samples.
        score: Uncertainty: ``"entropy"`` of the softmax, ``"max_prob"``, 1 minus the confidence, or ``"energy"``,
            :math:`-\log \sum_k e^{l_k}`, of logits only.
        probs: Whether these are probabilities; see :class:`calibrant.inputs.Given`.

    Example:
        >>> from calibrant.functional import ood_auroc
        >>> known, unknown = [[4.0, 0.0], [3.0, 0.0], [0.5, 0.0]], [[0.0, 1.0], [0.2, 0.0]]
        >>> round(ood_auroc(known, unknown), 4)
        0.8333
    """
    known, unknown = (
        uncertainty(logits, score, name, probs=probs) for logits, name in ((in_logits, "in"), (out_logits, "out"))
    )
    return placements(unknown, known).mean() / len(known)


@in_kind
def ood_fpr95(in_logits: Array, out_logits: Array, *, score: Score = "entropy", probs: bool | None = None) -> Tensor:
    """Fraction of OOD samples accepted by a threshold that accepts at least 95% of the in-distribution samples.

    Example:
        >>> from calibrant.functional import ood_fpr95
        >>> known, unknown = [[4.0, 0.0], [3.0, 0.0], [0.5, 0.0]], [[0.0, 1.0], [0.2, 0.0]]
        >>> ood_fpr95(known, unknown)
        0.5
    """
    known, unknown = (
        uncertainty(logits, score, name, probs=probs) for logits, name in ((in_logits, "in"), (out_logits, "out"))
    )
    threshold = known.sort().values[-(-95 * len(known) // 100) - 1]
    return (unknown <= threshold).double().mean()


@in_kind
def ood_aupr(in_logits: Array, out_logits: Array, *, score: Score = "entropy", probs: bool | None = None) -> Tensor:
    r"""Area under the precision-recall curve for detecting OOD samples: the average precision.

    :math:`\sum_n (R_n - R_{n-1}) P_n` over the distinct values of the score, starting with the most uncertain.

    Example:
        >>> from calibrant.functional import ood_aupr
        >>> known, unknown = [[4.0, 0.0], [3.0, 0.0], [0.5, 0.0]], [[0.0, 1.0], [0.2, 0.0]]
        >>> round(ood_aupr(known, unknown), 4)
        0.8333
    """
    known, unknown = (
        uncertainty(logits, score, name, probs=probs) for logits, name in ((in_logits, "in"), (out_logits, "out"))
    )
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
def uncertainty(logits: Array, score: Score, name: str = "", *, probs: bool | None = None) -> Tensor:
    """The score of each sample, in float64."""
    if one_of("score", score, tuple(SCORES)) == "energy" and probs:
        raise ValueError('score="energy" needs logits: for probabilities it is always 0; use "entropy" or "max_prob"')
    argument = f"{name}_logits" if name else "logits"
    scores = inputs.as_logits(logits, probs=probs, name=argument)
    if not scores.numel():
        raise ValueError(f"{argument} must be logits (N, K) or (N, K, *spatial) of at least one sample, got none")
    labels = torch.zeros(scores.shape[:1] + scores.shape[2:], dtype=torch.int64, device=scores.device)
    blocks = tensors.blocks(Samples(scores, labels, torch.ones_like(labels, dtype=torch.bool)))
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
