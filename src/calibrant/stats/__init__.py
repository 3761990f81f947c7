"""How much a number can be trusted: intervals, comparisons, a test of calibration."""

from calibrant.stats.comparison import Comparison, compare, compare_means, compare_outcomes
from calibrant.stats.consistency import CalibrationTest, calibration_test
from calibrant.stats.images import ImageBins
from calibrant.stats.intervals import Interval, wilson
from calibrant.stats.ood import auroc_interval
from calibrant.stats.panels import bins_interval, panel_intervals, panel_test, true_error_interval
from calibrant.stats.resampling import bootstrap
from calibrant.stats.runs import compare_runs, shared_variance

__all__ = [
    "CalibrationTest",
    "Comparison",
    "ImageBins",
    "Interval",
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
