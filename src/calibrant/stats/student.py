"""Student's t distribution."""

import math


def two_sided_p(t: float, freedom: float) -> float:
    r"""Probability that a t variable is at least as far from 0 as ``t``.

    It is the regularised incomplete beta function :math:`I_x(\nu/2, 1/2)` at :math:`x = \nu / (\nu + t^2)`.
    """
    if math.isnan(t):
        return math.nan
    if math.isinf(t):
        return 0.0
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def quantile(level: float, freedom: float) -> float:
    """The t for which a variable lies in [-t, t] with probability ``level``."""
    front = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    t = 0.0
    for _ in range(1000):  # Newton's method: the tail is convex, so it approaches t from below
        density = math.exp(front - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        step = (two_sided_p(t, freedom) - (1 - level)) / (2 * density)
        t += step
        if step <= 1e-12 * t:
            break
    return t


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """By its continued fraction (Abramowitz and Stegun, 26.5.8), on the side where that converges fast."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    # Lentz's method: numerator and denominator of the fraction grow together, as a running product.
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(log_front) * fraction / a
