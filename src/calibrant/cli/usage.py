"""jsonargparse's complaints about wrong usage, in plain words."""

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any


def repeated(arguments: Sequence[str], actions: Sequence[argparse.Action]) -> str | None:
    """Tell of a list that is given twice: the second would replace the first."""
    for action in (action for action in actions if action.nargs in ("+", "*") and action.option_strings):
        if sum(argument.partition("=")[0] in action.option_strings for argument in arguments) > 1:
            name = action.option_strings[0]
            return f"{name} is given twice; put all its values after one {name}"
    return None


def misspelt(command: str, fields: Sequence[str], actions: Sequence[argparse.Action]) -> str | None:
    """Tell of a field that is closer to an option of the command than to any field of a recipe."""
    options = [name for action in actions for name in action.option_strings if name.startswith("--")]
    for flag in (field.partition("=")[0] for field in fields if field.startswith("--") and "." not in field):
        from calibrant.losses import METHODS
        from calibrant.recipes.recipe import OTHER_NAMES, Recipe

        known = [f"--{field}" for field in (*Recipe.__dataclass_fields__, *OTHER_NAMES, *METHODS)]
        if flag.replace("-", "_").replace("__", "--", 1) not in known and flag not in known:
            close = difflib.get_close_matches(flag, [*options, *known], n=1, cutoff=0.75)
            if close and close[0] in options:
                return f"{command} has no option {flag}; did you mean {close[0]}?"
    return None


def explain(message: str, parser: Any) -> str:
    """One sentence: what is wrong, and where to look.

    Args:
        message: The parser's message.
        parser: The parser that raised it, of all commands or of one.
    """
    command = parser.prog.replace("[options]", "").split()[-1]
    commands = next((a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), {})  # noqa: SLF001
    missing = re.match(r"the following arguments are required: (.*)", message)
    if missing:
        names = missing.group(1).split(", ")
        command = names[0].partition(".")[0] if "." in names[0] and names[0].partition(".")[0] in commands else command
        actions = commands[command]._actions if command in commands else parser._actions  # noqa: SLF001
        own = {action.dest: action for action in actions}
        needs = [_shown(own[dest]) for dest in (name.removeprefix(f"{command}.") for name in names) if dest in own]
        text = f"{command} needs {' and '.join(needs) or missing.group(1)}"
    elif message.startswith("unrecognized arguments: "):
        text = _unknown(message.removeprefix("unrecognized arguments: "), command, parser)
    elif match := re.match(r"argument command: invalid choice: '(.*?)' ", message):
        hint = _close(match.group(1), commands) or f"; commands are {', '.join(commands)}"
        text = f"there is no command {match.group(1)!r}{hint}"
    elif message.startswith('expected "command"'):
        text = f"no command given; choose from {', '.join(commands)}"
    else:
        text = _value(message)
    place = "calibrant" if command == "calibrant" else f"calibrant {command}"
    return f"{text} See {place} --help" if text.endswith("?") else f"{text}; see {place} --help"


def _shown(action: argparse.Action) -> str:
    """The name of an argument, and its purpose."""
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    name = f"{action.option_strings[0]} {metavar}" if action.option_strings else metavar
    purpose = str(action.help).partition(";")[0].rstrip(".")
    start = purpose[:1] if purpose[1:2].isupper() else purpose[:1].lower()  # OOD stays as it is
    return f"{name} ({start}{purpose[1:]})"


def _unknown(names: str, command: str, parser: Any) -> str:
    first = names.split(maxsplit=1)[0]
    if not first.startswith("-"):
        return f"{command} does not expect {names}"
    known = [name for action in parser._actions for name in action.option_strings]  # noqa: SLF001
    return f"{command} has no option {first}{_close(first.partition('=')[0], known)}"


def _close(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _value(message: str) -> str:
    """A value of the wrong type."""
    match = re.match(r'Parser key "([\w.]+)":\s+(.*)', message, re.DOTALL)
    if match is None:
        return " ".join(message.split())
    flag, rest = f"--{match.group(1).replace('_', '-')}", " ".join(match.group(2).split())
    kinds = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "a word"}
    plain = re.match(r"Expected an? <class '(\w+)'>\. Got value: (.*)", rest)
    if plain is None or plain.group(1) not in kinds:
        return f"{flag}: {rest}"
    return f"{flag} must be {kinds[plain.group(1)]}, got {plain.group(2)}"
