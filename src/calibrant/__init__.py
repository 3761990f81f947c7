"""Train networks whose confidence means what it says, and prove it."""

from importlib.metadata import version

from calibrant import functional, losses, metrics

__all__ = ["functional", "losses", "metrics"]
__version__ = version("calibrant")
