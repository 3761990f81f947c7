"""Networks of the papers."""

from calibrant.models.small_cnn import SmallCNN

__all__ = ["SmallCNN"]
