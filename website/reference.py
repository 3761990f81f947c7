"""Pages of the reference: every public name of every package."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, Final

from calibrant.losses import AdaptiveLoss
from roles import INTEGRATIONS, OPTIONS, PACKAGES, homes, link, markdown, public


def _first_line(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    return markdown(text.split("\n\n")[0].replace("\n", " "))


def _whole(module: Any) -> str:
    return markdown(inspect.getdoc(module) or "")


def _is_described(value: Any) -> bool:
    """Whether something has a docstring of its own, as classes and functions have."""
    return inspect.isclass(value) or inspect.isroutine(value)


def _table(value: Any) -> str:
    """A constant: its type, and the keys of a table of records."""
    if isinstance(value, Mapping) and hasattr(next(iter(value.values())), "title"):
        rows = [f"| `{key}` | {entry.title} |" for key, entry in value.items()]
        return "\n".join(["| key | title |", "|---|---|", *rows])
    shown = repr(value)
    return f"`{shown}`" if len(shown) < 200 else f"`{type(value).__name__}` of {len(value)} entries"


#: What constants are, which have no docstrings.
CONSTANTS: Final = {
    "METHODS": "The table of losses: key, class, paper, whether it is adaptive.",
    "SHARED": "Options that mean the same in every loss that has them.",
    "MEASURES": "The table of metrics: key, title, unit, direction, how it is computed.",
    "FUNCTIONS": "Metrics as functions of logits, by key.",
    "CALIBRATORS": "The table of calibrators.",
    "DATA": "The table of data sets.",
    "CORRUPTIONS": "The table of corruptions.",
    "SEVERITIES": "Severities of corruptions.",
    "MODELS": "The table of networks.",
    "PREFIXES": "Prefixes of networks from other libraries: `timm:NAME`, `smp:NAME`.",
    "RECIPES": "Built-in recipes.",
    "GIVEN": "Prefix of the names of objects that were passed to `fit`.",
    "STAGES": "Before and after temperature scaling.",
    "Stage": "Before or after temperature scaling.",
    "Kind": "Whether scores are logits or probabilities.",
    "tables": "Tables of audits for the terminal.",
}


def page(package: str) -> str:
    """The page of a package."""
    module = importlib.import_module(f"calibrant.{package}")
    names = list(module.__all__)
    own = [name for name in names if homes()[package, name] == package]
    parts = [f"# calibrant.{package}", _whole(module)]
    rows = ["| name | description |", "|---|---|"]
    for name in names:
        value = getattr(module, name)
        rows.append(f"| {link(f'{package}.{name}')} | {_first_line(value) if _is_described(value) else CONSTANTS[name]} |")
    parts.append("\n".join(rows))
    for name in own:
        value = getattr(module, name)
        if _is_described(value):
            parts.append(f"::: calibrant.{package}.{name}{_more(value)}")
        else:
            parts += [f"## `{name}` {{ #calibrant.{package}.{name} }}", CONSTANTS[name], _table(value)]
    return "\n\n".join(parts) + "\n"


def _more(value: Any) -> str:
    """What adaptive losses inherit and users call."""
    adaptive = inspect.isclass(value) and issubclass(value, AdaptiveLoss) and value is not AdaptiveLoss
    return "\n    options: {inherited_members: [observe, adapt, history]}" if adaptive else ""


def options() -> str:
    """The page of the options that metrics and losses share."""
    parts = ["# Shared options", "What metrics, figures and calibrators take as `**given`, and losses as `**options`."]
    return "\n\n".join([*parts, *(f"::: calibrant.{home}.{name}" for home, names in OPTIONS.items() for name in names)])


def integrations() -> str:
    """The page of the integrations."""
    parts = ["# calibrant.integrations", "One module per host library; each imports its host when it is used."]
    for host in INTEGRATIONS:
        module = importlib.import_module(f"calibrant.integrations.{host}")
        parts += [f"## calibrant.integrations.{host}", _whole(module)]
        parts += [f"::: calibrant.integrations.{host}.{name}\n    options: {{heading_level: 3}}" for name in public(module)]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """The overview of all packages."""
    about = (
        "Everything is imported from these packages. `calibrant.losses`, `functional`, `posthoc`, `stats` and `predictions` "
        "load only torch and NumPy."
    )
    parts = ["# Reference", about]
    rows = ["| package | contents |", "|---|---|"]
    for package in PACKAGES:
        module = importlib.import_module(f"calibrant.{package}")
        rows.append(f"| [`calibrant.{package}`]({package}.md) | {_first_line(module)} |")
    rows.append("| [`calibrant.integrations`](integrations.md) | Lightning, Hugging Face, scikit-learn, skorch and timm. |")
    return "\n\n".join([*parts, "\n".join(rows)]) + "\n"


def command_line() -> str:
    """The help of every command."""
    import contextlib  # noqa: PLC0415
    import io  # noqa: PLC0415
    import os  # noqa: PLC0415

    from calibrant.cli import COMMANDS, main  # noqa: PLC0415

    os.environ["COLUMNS"] = "96"
    parts = ["# Command line", "`calibrant COMMAND --help` prints the same."]
    for command, purpose in COMMANDS.items():
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main([command, "--help"])
        parts += [
            f"## calibrant {command}",
            f"{purpose[0].upper()}{purpose[1:]}.",
            f"```text\n{text.getvalue().strip()}\n```",
        ]
    return "\n\n".join(parts) + "\n"
