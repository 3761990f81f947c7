"""Calibration of networks that are already trained: ``fit`` on held-out logits, ``transform`` new ones."""

from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.bbq import BBQ
from calibrant.posthoc.ensemble import EnsembleTemperatureScaling
from calibrant.posthoc.histogram import HistogramBinning
from calibrant.posthoc.isotonic import IsotonicCalibration
from calibrant.posthoc.linear import DirichletCalibration, MatrixScaling, VectorScaling
from calibrant.posthoc.local import LocalTemperatureScaling
from calibrant.posthoc.platt import PlattScaling
from calibrant.posthoc.spline import SplineCalibration
from calibrant.posthoc.temperature import TemperatureScaling

#: Every calibrator by its key, as on the command line.
METHODS: dict[str, type[Calibrator]] = {
    method.key: method
    for method in (
        TemperatureScaling,
        EnsembleTemperatureScaling,
        VectorScaling,
        MatrixScaling,
        DirichletCalibration,
        PlattScaling,
        HistogramBinning,
        IsotonicCalibration,
        BBQ,
        SplineCalibration,
        LocalTemperatureScaling,
    )
}

load = Calibrator.load

__all__ = [
    "BBQ",
    "METHODS",
    "Calibrator",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "HistogramBinning",
    "IsotonicCalibration",
    "LocalTemperatureScaling",
    "MatrixScaling",
    "PlattScaling",
    "SplineCalibration",
    "TemperatureScaling",
    "VectorScaling",
    "load",
]
