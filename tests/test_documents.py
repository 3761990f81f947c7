"""Documents are kept true: their code runs, their commands exist, and every method has its entry."""

import ast
import base64
import contextlib
import io
import re
import shlex
import subprocess
import textwrap
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from calibrant import metrics, plots, posthoc, stats
from calibrant.cli import COMMANDS, main as calibrant, split_fields
from calibrant.cli.fields import parse
from calibrant.losses import METHODS, AdaptiveLoss
from calibrant.recipes import Recipe

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS += sorted((ROOT / "studies").rglob("README.md"))
PRINTED = re.compile(r"^print\(.*\)  # (-?\d[\d.]*\d|\d)\b")
#: An image of one pixel.
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC")
every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(document: Path, language: str) -> list[str]:
    """Code of a document, also where it is indented, as in tabs."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(code) for _, code in found]


def surroundings() -> dict[str, object]:
    """What a snippet may take for granted: a network, its optimizer, and batches."""
    torch.manual_seed(0)
    model = nn.Linear(5, 10)
    batches = [(torch.randn(8, 5), torch.randint(10, (8,))) for _ in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "model": model,
        "optimizer": optimizer,
        "train_batches": batches,
        "validation_batches": batches,
        "epochs": 2,
        "x": batches[0][0],
        "y": batches[0][1],
    }


@every_document
def test_snippets_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = surroundings()
    for block in blocks(document, "python"):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block, str(document), "exec"), names)  # noqa: S102


@every_document
def test_numbers_in_comments_are_true(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a line is said to print, ``print(x)  # 1.91``, it prints."""
    monkeypatch.chdir(tmp_path)
    names = surroundings()
    for block in blocks(document, "python"):
        lines = block.splitlines()
        if not any(PRINTED.search(line) for line in lines):
            continue
        for statement in ast.parse(block).body:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(ast.Module([statement], []), str(document), "exec"), names)  # noqa: S102
            said = PRINTED.search(lines[statement.end_lineno - 1])
            if said:
                number = said.group(1)
                step = 10.0 ** -len(number.partition(".")[2])
                assert float(printed.getvalue().split()[0]) == pytest.approx(float(number), abs=step), lines[
                    statement.end_lineno - 1
                ]


def test_readme_snippet_saves_what_was_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = surroundings()
    exec(blocks(ROOT / "README.md", "python")[0], names)  # noqa: S102
    saved = torch.load("checkpoint.pt", weights_only=True)["loss"]
    assert saved["epoch"] == 2
    assert torch.equal(saved["multipliers"], names["loss"].multipliers)


def commands(document: Path) -> list[list[str]]:
    text = document.read_text()
    lines = [line for block in blocks(document, "bash") for line in block.splitlines()]
    lines += re.findall(r"`((?:make|python|pip|calibrant) [^`]*)`", text)
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def prepare() -> None:
    """Files that the documents' commands are about."""
    random = np.random.default_rng(0)
    for name in ("validation.npz", "test.npz", "predictions.npz", "other.npz"):
        logits = 3 * random.normal(size=(90, 3)) * (2 if name == "other.npz" else 1)
        np.savez(name, logits=logits, target=np.arange(90) % 3)
        table = "\n".join(",".join(map(str, [i, *row, i % 3])) for i, row in enumerate(logits.tolist()))
        Path(name).with_suffix(".csv").write_text(f",logit_a,logit_b,logit_c,label\n{table}\n")


def fewer_seeds(words: list[str]) -> list[str]:
    """The command with one seed: more are more of the same."""
    place = words.index("--seeds") if "--seeds" in words else None
    return words if place is None else [*words[: place + 1], "1", *words[place + 2 :]]


