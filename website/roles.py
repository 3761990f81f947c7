"""Public names and where they are described; docstrings with Sphinx's roles, as Markdown with links."""

import functools
import importlib
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final

ROLE: Final = re.compile(r":(class|func|meth|data|attr|mod):`~?([^`]+)`")
INLINE: Final = re.compile(r":math:`([^`]+)`", re.DOTALL)
BLOCK: Final = re.compile(r"^( *)\.\. math::(.*(?:\n(?:\1 +.*|\s*))*)", re.MULTILINE)

#: Public packages, in the order of the site. Where a name is in several, the first describes it.
PACKAGES: Final = (
    *("losses", "functional", "metrics", "stats", "posthoc", "predictions", "audit", "plots"),
    *("data", "models", "recipes", "runs", "train", "evaluation", "study", "report"),
)
#: Modules for other libraries, which have no ``__all__``, and what is public in them.
INTEGRATIONS: Final = {
    "lightning": ["CalibrationCallback"],
    "huggingface": ["loss_function", "AdaptCallback", "compute_metrics"],
    "sklearn": [],
    "skorch": [],
    "timm": ["CalibratedTask"],
}


#: What functions and losses take as ``**given`` and ``**options``.
OPTIONS: Final = {"inputs": ["Given"], "losses.targets": ["Options"]}


def public(module: Any) -> list[str]:
    """Names that a module defines and does not hide."""
    found = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return [name for name in found if not name.startswith("_")]


@functools.cache
def homes() -> dict[tuple[str, str], str]:
    """Every public name of a package, and the package that describes it: ``{("losses", "CALSALM"): "losses"}``.

    What several packages export is described by the first. Names that stand for different things, such as ``create``, have
    an entry for each.
    """
    found: dict[tuple[str, str], str] = {}
    first: dict[tuple[str, int], str] = {}
    for package, name, value in _exported():
        found[package, name] = first.setdefault((name, id(value)), package)
    return found


def _exported() -> Iterator[tuple[str, str, Any]]:
    for package in PACKAGES:
        module = importlib.import_module(f"calibrant.{package}")
        yield from ((package, name, getattr(module, name)) for name in module.__all__)
    for host in INTEGRATIONS:
        module = importlib.import_module(f"calibrant.integrations.{host}")
        yield from ((f"integrations.{host}", name, getattr(module, name)) for name in public(module))
    for package, names in OPTIONS.items():
        module = importlib.import_module(f"calibrant.{package}")
        yield from ((package, name, getattr(module, name)) for name in names)


@functools.cache
def _descriptions() -> dict[str, set[str]]:
    """By name, the paths of its descriptions."""
    found: dict[str, set[str]] = {}
    for (_, name), home in homes().items():
        found.setdefault(name, set()).add(f"calibrant.{home}.{name}")
    return found


def link(name: str) -> str:
    """A name as code, linked to its description if there is one.

    Args:
        name: ``CALSALM``, ``calibrant.losses.CALSALM``, or ``calibrant.recipes.Recipe.load`` of a class.
    """
    *above, last = name.removeprefix("calibrant.").split(".")
    if not above:
        (only,) = paths if len(paths := _descriptions().get(last, set())) == 1 else ("",)
        return f"[`{last}`][{only}]" if only else f"`{last}`"
    package = ".".join(above)
    home = homes().get((package, last)) or homes().get((above[0], last))
    if home:
        return f"[`{last}`][calibrant.{home}.{last}]"
    inside = [path for path in _descriptions().get(above[-1], ()) if len(above) == 1 or path.split(".")[1] == above[0]]
    return f"[`{above[-1]}.{last}`][{inside[0]}]" if len(inside) == 1 else f"`{last}`"


def markdown(text: str) -> str:
    """A docstring with Sphinx's roles, in Markdown."""
    text = BLOCK.sub(_block, text)
    text = INLINE.sub(lambda match: f"${' '.join(match[1].split())}$", text)
    text = ROLE.sub(lambda match: link(match[2]), text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)  # what follows is indented, and code
    return re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)


def _block(match: re.Match[str]) -> str:
    """A displayed formula; several lines with alignment are kept."""
    indent, body = match[1], textwrap.dedent(match[2]).strip()
    aligned = "&" in body and "\\begin" not in body.split("&", maxsplit=1)[0]
    if aligned:
        body = f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"
    return "\n".join(f"{indent}{line}" for line in ["", "$$", *body.splitlines(), "$$", "", ""])
