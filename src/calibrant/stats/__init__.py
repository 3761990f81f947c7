"""How sure one can be of a figure: intervals, comparisons, a test of calibration."""

from calibrant.stats.resampling import Comparison, Interval, bootstrap, compare
from calibrant.stats.streamed import ImageBins, bins_interval, compare_means, compare_outcomes, panel_intervals, panel_test
from calibrant.stats.testing import CalibrationTest, auroc_interval, calibration_test, wilson

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
    "panel_intervals",
    "panel_test",
    "wilson",
]
