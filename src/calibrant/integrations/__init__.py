"""Calibration inside other libraries: a module for each, which needs the library and is imported by name."""
