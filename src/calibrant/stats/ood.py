"""Intervals for out-of-distribution detection."""

from calibrant.inputs import Array
from calibrant.metrics.ood import Score, placements, uncertainty
from calibrant.stats.intervals import Interval, normal_quantile


def auroc_interval(
    in_logits: Array, out_logits: Array, *, score: Score = "entropy", level: float = 0.95, probs: bool | None = None
) -> Interval:
    r"""Interval of :func:`calibrant.metrics.ood_auroc`, from the variance of DeLong et al. (Biometrics 1988).

    With :math:`u_j` the fraction of known samples that the unknown sample j exceeds and :math:`k_i` that of unknown samples
    that exceed the known sample i, ties counting half, the variance of the area is :math:`s_u^2 / n_u + s_k^2 / n_k`.

    Example:
        >>> from calibrant.stats import auroc_interval
        >>> known, unknown = [[4.0, 0.0], [3.0, 0.0], [0.5, 0.0]], [[0.0, 1.0], [0.2, 0.0]]
        >>> round(auroc_interval(known, unknown).value, 4)
        0.8333
    """
    known, unknown = (
        uncertainty(logits, score, name, probs=probs) for logits, name in ((in_logits, "in"), (out_logits, "out"))
    )
    exceeded, exceeding = placements(unknown, known) / len(known), 1 - placements(known, unknown) / len(unknown)
    area = float(exceeded.mean())
    variance = sum(float(part.var()) / len(part) if len(part) > 1 else 0.25 for part in (exceeded, exceeding))
    half = normal_quantile(level) * variance**0.5
    return Interval(area, max(0.0, area - half), min(1.0, area + half), level, 0, "DeLong")
