"""Calibration in other libraries: one module per library, imported by name, which needs that library installed."""
