"""Intervals for out-of-distribution detection."""

from torch import Tensor

from calibrant.metrics.ood import Score, placements, uncertainty
from calibrant.stats.intervals import Interval, normal_quantile


def auroc_interval(in_logits: Tensor, out_logits: Tensor, *, score: Score = "entropy", level: float = 0.95) -> Interval:
    r"""Interval of :func:`calibrant.metrics.ood_auroc`, from the variance of DeLong et al. (Biometrics 1988).

    With :math:`u_j` the fraction of known samples that the unknown sample j exceeds and :math:`k_i` that of unknown samples
    that exceed the known sample i, ties counting half, the variance of the area is :math:`s_u^2 / n_u + s_k^2 / n_k`.
    """
    known, unknown = (uncertainty(logits, score, name) for logits, name in ((in_logits, "in"), (out_logits, "out")))
    exceeded, exceeding = placements(unknown, known) / len(known), 1 - placements(known, unknown) / len(unknown)
    area = float(exceeded.mean())
    variance = sum(float(part.var()) / len(part) if len(part) > 1 else 0.25 for part in (exceeded, exceeding))
    half = normal_quantile(level) * variance**0.5
    return Interval(area, max(0.0, area - half), min(1.0, area + half), level, 0, "DeLong")
