"""Data sets, in the splits of the papers."""

from calibrant.data.digits import Split, Splits, digits

__all__ = ["Split", "Splits", "digits"]
