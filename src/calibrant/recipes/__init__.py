"""Recipes of training runs: those of the papers as .yaml files, and your own."""

from calibrant.recipes.recipe import (
    GIVEN,
    RECIPES,
    Data,
    LongTail,
    LossChoice,
    Model,
    Optimizer,
    Recipe,
    RecipeEntry,
    Schedule,
    find,
    import_name,
)

__all__ = [
    "GIVEN",
    "RECIPES",
    "Data",
    "LongTail",
    "LossChoice",
    "Model",
    "Optimizer",
    "Recipe",
    "RecipeEntry",
    "Schedule",
    "find",
    "import_name",
]
