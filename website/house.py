"""The house: which package imports which, drawn from the code."""

import ast
import functools
import io
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "calibrant"
#: Floors of the house, from the ground up; see CONTRIBUTING.md.
FLOORS = (
    ("errors", "checks", "extras", "registry", "files", "records"),
    ("tensors", "inputs", "distributed", "binning", "outcomes"),
    ("losses", "metrics"),
    ("posthoc", "stats", "predictions", "plots", "audit"),
    ("data", "models", "recipes", "runs", "report"),
    ("integrations", "train", "evaluation", "study"),
    ("cli", "functional"),
)


@functools.cache
def imports() -> dict[str, dict[str, int]]:
    """For each package, how many files of it import each other package."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).with_suffix("").parts[0]
        others = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [f"calibrant.{alias.name}" for alias in getattr(node, "names", []) if names == ["calibrant"]]
            others |= {name.split(".")[1] for name in names if name.startswith("calibrant.")}
        for other in others - {own}:
            found[own][other] += 1
    return {own: dict(others) for own, others in found.items()}


def drawing() -> str:
    """The packages on their floors; lines go down to what they import, thicker for more files."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, ax = plt.subplots(figsize=(11, 7.5), layout="constrained")
    places = {}
    for y, floor in enumerate(FLOORS):
        for i, name in enumerate(floor):
            places[name] = ((i + 0.5 + (y % 2) * 0.15) / len(floor), y)
    for own, others in imports().items():
        for other, count in others.items():
            if own in places and other in places and places[own][1] > places[other][1] and places[other][1] > 0:
                (x0, y0), (x1, y1) = places[own], places[other]
                ax.plot([x0, x1], [y0, y1], color="#0072B2", alpha=0.18, linewidth=0.5 + 0.35 * count, zorder=1)
    for name, (x, y) in places.items():
        box = {"boxstyle": "round,pad=0.45", "facecolor": "#E8F1F8", "edgecolor": "#0072B2"}
        ax.text(x, y, name, ha="center", va="center", bbox=box, zorder=2, fontsize=10)
    ax.set_axis_off()
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.4, len(FLOORS) - 0.6))
    image = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "calibrant"}):
        figure.savefig(image, format="svg", metadata={"Date": None})
    plt.close(figure)
    return image.getvalue()


def page() -> str:
    """The page about the house."""
    rows = ["| package | imports, with the number of its files that do |", "|---|---|"]
    for name in (name for floor in reversed(FLOORS) for name in floor):
        others = sorted(imports().get(name, {}).items(), key=lambda pair: -pair[1])
        rows.append(f"| `{name}` | {', '.join(f'`{other}` {count}' for other, count in others)} |")
    about = (
        "Every package builds on those below it: a file imports only from lower layers, or from packages listed before its "
        "own in the same layer ([how to add something](CONTRIBUTING.md)). A test computes this graph from the code and "
        "fails on any import in the other direction. Lines to the lowest layer, which everything uses, are left out."
    )
    picture = (
        "![Packages of calibrant in seven layers, from errors and checks at the bottom to the command line at the top, "
        "with lines to the packages they import](assets/house.svg)"
    )
    return "\n\n".join(["# Architecture", about, picture, "\n".join(rows)]) + "\n"
