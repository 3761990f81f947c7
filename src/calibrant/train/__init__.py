"""Training: from a recipe to a run folder."""

from calibrant.extras import require

require("lightning.pytorch", "calibrant.train")

from calibrant.recipes import RECIPES, Recipe  # noqa: E402
from calibrant.runs import Run, RunFolder  # noqa: E402
from calibrant.train.engine import DivergedError  # noqa: E402
from calibrant.train.fit import dry_run, fit  # noqa: E402
from calibrant.train.preparing import check  # noqa: E402

__all__ = ["RECIPES", "DivergedError", "Recipe", "Run", "RunFolder", "check", "dry_run", "fit"]
