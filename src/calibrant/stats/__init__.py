"""How much a number can be trusted: intervals, comparisons, a test of calibration.

Two models on the same samples, from their logits, from the outcomes of each sample, or from scores:

    >>> import torch
    >>> from calibrant import stats
    >>> from calibrant.outcomes import top_label
    >>> from calibrant.inputs import for_measuring
    >>> target = torch.tensor([0] * 60 + [1] * 20)
    >>> sure, unsure = torch.tensor([[4.0, 0.0]]).repeat(80, 1), torch.tensor([[2.0, 0.0]]).repeat(80, 1)
    >>> found = stats.compare("ece", sure, unsure, target)
    >>> isinstance(found, stats.Comparison), round(found.difference, 3), found.p_value < 0.01
    (True, 0.101, True)
    >>> outcomes = [top_label(for_measuring(logits, target)) for logits in (sure, unsure)]
    >>> round(stats.compare_outcomes(*outcomes)["ece"].difference, 3)
    0.101
    >>> losses = [torch.nn.functional.cross_entropy(logits, target, reduction="none") for logits in (sure, unsure)]
    >>> round(stats.compare_means(*losses).difference, 3)
    0.391

Two methods over their runs, here accuracies over two seeds, which share a test set:

    >>> from calibrant.stats import Means
    >>> first, second = (Means(torch.tensor([1.0] * n + [0.0] * (80 - n)), None) for n in (60, 40))
    >>> shared = stats.shared_variance([first, first], [second, second])
    >>> found = stats.compare_runs([0.75, 0.76], [0.50, 0.51], shared=shared)
    >>> round(found.difference, 2), found.p_value < 0.01
    (0.25, True)
"""

from calibrant.stats.comparison import Comparison, compare, compare_means, compare_outcomes
from calibrant.stats.consistency import CalibrationTest, calibration_test
from calibrant.stats.images import ImageBins
from calibrant.stats.intervals import Interval, wilson
from calibrant.stats.ood import auroc_interval
from calibrant.stats.panels import bins_interval, panel_intervals, panel_test, true_error_interval
from calibrant.stats.resampling import Means, bootstrap
from calibrant.stats.runs import compare_runs, shared_variance

__all__ = [
    "CalibrationTest",
    "Comparison",
    "ImageBins",
    "Interval",
    "Means",
    "auroc_interval",
    "bins_interval",
    "bootstrap",
    "calibration_test",
    "compare",
    "compare_means",
    "compare_outcomes",
    "compare_runs",
    "panel_intervals",
    "panel_test",
    "shared_variance",
    "true_error_interval",
    "wilson",
]
