"""Examples as pages: each script is run, and its text, code, output and figures become a page and a notebook.

A script is divided into cells by lines that start with ``# %%``. It begins with a docstring: the title, an empty line, and
what it is about. A cell ``# %% [markdown]`` is text, in comments; any other cell is code. Every figure that a cell leaves
open is shown, and needs a line ``# alt: ...`` in that cell that describes it to those who cannot see it.
"""

import ast
import contextlib
import io
import json
import multiprocessing
import os
import site
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

ROOT: Final = Path(__file__).parents[1]
EXAMPLES: Final = ROOT / "examples"
#: Folders of the gallery, in order: their headings, and what to read first; other examples follow by name.
GROUPS: Final = {
    "training": ("Training", ("swap_the_loss", "overconfidence", "penalties", "multipliers", "adafocal", "self_tuning")),
    "measuring": ("Measuring", ("reading_a_diagram", "small_samples", "comparing_networks")),
    "calibrating": ("Calibrating", ("temperature", "choosing_a_calibrator", "auditing_a_file")),
    "tasks": ("Tasks", ("segmentation",)),
}


#: Resolution of the figures, and the margin around them in inches.
DPI: Final = 130
PAD: Final = 0.1


@dataclass
class Cell:
    """A piece of a script, and what came of it.

    Attributes:
        text: Markdown, or code.
        code: Whether it is code.
        output: What it printed.
        figures: What it drew, as .png.
        captions: Descriptions of the figures.
    """

    text: str
    code: bool
    output: str = ""
    figures: list[bytes] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)


@dataclass
class Example:
    """A script.

    Attributes:
        path: Where it is.
        title: Its title.
        about: What it is about, in a sentence or two.
        cells: Its cells.
        seconds: How long it ran.
        thumbnail: The first panel of its first figure, as .png.
    """

    path: Path
    title: str
    about: str
    cells: list[Cell]
    seconds: float = 0.0
    thumbnail: bytes = b""

    @property
    def name(self) -> str:
        """Its group and name, such as ``training/overconfidence``."""
        return self.path.relative_to(EXAMPLES).with_suffix("").as_posix()


class ExampleError(RuntimeError):
    """An example is not what the gallery needs, or does not run."""


def examples() -> list[Path]:
    """All scripts, group by group."""
    found = []
    for group, (_, first) in GROUPS.items():
        order = {name: place for place, name in enumerate(first)}
        found += sorted((EXAMPLES / group).glob("*.py"), key=lambda path: (order.get(path.stem, len(order)), path.stem))
    return found


def navigation() -> list[Any]:
    """The pages of the gallery, for the site's navigation."""
    pages: dict[str, list[str]] = {heading: [] for heading, _ in GROUPS.values()}
    for path in examples():
        group = path.parent.name
        pages[GROUPS[group][0]].append(f"gallery/{group}/{path.stem}.md")
    return ["gallery/index.md", *({heading: own} for heading, own in pages.items())]


