"""What mkdocs does beyond the pages of ``docs``: gallery, reference, studies, contributors' pages, and formulas."""

import functools
import importlib.util
import logging
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "website"))

import formulas
import gallery
import house
import moving
import reference
import roles

log = logging.getLogger("mkdocs.hooks.calibrant")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\([)\]])</\1>', re.DOTALL)


def on_config(config: Any) -> Any:
    """List studies and gallery, which are not in ``docs``."""
    studies = [f"studies/{path.parent.name}/README.md" for path in sorted((ROOT / "studies").glob("*/README.md"))]
    for entry in config.nav:
        if "Studies" in entry:
            entry["Studies"] += studies
        if "Gallery" in entry:
            entry["Gallery"] = gallery.navigation()
    return config


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add what is not in ``docs``."""

    def add(path: str, content: str | bytes) -> None:
        files.append(File.generated(config, path, content=content))

    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        add(name, (ROOT / name).read_text(encoding="utf-8"))
    for path in sorted((ROOT / "studies").rglob("*")):
        if path.suffix in (".md", ".png", ".csv", ".tex") and path.is_file():
            add(
                path.relative_to(ROOT).as_posix(),
                path.read_bytes() if path.suffix == ".png" else path.read_text(encoding="utf-8"),
            )
    add("reference/index.md", reference.index())
    add("reference/integrations.md", reference.integrations())
    add("reference/command-line.md", reference.command_line())
    add("reference/options.md", reference.options())
    for package in roles.PACKAGES:
        add(f"reference/{package}.md", reference.page(package))
    add("house.md", house.page())
    add("assets/house.svg", house.drawing())
    add("assets/STIXTwoMath.ttf", _math_font().read_bytes())
    pictures, examples = _results()
    for name, picture in pictures.items():
        add(f"assets/{name}", picture)
    _gallery(add, examples)
    return files


def _math_font() -> Path:
    """A font with mathematical symbols, which comes with a package that draws formulas."""
    found = importlib.util.find_spec("ziamath")
    if found is None or found.origin is None:
        raise PluginError("ziamath, whose font is used for formulas, is not installed")
    return Path(found.origin).parent / "fonts" / "STIXTwoMath-Regular.ttf"


@functools.cache
def _results() -> tuple[dict[str, bytes], list[gallery.Example]]:
    """The picture of the first page, and all examples with their output; while a preview is served, they are kept."""
    with gallery.workers() as pool:
        pictures = pool.submit(moving.pictures)
        try:
            examples = list(pool.map(gallery.run, gallery.examples()))
        except gallery.ExampleError as error:
            raise PluginError(str(error)) from error
        for example in examples:
            log.info("%s ran in %.1f s", example.name, example.seconds)
        return pictures.result(), examples


def _gallery(add: Any, examples: list[gallery.Example]) -> None:
    """The pages of the gallery."""
    add("gallery/index.md", gallery.overview(examples))
    for example in examples:
        add(f"gallery/{example.name}.md", gallery.page(example))
        add(f"gallery/{example.name}.py", example.path.read_text(encoding="utf-8"))
        add(f"gallery/{example.name}.ipynb", gallery.notebook(example))
        add(f"gallery/{example.name}-thumbnail.png", example.thumbnail)
        for number, figure in enumerate((figure for cell in example.cells for figure in cell.figures), start=1):
            add(f"gallery/{example.name}-{number}.png", figure)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links between documents of the repository work on the site, where ``docs`` is the root."""
    depth = page.file.src_uri.count("/")
    up = "../" * depth
    if page.file.src_uri.startswith("studies/"):
        markdown = markdown.replace("](../../docs/", f"]({up}").replace("](../../README.md", f"]({up}index.md")
    else:
        markdown = markdown.replace(f"]({up}../studies/", f"]({up}studies/").replace(
            f"]({up}../README.md", f"]({up}index.md"
        )
        markdown = markdown.replace(f"]({up}../CONTRIBUTING.md", f"]({up}CONTRIBUTING.md")
    if page.file.src_uri in ("CONTRIBUTING.md", "CHANGELOG.md"):
        markdown = markdown.replace("](docs/", "](").replace("](README.md", "](index.md")
    return re.sub(r"\]\((\.\./)*studies\)", f"]({up}studies/README.md)", markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Turn formulas into MathML, which browsers render by themselves."""

    def render(match: re.Match[str]) -> str:
        text = match[3].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()
        display = "block" if match[2] == "[" else "inline"
        try:
            formula = formulas.mathml(text, display)
        except formulas.FormulaError as error:
            raise PluginError(f"{page.file.src_uri}: the formula {text} cannot be rendered ({error})") from error
        # Browsers do not scroll what is inside a formula, only what is around it.
        return f'<div class="formula" tabindex="0">{formula}</div>' if display == "block" else formula

    html = FORMULA.sub(render, html)
    html = re.sub(r"(?<=\d) ± (?=\d)", "\u00a0±\u00a0", html)  # in tables, a mean and its spread stay together
    return re.sub(r"(?<=\d) \[(-?[\d.]+), (-?[\d.]+)\]", "\u00a0[\\1,\u00a0\\2]", html)
