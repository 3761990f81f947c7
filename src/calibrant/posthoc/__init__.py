"""Calibration of trained networks: ``fit`` on held-out logits, ``transform`` new ones."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.errors import lookup
from calibrant.posthoc.table import CALIBRATORS, CalibratorEntry
from calibrant.registry import lazy

if TYPE_CHECKING:  # the lazy names below, for type checkers and editors
    from calibrant.posthoc.base import Calibrator as Calibrator
    from calibrant.posthoc.bbq import BBQ as BBQ
    from calibrant.posthoc.beta import BetaCalibration as BetaCalibration
    from calibrant.posthoc.ensemble import EnsembleTemperatureScaling as EnsembleTemperatureScaling
    from calibrant.posthoc.histogram import HistogramBinning as HistogramBinning
    from calibrant.posthoc.isotonic import IsotonicCalibration as IsotonicCalibration
    from calibrant.posthoc.labels import PerLabel as PerLabel
    from calibrant.posthoc.linear import (
        DirichletCalibration as DirichletCalibration,
        MatrixScaling as MatrixScaling,
        VectorScaling as VectorScaling,
    )
    from calibrant.posthoc.local import LocalTemperatureScaling as LocalTemperatureScaling
    from calibrant.posthoc.platt import PlattScaling as PlattScaling
    from calibrant.posthoc.spline import SplineCalibration as SplineCalibration
    from calibrant.posthoc.structured import (
        StructuredMatrixScaling as StructuredMatrixScaling,
        StructuredVectorScaling as StructuredVectorScaling,
    )
    from calibrant.posthoc.temperature import TemperatureScaling as TemperatureScaling
    from calibrant.posthoc.venn_abers import VennAbers as VennAbers

__getattr__ = lazy(
    __name__, CALIBRATORS.values(), {"Calibrator": "calibrant.posthoc.base", "PerLabel": "calibrant.posthoc.labels"}
)
__all__ = [
    "CALIBRATORS",
    "Calibrator",
    "CalibratorEntry",
    "PerLabel",
    "create",
    "load",
    *sorted(entry.name for entry in CALIBRATORS.values()),
]


def create(key: str, **options: Any) -> "Calibrator":
    """Build a calibrator by its key in :data:`CALIBRATORS`.

    Example:
        >>> from calibrant.posthoc import create
        >>> create("histogram", num_bins=10)
        HistogramBinning(num_bins=10, binning='mass', not fitted)
    """
    calibrator: Calibrator = lookup(key, CALIBRATORS, "calibrator").load()(**options)
    return calibrator


def load(folder: str | Path) -> "Calibrator":
    """Read a calibrator that :meth:`Calibrator.save` wrote; the files cannot run code.

    Example:
        >>> import tempfile
        >>> from calibrant.posthoc import create, load
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> folder = tempfile.mkdtemp() + "/calibrator"
        >>> create("temperature").fit(logits, target).save(folder)
        >>> round(float(load(folder).temperature_), 4)
        3.641
    """
    from calibrant.posthoc.base import Calibrator  # noqa: PLC0415 - so that listing does not import torch

    return Calibrator.load(folder)