def parse(path: Path) -> Example:
    """Divide a script into cells."""
    source = path.read_text(encoding="utf-8")
    about = ast.get_docstring(ast.parse(source)) or ""
    title, _, rest = about.partition("\n")
    if not title or not rest.strip():
        raise ExampleError(f"{path}: the docstring must have a title, an empty line, and what the example is about")
    body = source[source.index('"""', source.index('"""') + 3) + 3 :]
    cells = []
    for piece in ("\n" + body).split("\n# %%")[0 if body.strip() and not body.lstrip().startswith("# %%") else 1 :]:
        kind, _, text = piece.partition("\n")
        if kind.strip() == "[markdown]":
            lines = [line.removeprefix("#").removeprefix(" ") for line in text.strip().splitlines()]
            cells.append(Cell("\n".join(lines), code=False))
        elif text.strip():
            cells.append(Cell(text.strip("\n"), code=True))
    return Example(path, title.rstrip("."), rest.strip(), cells)


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """A temporary folder as the current one."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def workers() -> ProcessPoolExecutor:
    """Processes that run scripts, one per core."""
    here, context = str(Path(__file__).parent), multiprocessing.get_context("spawn")  # mkdocs hides where this module is
    return ProcessPoolExecutor(os.cpu_count(), context, initializer=site.addsitedir, initargs=(here,))


def run(path: Path) -> Example:
    """Run a script cell by cell, in a folder of its own.

    Raises:
        ExampleError: If it fails, draws nothing, or leaves a figure without a description.
    """
    import torch  # noqa: PLC0415 - only where something runs

    torch.set_num_threads(1)  # small networks are fastest that way
    example = parse(path)
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    start = time.perf_counter()
    plt.close("all")
    with _elsewhere():
        for cell in (cell for cell in example.cells if cell.code):
            printed = io.StringIO()
            try:
                with contextlib.redirect_stdout(printed):
                    exec(compile(cell.text, str(path), "exec"), names)  # noqa: S102 - our own script
            except Exception as error:
                raise ExampleError(f"{path} fails: {type(error).__name__}: {error}\n{cell.text}") from error
            cell.output = printed.getvalue().rstrip()
            cell.captions = [line[7:] for line in cell.text.splitlines() if line.startswith("# alt: ")]
            cell.text = "\n".join(line for line in cell.text.splitlines() if not line.startswith("# alt: ")).strip("\n")
            for number in plt.get_fignums():
                figure = plt.figure(number)
                image = io.BytesIO()
                figure.savefig(image, format="png", dpi=DPI, bbox_inches="tight", pad_inches=PAD)
                cell.figures.append(image.getvalue())
                example.thumbnail = example.thumbnail or thumbnail(figure, image)
            plt.close("all")
            if len(cell.captions) != len(cell.figures):
                found = f"{len(cell.figures)} figures and {len(cell.captions)} lines '# alt: ...'"
                raise ExampleError(f"{path}: a cell has {found}\n{cell.text}")
    example.seconds = time.perf_counter() - start
    if not any(cell.figures for cell in example.cells):
        raise ExampleError(f"{path} draws nothing, and the gallery needs a thumbnail")
    return example


def page(example: Example) -> str:
    """The page of an example, in Markdown; figures are named after it and numbered."""
    stem, number = example.path.stem, 0
    parts = [f"# {example.title}", example.about]
    parts.append(
        f"[:material-language-python: Script]({stem}.py){{ .md-button download data-search-exclude }} "
        f"[:material-notebook: Notebook]({stem}.ipynb){{ .md-button download data-search-exclude }}"
    )
    for cell in example.cells:
        if not cell.code:
            parts.append(cell.text)
            continue
        parts.append(f"```python\n{cell.text}\n```")
        if cell.output:
            parts.append(f"```{{.text .output}}\n{cell.output}\n```")
        for caption in cell.captions:
            number += 1
            parts.append(f"![{caption}]({stem}-{number}.png)")
    parts.append(f"*Ran in {example.seconds:.0f} seconds on one CPU core, when this page was built.*")
    return "\n\n".join(parts) + "\n"


def notebook(example: Example) -> str:
    """The example as a Jupyter notebook, without its outputs."""
    texts = [(f"# {example.title}\n\n{example.about}", False), *((cell.text, cell.code) for cell in example.cells)]
    cells: list[dict[str, Any]] = []
    for number, (text, code) in enumerate(texts):
        cell = {"id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
        cells.append(
            {**cell, "cell_type": "code", "execution_count": None, "outputs": []}
            if code
            else {**cell, "cell_type": "markdown"}
        )
    metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def overview(found: list[Example]) -> str:
    """The page with all thumbnails."""
    about = (
        "Short scripts that run on a laptop in less than a minute, without a download. Each was run when this page was "
        "built; download it as a script or a notebook."
    )
    parts = ["# Gallery", about]
    for group, (heading, _) in GROUPS.items():
        parts.append(f"## {heading}")
        cards = []
        for example in (one for one in found if one.name.startswith(f"{group}/")):
            sentence = example.about.split("\n\n")[0].replace("\n", " ")
            image = f"![]({example.name}-thumbnail.png){{ loading=lazy }}"
            cards.append(f"-   [{image}**{example.title}**]({example.name}.md)\n\n    {sentence}")
        parts.append('<div class="grid cards gallery" markdown>\n\n' + "\n\n".join(cards) + "\n\n</div>")
    return "\n\n".join(parts) + "\n"


def thumbnail(figure: Any, image: io.BytesIO) -> bytes:
    """A picture of a figure, made small on white; of several panels, the first."""
    from PIL import Image  # noqa: PLC0415

    with Image.open(image) as picture:
        whole = picture.convert("RGB")
        shown = [ax for ax in figure.axes if ax.axison]
        if len(shown) > 1:
            renderer = figure.canvas.get_renderer()
            corner = figure.get_tightbbox(renderer)
            box = shown[0].get_tightbbox(renderer).transformed(figure.dpi_scale_trans.inverted())
            left, right = ((x - corner.x0 + PAD) * DPI for x in (box.x0, box.x1))
            top, bottom = ((corner.y1 - y + PAD) * DPI for y in (box.y1, box.y0))
            whole = whole.crop((max(0, int(left) - 4), max(0, int(top) - 4), int(right) + 4, int(bottom) + 4))
        whole.thumbnail((480, 320))
        card = Image.new("RGB", (480, 320), "white")
        card.paste(whole, ((480 - whole.width) // 2, (320 - whole.height) // 2))
        small = io.BytesIO()
        card.save(small, "PNG", optimize=True)
    return small.getvalue()
