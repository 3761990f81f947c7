"""Bayesian binning into quantiles."""

import torch
from torch import Tensor

from calibrant.checks import in_range
from calibrant.posthoc.piecewise import ClassMaps, steps


class BBQ(ClassMaps):
    r"""Bayesian binning into quantiles: a mean over histograms of many sizes (Naeini et al., AAAI 2015).

    For every number of equal-mass bins B from :math:`N^{1/3}/C` to :math:`C N^{1/3}`, bin b has a Beta prior of
    strength :math:`N'/B` around its middle :math:`p_b`: :math:`\alpha_b = \frac{N'}{B} p_b`, :math:`\beta_b =
    \frac{N'}{B} (1 - p_b)`, and predicts :math:`\frac{m_b + \alpha_b}{N_b + N'/B}` after :math:`m_b` of :math:`N_b` samples
    belonged to the class. Each histogram is weighted by its marginal likelihood

    .. math:: \prod_b \frac{\Gamma(N'/B)}{\Gamma(N_b + N'/B)} \frac{\Gamma(m_b + \alpha_b)}{\Gamma(\alpha_b)}
        \frac{\Gamma(N_b - m_b + \beta_b)}{\Gamma(\beta_b)}.

    One class against the rest, normalised.

    Args:
        spread: C.
        strength: N'.

    Example:
        >>> from calibrant.posthoc import BBQ
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> calibrator = BBQ().fit(logits, target)
        >>> round(calibrator.predict_proba([[4.0, 0.0]])[0][0], 2)
        0.7
    """

    key = "bbq"

    def __init__(self, *, spread: float = 10.0, strength: float = 2.0) -> None:
        super().__init__()
        self.spread = in_range("spread", spread, 1)
        self.strength = in_range("strength", strength, 0, above=True)

    def _fit_map(self, probs: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        points, place = probs.unique(return_inverse=True)
        counts = torch.bincount(place, minlength=len(points))
        right = torch.bincount(place[own], minlength=len(points))
        ranks, rights = (torch.cat([x.new_zeros(1), x.cumsum(0)]) for x in (counts, right))
        root = len(probs) ** (1 / 3)
        sizes = range(max(1, int(root / self.spread)), max(1, min(int(self.spread * root), len(points))) + 1)
        models = [self._model(points, ranks, rights, size) for size in sizes]
        evidence = torch.stack([weight for _, _, weight in models])
        weights = (evidence - evidence.logsumexp(dim=0)).exp()
        edges = torch.cat([edges for edges, _, _ in models]).unique()
        between = torch.cat([edges, edges.new_full((1,), 2.0)])
        values = torch.zeros_like(between)
        for (own_edges, own_values, _), weight in zip(models, weights, strict=True):
            values += weight * own_values[torch.searchsorted(own_edges, between)]
        return between, values

    def _model(self, points: Tensor, ranks: Tensor, rights: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Inner edges, values and log-evidence of the histogram with ``size`` bins; equal probabilities stay together."""
        wanted = torch.arange(1, size, dtype=torch.float64, device=points.device) * (float(ranks[-1]) / size)
        cuts = (
            torch.searchsorted(ranks.double(), wanted).clamp(1, len(points) - 1).unique() if len(points) > 1 else ranks[:0]
        )
        edges = (points[cuts - 1] + points[cuts]) / 2
        ends = torch.cat([cuts.new_zeros(1), cuts, cuts.new_full((1,), len(points))])
        n, m = (x[ends].diff().double() for x in (ranks, rights))
        borders = torch.cat([edges.new_zeros(1), edges, edges.new_ones(1)])
        middle = ((borders[:-1] + borders[1:]) / 2).clamp(1e-9, 1 - 1e-9)
        prior = self.strength / len(n)
        alpha, beta = prior * middle, prior * (1 - middle)
        evidence = torch.lgamma(torch.tensor(prior, dtype=torch.float64)) - torch.lgamma(n + prior)
        evidence = evidence + torch.lgamma(m + alpha) - torch.lgamma(alpha) + torch.lgamma(n - m + beta) - torch.lgamma(beta)
        return edges, (m + alpha) / (n + prior), evidence.sum()

    def _evaluate(self, probs: Tensor) -> Tensor:
        return steps(probs, self.points_[:, :-1].contiguous(), self.values_)
