"""Measures of calibration and accuracy: fractions, never percent."""

from calibrant.metrics.calibration import accuracy, ece

__all__ = ["accuracy", "ece"]
