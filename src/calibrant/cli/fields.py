"""Recipe fields on the command line: --loss mbls --loss.margin 6 --optimizer.lr=1e-3."""

from typing import Any

from calibrant.recipes.fields import parse_value


def split(arguments: list[str], known: set[str]) -> tuple[list[str], list[str]]:
    """Separate a command's own arguments, given its ``known`` options, from recipe fields."""
    own, fields = list[str](), list[str]()
    expects = False  # whether a field's value comes next
    for argument in arguments:
        is_field = argument.startswith("--") and argument.split("=")[0] not in known
        (fields if is_field or (expects and not _is_flag(argument)) else own).append(argument)
        expects = is_field and "=" not in argument
    return own, fields


def parse(fields: list[str]) -> dict[str, Any]:
    """Fields and their values; a flag without a value is true."""
    found: dict[str, Any] = {}
    place = 0
    while place < len(fields):
        name, equals, text = fields[place].removeprefix("--").partition("=")
        place += 1
        if not equals and place < len(fields) and not _is_flag(fields[place]):
            text, equals = fields[place], "="
            place += 1
        found[_path(name)] = parse_value(text) if equals else True
    return found


def _path(name: str) -> str:
    """The path of a field: --batch-size is --batch_size, but names of methods keep their dashes."""
    from calibrant.losses import METHODS

    if name.startswith("methods."):
        return name
    group, dot, rest = name.partition(".")
    return f"{group if group in METHODS else group.replace('-', '_')}{dot}{rest.replace('-', '_')}"


def _is_flag(argument: str) -> bool:
    return argument.startswith("--")
