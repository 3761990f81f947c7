"""Evaluation of predictions and finished runs: calibration, out-of-distribution detection, corrupted images."""

from typing import TYPE_CHECKING

from calibrant.registry import lazy

if TYPE_CHECKING:  # what type checkers and editors see of the lazy names below
    from calibrant.evaluation.calibration import (
        CalibrationResult as CalibrationResult,
        cross_validate as cross_validate,
        fit_all as fit_all,
        measure_all as measure_all,
    )
    from calibrant.evaluation.network import TrainedNetwork as TrainedNetwork
    from calibrant.evaluation.ood import detect as detect
    from calibrant.evaluation.shift import measure_shift as measure_shift

#: Imported on first use: calibrating files needs no Lightning, reusing a network does.
_NAMES = {
    "CalibrationResult": "calibration",
    "cross_validate": "calibration",
    "fit_all": "calibration",
    "measure_all": "calibration",
    "TrainedNetwork": "network",
    "detect": "ood",
    "measure_shift": "shift",
}
__getattr__ = lazy(__name__, (), {name: f"calibrant.evaluation.{module}" for name, module in _NAMES.items()})
__all__ = [*_NAMES]
