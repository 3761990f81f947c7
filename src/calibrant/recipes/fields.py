"""Fields by their dotted paths, and values written as text."""

from collections.abc import Mapping
from typing import Any

from calibrant.errors import UNFIT
from calibrant.extras import require


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields as dotted paths; an empty mapping is kept."""
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        path = f"{prefix}{key}"
        flat |= flatten(inner, f"{path}.") if isinstance(inner, Mapping) and inner else {path: inner}
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted paths as nested fields."""
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *above, last = path.split(".")
        inside = nested
        for part in above:
            if not isinstance(inside.get(part), dict):
                inside[part] = {}
            inside = inside[part]
        if not (isinstance(inside.get(last), dict) and value == {}):
            inside[last] = value
    return nested


def parse_value(text: str) -> Any:
    """Parse a value as YAML, and also numbers such as 1e-3 and inf, which YAML reads as strings; 2:20 is not 140 to us."""
    yaml = require("yaml", "fields of a recipe")
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, *UNFIT):  # PyYAML raises all kinds, such as ValueError for 2001-99-99
        return text
    if isinstance(found, int | float) and ":" in text:  # YAML counts in sixties
        return text
    if isinstance(found, str) and found == text:  # otherwise it was quoted
        try:
            return float(found)
        except ValueError:
            return found
    return found
