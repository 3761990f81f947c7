"""Test measures by epoch: right, resumed bit for bit, and without any influence on training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from calibrant.errors import InputError
from calibrant.metrics import Panel
from calibrant.recipes import Data, Model, Optimizer, Recipe
from calibrant.runs import Run
from calibrant.train import engine, fit

RECIPE = Recipe(
    name="curves",
    data=Data(limit=120),
    model=Model("small-cnn"),  # with batch normalisation
    loss="adafocal",
    optimizer=Optimizer("adam", lr=1e-2),
    epochs=3,
    batch_size=40,
    select="ece",
    curves="test",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = fit(RECIPE, tmp_path_factory.mktemp("curves") / "run", quiet=True)
    assert run is not None
    return run


def weights(run: Run, name: str = "last") -> dict[str, Any]:
    return torch.load(run.folder.checkpoint(name), weights_only=True)["state_dict"]


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_the_curve_ends_at_the_result(tmp_path: Path) -> None:
    run = fit(replace(RECIPE, select="last", loss="ce"), tmp_path / "run", quiet=True)
    assert run is not None
    last = run.folder.history()[-1]
    logits, target = run.folder.open("test").read_all()
    panel = Panel(10)
    panel.update(logits, target)
    for key in ("accuracy", "ece", "nll", "adaptive_ece", "classwise_ece"):
        assert last[f"test_{key}"] == pytest.approx(run.test[key], abs=2e-3)
        assert last[f"test_{key}"] == pytest.approx(panel.compute()[key], abs=1e-5)


def test_it_changes_nothing_else(finished: Run, tmp_path: Path) -> None:
    plain = fit(replace(RECIPE, curves="validation"), tmp_path / "run", quiet=True)
    assert plain is not None
    assert not any(name.startswith("test_") for name in plain.folder.history()[0])
    for name in ("last", "best"):
        a, b = weights(finished, name), weights(plain, name)
        assert all(torch.equal(a[key], b[key]) for key in a)
    rows = without_times(finished.folder.history())
    assert [{k: v for k, v in row.items() if not k.startswith("test_")} for row in rows] == without_times(
        plain.folder.history()
    )


def test_a_resumed_run_has_the_same_curves(finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = engine.Module._measure_test

    def interrupted(module: engine.Module) -> Any:
        if module.current_epoch == 2:
            raise KeyboardInterrupt
        return real(module)

    monkeypatch.setattr(engine.Module, "_measure_test", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(RECIPE, tmp_path / "run", quiet=True)
    monkeypatch.setattr(engine.Module, "_measure_test", real)
    resumed = fit(RECIPE, tmp_path / "run", quiet=True)
    assert resumed is not None
    assert without_times(resumed.folder.history()) == without_times(finished.folder.history())
    a, b = finished.folder.bins(), resumed.folder.bins()
    assert a is not None
    assert b is not None
    for name in ("epochs", "edges", "counts", "confidence", "accuracy"):
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes()


def test_curves_that_are_not_there_are_not_made_up(finished: Run) -> None:
    with pytest.raises(InputError, match=r"another recipe \(curves was 'test', now 'validation'\)"):
        fit(replace(RECIPE, curves="validation"), finished.folder, quiet=True)
    with pytest.raises(InputError, match="curves"):
        fit(replace(RECIPE, curves="both"), finished.folder.path.parent / "other", quiet=True)  # type: ignore[arg-type]