@pytest.mark.slow
@every_document
def test_commands_work(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets are known to make, scripts are there and know their options; calibrant's own commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda _, path, **__: Path(path).write_bytes(PIXEL)
    )  # takes a while
    prepare()
    for command in commands(document):
        match command:
            case ["make", *targets]:
                subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, check=True, capture_output=True)  # noqa: S607
            case ["python", script, *options]:
                source = (ROOT / script).read_text()
                assert all(f'"{option}"' in source for option in options if option.startswith("--")), command
            case ["pip", "install", "." | ".[train]" | ".[ray]" | ".[hf]"]:
                pass
            case ["calibrant", name]:  # a mention
                assert name in COMMANDS
            case ["calibrant", "train" | "compare", recipe, *arguments] if not recipe.startswith(
                "digits"
            ) or document.is_relative_to(ROOT / "studies"):
                own, fields = split_fields(command[1:])  # its data is not at hand, or it takes hours
                parser = import_module(f"calibrant.cli.{own[0]}").parser()
                parser.parse_args(own[1:])
                assert own[1] == recipe
                assert arguments
                Recipe.load(recipe, **parse(fields)).check()
            case ["calibrant", "ood" | "shift" as name, *arguments] if document.is_relative_to(ROOT / "studies"):
                import_module(f"calibrant.cli.{name}").parser().parse_args(arguments)  # of runs that took hours
            case ["calibrant", "train" | "compare" | "tune", *_]:
                small = ["--epochs", "1", "--data.limit", "60", "--quiet"]
                small += ["--jobs", "1"] if command[1] != "train" else []  # starting processes takes longer
                small += ["--trials", "2"] if command[1] == "tune" else []
                with contextlib.redirect_stdout(io.StringIO()):
                    assert calibrant([*fewer_seeds(command[1:]), *small]) == 0, command
            case ["calibrant", name, *arguments]:
                small = ["--resamples", "20"] if name in ("evaluate", "calibrate", "card") else []
                with contextlib.redirect_stdout(io.StringIO()):
                    assert calibrant([name, *arguments, *small]) == 0, command
            case _:
                pytest.fail(f"{document.name} has a command that no test knows: {command}")


@every_document
def test_links_lead_somewhere(document: Path) -> None:
    """Pages of gallery and reference are made when the site is built, whose own test follows every link."""
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        path = (document.parent / target).resolve()
        if path.is_relative_to(ROOT / "docs/gallery") and path.name != "index.md":
            name = re.sub(r"(-\d+)?\.(md|html|png)$", ".py", str(path.relative_to(ROOT / "docs/gallery")))
            assert (ROOT / "examples" / name).exists(), target
        elif not path.is_relative_to(ROOT / "docs/reference") and not target.startswith("assets/training"):
            assert "://" in target or path.exists() or path == ROOT / "docs/gallery/index.md", target


@pytest.mark.parametrize("key", METHODS)
def test_every_method_has_its_entry(key: str) -> None:
    method = METHODS[key]
    assert method.adaptive == issubclass(method.loss, AdaptiveLoss)
    entry = re.search(rf"^### `{key}`: (.*)\n`{method.loss.__name__}\(", (ROOT / "docs/losses.md").read_text(), re.MULTILINE)
    assert entry, f"docs/losses.md lacks '### `{key}`: {method.title}' followed by `{method.loss.__name__}(...)`"


def test_table_of_methods_is_true() -> None:
    """The README shows a choice; what it shows agrees with the table."""
    rows = re.findall(
        r"^\| `([a-z-]+)` \| `(\w+)` \| (.*?) \|(.*?)\|(.*?)\|$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    assert len(rows) >= 13
    for key, name, title, paper, learns in rows:
        method = METHODS[key]
        assert (name, title) == (method.name, method.title)
        assert paper.strip() == method.paper.replace("-", "").strip()
        assert (learns.strip() == "yes") == method.adaptive


@pytest.mark.parametrize("module", [metrics, stats, plots], ids=lambda module: module.__name__)
def test_every_measure_and_figure_is_mentioned(module: ModuleType) -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    results = {"BrierSplit", "Group", "Measure", "PanelResult", "Interval", "Comparison", "CalibrationTest", "FUNCTIONS"}
    missing = [name for name in module.__all__ if name not in results and not re.search(rf"\b{name}\b", text)]
    assert not missing


@pytest.mark.parametrize("key", posthoc.CALIBRATORS)
def test_every_calibrator_has_its_row(key: str) -> None:
    entry = posthoc.CALIBRATORS[key]
    assert entry.preserves_accuracy == entry.load().preserves_accuracy
    keeps = "yes" if entry.preserves_accuracy else ""
    row = f"| `{key}` | `{entry.name}` | {entry.paper} | {keeps} |"
    assert re.sub(r" +", " ", row) in (ROOT / "docs/posthoc.md").read_text()


@pytest.mark.parametrize("key", METHODS)
def test_every_method_is_compared_with_something_independent(key: str) -> None:
    independent = [ROOT / "tests/losses/test_golden.py", ROOT / "tests/losses/test_brute_force.py"]
    assert any(f"losses.{METHODS[key].loss.__name__}(" in path.read_text() for path in independent)
