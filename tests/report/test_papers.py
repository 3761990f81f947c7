"""The numbered figures and tables of the papers, from a study that has some of what they need."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import functional as cal
from calibrant.cli import main
from calibrant.cli.compare import make_study, parser
from calibrant.cli.fields import split
from calibrant.errors import InputError
from calibrant.plots import FocalShapes, PenaltyShapes
from calibrant.recipes import RECIPES
from calibrant.report import Report, papers
from calibrant.report.figures import save
from calibrant.report.papers import DRAWINGS, ITEMS
from calibrant.runs import Run

DRAWN = ("figure-2b", "figure-6", "figures-4-and-7")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("papers") / "study"
    command = ["compare", "digits-lt", "--quiet", "--losses", "adafocal", "cals-alm", "--seeds", "2", "--epochs", "2"]
    assert main([*command, "--data.limit", "60", "--curves", "test", "--ood", "noise", "--out", str(folder)]) == 0
    return folder


def save_some(folder: Path, name: str, figure: Any, *, force: bool = False) -> list[Path]:
    """Draw some of them: each kind of figure is drawn by tests of its own."""
    if name.partition("-")[2] in DRAWN:
        return save(folder, name, figure, force=force)
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.png"
    path.write_text(repr(figure))
    return [path]


@pytest.fixture(scope="module")
def drawn(study: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The figures of AdaFocal, and the numbers of those that cannot be drawn."""
    folder = tmp_path_factory.mktemp("drawn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(papers, "save", save_some)
        paths, missing = Report(study).write_paper(folder, "adafocal")
    assert sorted(paths) == sorted(folder.iterdir())
    return folder, [one.item.number for one in missing]


def test_what_can_be_drawn_is_written_and_the_rest_is_named(drawn: tuple[Path, list[str]]) -> None:
    folder, missing = drawn
    written = {path.stem for path in folder.iterdir()}
    for item in ITEMS["adafocal"]:
        stem = f"adafocal-{item.number.lower().replace(' ', '-')}"
        assert (stem in written) != (item.number in missing), item.number
    assert missing == ["Figure 3bc", "Figure 3d", *(f"Figure {n}" for n in (13, 15, 16, 19, 20, 21, 22)), "Table 9"]
    for stem in (f"adafocal-{own}" for own in DRAWN):
        assert (folder / f"{stem}.pdf").read_bytes()[:4] == b"%PDF"
        assert (folder / f"{stem}.png").stat().st_size > 3000


def test_the_command_says_what_the_rest_needs(study: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(papers, "save", save_some)
    out = str(tmp_path / "figures")
    assert main(["report", str(study), "--out", str(tmp_path / "r.html"), "--figures", out, "--paper", "cals"]) == 0
    said = capsys.readouterr().out
    assert (tmp_path / "figures" / "cals-figure-3b.png").exists()
    assert re.findall(r"^(\w+ [\w ]+) \(.*\) needs", said, re.MULTILINE) == ["Figure 3c", "Table 2"]
    assert "needs segmentation:\n  calibrant compare voc2012-deeplabv3 --losses ce mbls cals-alm\n" in said


def test_tables_are_measured_on_the_predictions(study: Path, drawn: tuple[Path, list[str]]) -> None:
    lines = (drawn[0] / "adafocal-table-6.md").read_text().splitlines()
    assert lines[0] == "Table 6: Debiased ECE, 30 bins"
    assert lines[2] == "| method | debiased ECE, % | debiased ECE, %, post T | T |"
    own = []
    for seed in (0, 1):
        run = Run.load(study / f"adafocal-seed{seed}")
        logits, target = run.folder.open().read_all()
        own.append(
            [100 * float(cal.debiased_ece(z, target, num_bins=30)) for z in (logits, logits / run.result.temperature)]
        )
    means, spread = np.mean(own, axis=0), np.std(own, axis=0, ddof=1)
    assert lines[4].startswith(f"| adafocal | {means[0]:.2f} ± {spread[0]:.2f} | {means[1]:.2f} ± {spread[1]:.2f} |")
    auroc = (drawn[0] / "adafocal-table-10.md").read_text()
    assert "| method | AUROC, noise, % |" in auroc


def test_records_are_whole() -> None:
    for paper, items in ITEMS.items():
        assert len({item.number for item in items}) == len(items), paper
        for item in items:
            assert item.drawing in DRAWINGS
            assert bool(item.needs) == bool(item.command), item.number


@pytest.mark.parametrize("command", sorted({item.command for items in ITEMS.values() for item in items if item.command}))
def test_the_commands_for_the_rest_are_accepted(command: str, tmp_path: Path) -> None:
    words = shlex.split(command.format(recipe="digits-lt", study=str(tmp_path / "study")))
    assert words[:2] == ["calibrant", "compare"]
    assert words[2] in RECIPES
    options = parser()
    own, fields = split(words[2:], {name for action in options._actions for name in action.option_strings})
    assert make_study(options.parse_args(own), fields).jobs


def test_unknown_papers_and_papers_without_a_folder(study: Path, tmp_path: Path, capsys) -> None:
    assert main(["report", str(study), "--paper", "cals"]) == 2
    assert "--figures FOLDER" in capsys.readouterr().err
    assert main(["report", str(study), "--figures", str(tmp_path), "--paper", "mbls"]) == 2
    assert "--paper must be one of cals, adafocal" in capsys.readouterr().err
    with pytest.raises(InputError, match="paper must be one of cals, adafocal"):
        Report(study).write_paper(tmp_path, "mbls")


def test_shapes_are_the_formulas() -> None:
    shapes = PenaltyShapes.of("phr", rhos=(4,), multipliers=(2,))
    z = np.array(shapes.z)
    by_hand = lambda rho, m: np.where(m + rho * z >= 0, m * z + rho * z**2 / 2, -(m**2) / (2 * rho))  # noqa: E731
    np.testing.assert_allclose(shapes.by_rho["rho 4"], by_hand(4, 1))
    np.testing.assert_allclose(shapes.by_multiplier["multiplier 2"], by_hand(1, 2))
    focal = FocalShapes.of(accuracy=0.7, scales=(10,), gamma=2)
    p = np.array(focal.p)
    np.testing.assert_allclose(focal.losses["cross-entropy"], -np.log(p), rtol=1e-6)
    np.testing.assert_allclose(focal.losses["focal loss, gamma 2"], -((1 - p) ** 2) * np.log(p), rtol=1e-6)
    want = -((1 - p) ** np.exp(10 * (p - 0.7))) * np.log(p)
    np.testing.assert_allclose(focal.losses["CalFocal, lambda 10"], want, rtol=1e-5, atol=1e-12)
