"""How sure one can be of a measured calibration: intervals, comparisons, tests."""

from calibrant.stats.resampling import Comparison, Interval, bootstrap, compare
from calibrant.stats.testing import CalibrationTest, calibration_test, wilson

__all__ = ["CalibrationTest", "Comparison", "Interval", "bootstrap", "calibration_test", "compare", "wilson"]
