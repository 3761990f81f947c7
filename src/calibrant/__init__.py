"""Train networks whose confidence means what it says, and prove it."""

from importlib.metadata import version

from calibrant import functional, losses

__all__ = ["functional", "losses"]
__version__ = version("calibrant")
