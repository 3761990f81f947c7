"""Training: from a recipe to a run folder."""

from calibrant.extras import require

require("lightning.pytorch", "calibrant.train")

from calibrant.train.engine import DivergedError  # noqa: E402
from calibrant.train.fit import Run, dry_run, fit  # noqa: E402
from calibrant.train.recipe import Recipe, find_recipe, shipped  # noqa: E402

__all__ = ["DivergedError", "Recipe", "Run", "dry_run", "find_recipe", "fit", "shipped"]
