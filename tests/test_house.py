"""The floor plan: rooms rest on those above them, and starting costs nothing that is not needed."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "calibrant"

#: Rooms from the ground up: a file imports only from rooms before its own, lazy imports included.
ROOMS = (
    *("errors", "checks", "extras", "processes", "registry", "files", "records"),
    *("tensors", "inputs", "distributed", "binning", "outcomes"),
    *("losses", "metrics", "posthoc", "stats", "predictions", "plots", "audit"),
    *("data", "models", "recipes", "runs", "report", "integrations"),
    *("train", "evaluation", "study", "cli", "functional", "__main__"),
)


def modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> Iterator[str]:
    """Modules of calibrant that a file imports when it runs, at its top or in a function."""

    def walk(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    known = modules()
    for name in walk(ast.parse(path.read_text())):
        inside = name.removeprefix("calibrant").removeprefix(".")
        if name.startswith("calibrant") and inside in known and inside:
            yield inside


def test_every_file_belongs_to_a_room() -> None:
    assert {name.partition(".")[0] for name in modules() if name} <= set(ROOMS)


@pytest.mark.parametrize("name", [name for name in modules() if name])
def test_no_file_imports_from_a_room_above(name: str) -> None:
    own = ROOMS.index(name.split(".", maxsplit=1)[0])
    wrong = [other for other in imports(modules()[name]) if ROOMS.index(other.split(".")[0]) > own]
    assert not wrong, f"{name} rests on {wrong}, which are above it"


def test_no_import_goes_in_a_circle() -> None:
    """Between files; that a package is imported with its files is Python's affair."""
    graph = {
        name: {other for other in imports(path) if other != name and not name.startswith(f"{other}.")}
        for name, path in modules().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imports go in a circle: {error.args[1]}")


@pytest.mark.parametrize("name", ["losses", "posthoc", "metrics", "data", "models", "evaluation"])
def test_lazy_names_are_no_names_of_modules(name: str) -> None:
    """Importing a module would replace the name that stands for something in it."""
    import calibrant

    package = getattr(calibrant, name)
    files = {path.stem for path in (SOURCE / name).glob("*.py")}
    assert not files & set(package.__all__)
    assert all(getattr(package, own) is getattr(package, own) for own in package.__all__)


# What starting costs, as sets of modules: times are in benchmarks/.

LIGHT = {"torch", "numpy"}
HEAVY = {
    *("lightning", "torchmetrics", "torchvision", "sklearn", "matplotlib", "plotly", "jinja2", "pyarrow", "timm", "scipy"),
    *("pandas", "transformers", "ray", "PIL", "segmentation_models_pytorch", "safetensors", "optuna"),
}


def loaded(code: str) -> set[str]:
    """Packages that a fresh interpreter has loaded after running some code."""
    tell = "\nimport sys; print('LOADED', *{name.split('.')[0] for name in sys.modules})"
    result = subprocess.run([sys.executable, "-c", code + tell], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.splitlines()[-1].removeprefix("LOADED ").split())


@pytest.fixture(scope="module")
def torch_alone() -> set[str]:
    return loaded("import torch, numpy")


@pytest.mark.parametrize(
    "code",
    [
        "import calibrant.functional",
        "import calibrant.losses as m; [getattr(m, name) for name in m.__all__]",
        "import calibrant.posthoc as m; [getattr(m, name) for name in m.__all__]",
        "import calibrant.stats, calibrant.predictions, calibrant.audit",
    ],
)
def test_the_core_imports_torch_and_numpy_only(code: str, torch_alone: set[str]) -> None:
    more = loaded(code) - torch_alone - set(sys.stdlib_module_names) - {"calibrant"}
    assert not {name for name in more if not name.startswith(("_", "calibrant"))}


@pytest.mark.parametrize("arguments", [["--help"], ["list", "losses"], ["list", "recipes"], ["train", "--help"]])
def test_help_and_lists_import_neither_torch_nor_numpy(arguments: list[str]) -> None:
    code = f"from calibrant.cli import main\ntry:\n    main({arguments!r})\nexcept SystemExit:\n    pass"
    assert not loaded(code) & (LIGHT | HEAVY)


def test_reading_results_imports_no_lightning(tmp_path: Path) -> None:
    """Evaluating a file needs nothing heavy; reading a study, writing its table and its report, no Lightning."""
    code = f"""
import numpy as np
from calibrant.cli import main
z = np.random.default_rng(0).normal(size=(50, 3))
np.savez({str(tmp_path / "p.npz")!r}, logits=z, target=z.argmax(1))
assert main(["evaluate", {str(tmp_path / "p.npz")!r}, "--resamples", "20"]) == 0
"""
    assert not loaded(code) & HEAVY
    code += f"""
import calibrant.study.study, calibrant.study.tables
from calibrant.runs import StudyFolder
from calibrant.report import Report
Report({str(tmp_path / "p.npz")!r}).html()
"""
    assert not loaded(code) & {"lightning", "torchmetrics", "torchvision"}
