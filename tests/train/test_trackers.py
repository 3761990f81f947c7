"""Trackers get every number of a run once, however often it is interrupted; read back with their own readers."""

import csv
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from lightning.pytorch.loggers import Logger

from calibrant.cli import main
from calibrant.errors import InputError
from calibrant.recipes import Recipe
from calibrant.runs import Run, RunFolder
from calibrant.study import Study
from calibrant.train import fit
from calibrant.train.trackers import Tracking

EPOCHS = 3
FINAL = EPOCHS + 1


class StoppedError(Exception):
    """As if the process were killed."""


def small(loss: str, logger: Any, **fields: Any) -> Recipe:
    options = {"epochs": EPOCHS, "model": "mlp", "data.limit": 60, "trainer.logger": logger, **fields}
    return Recipe.load("digits", loss=loss, **options)


def stop(*_: Any) -> NoReturn:
    raise StoppedError


def interrupted(recipe: Recipe, folder: Path) -> Run:
    """Killed between checkpoint and tracker, after the tracker, and between the final table and the end; then resumed."""
    send = Tracking.on_train_epoch_end

    def send_and_stop(self: Tracking, *arguments: Any) -> None:
        send(self, *arguments)
        stop()

    places = [(Tracking, "on_train_epoch_end", stop), (Tracking, "on_train_epoch_end", send_and_stop)]
    for owner, name, replacement in [*places, (RunFolder, "write_result", stop)]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, replacement)
            with pytest.raises(StoppedError):
                fit(recipe, folder, quiet=True)
    run = fit(recipe, folder, quiet=True)
    assert run is not None
    return run


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A file store of MLflow."""
    pytest.importorskip("mlflow")
    uri = f"file:{tmp_path_factory.mktemp('mlflow')}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        yield uri


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, store: str) -> Run:
    del store
    recipe = small("cals-alm", ["csv", "tensorboard", "mlflow"])
    return interrupted(recipe, tmp_path_factory.mktemp("run") / "mine")


def expected(run: Run) -> dict[str, list[tuple[int, float]]]:
    """What a tracker should have, by name: steps and values."""
    found: dict[str, list[tuple[int, float]]] = {}
    for step, row in enumerate(run.folder.history(), 1):
        for name, value in row.items():
            found.setdefault(name, []).append((step, value))
    for part in ("test", "test_after_temperature"):
        audit = getattr(run.result, part)
        found |= {f"{part}/{record.key}": [(FINAL, audit[record.key])] for record in audit.shown(2)}
    assert {"train_loss", "ece", "multipliers_mean", "test/ece", "test_after_temperature/nll"} <= set(found)
    assert len(found["ece"]) == EPOCHS
    return {**found, "temperature": [(FINAL, run.result.temperature)]}


def test_csv_has_every_row_once(run: Run) -> None:
    with (run.folder.logs / "csv" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    for name, points in expected(run).items():
        assert [(int(row["step"]), float(row[name])) for row in rows if row[name]] == points
    assert (run.folder.logs / "results.md").read_text() == run.result.markdown()
    assert (run.folder.logs / "reliability.png").stat().st_size > 5000


def test_tensorboard_has_every_row_once(run: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.folder.logs / "tensorboard"), purge_orphaned_data=False).Reload()
    tags = events.Tags()
    for name, points in expected(run).items():
        assert [(e.step, pytest.approx(e.value, rel=1e-6)) for e in events.Scalars(name)] == points, name
    assert set(tags["images"]) == {"reliability", "multipliers"}
    for name in tags["images"]:
        (image,) = events.Images(name)
        assert image.encoded_image_string.startswith(b"\x89PNG")
        assert image.width > 300
    (text,) = events.Tensors("results/text_summary")
    assert text.tensor_proto.string_val[0].decode() == run.result.markdown()


def test_mlflow_has_every_row_once(run: Run, store: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("digits")
    (found,) = client.search_runs([experiment.experiment_id])  # not one for each start
    assert (found.info.run_name, found.info.status) == ("mine", "FINISHED")
    assert found.data.params["loss/name"] == "cals-alm"
    for name, points in expected(run).items():
        history = client.get_metric_history(found.info.run_id, name)
        assert sorted((m.step, m.value) for m in history) == points, name
    files = [file.path for place in ("", "figures") for file in client.list_artifacts(found.info.run_id, place)]
    assert files == ["figures", "results.md", "figures/multipliers.png", "figures/reliability.png"]
    text = Path(client.download_artifacts(found.info.run_id, "results.md")).read_text()
    assert text == run.result.markdown()
    assert "| ECE, % |" in text


@pytest.fixture
def _quick_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda _, path, **__: Path(path).write_bytes(b""))


@pytest.mark.usefixtures("_quick_figures")
def test_runs_of_a_study_are_filed_under_it(tmp_path: Path, store: str) -> None:
    from mlflow import MlflowClient

    study = Study(small("ce", "mlflow", epochs=1), losses=["ce", "adafocal"], seeds=1, out=tmp_path / "my-study")
    study.run()
    client = MlflowClient(store)
    found = client.search_runs([client.get_experiment_by_name("my-study").experiment_id])
    assert {one.info.run_name for one in found} == {"ce-seed0", "adafocal-seed0"}
    by_name = {one.info.run_name: one for one in found}
    assert by_name["ce-seed0"].data.metrics["test/ece"] == study.state.done[study.jobs[0].folder].test["ece"]
    assert "gammas_mean" in by_name["adafocal-seed0"].data.metrics
    figures = [file.path for file in client.list_artifacts(by_name["adafocal-seed0"].info.run_id, "figures")]
    assert figures == ["figures/gammas.png", "figures/reliability.png"]


class Silent(Logger):
    """A logger of one's own."""

    name, version = "silent", 0
    seen: list[tuple[int, str]] = []  # noqa: RUF012

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        self.broken = broken

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        if self.broken:
            raise ConnectionError("the server is down")
        self.seen.append((step, next(iter(metrics))))

    def log_hyperparams(self, params: Any) -> None:
        assert params["loss"]["name"] == "ce"


@pytest.mark.usefixtures("_quick_figures")
def test_a_logger_of_ones_own(tmp_path: Path) -> None:
    own = {"class_path": f"{__name__}.Silent"}
    sys.modules.setdefault(__name__, sys.modules[Silent.__module__])
    with pytest.raises(InputError, match="code outside calibrant"):
        fit(small("ce", own), tmp_path / "run", quiet=True)
    run = fit(small("ce", own, epochs=2), tmp_path / "run", quiet=True, allow_code=True)
    before = run.folder.environment().id
    assert [step for step, _ in Silent.seen] == [1, 2, 3]
    assert Silent.seen[-1][1] == "temperature"
    wrong = {**own, "init_args": {"colour": 1}}
    with pytest.raises(InputError, match="does not take these init_args: .*colour"):
        fit(small("ce", wrong), tmp_path / "run", quiet=True, allow_code=True, force=True)
    broken = {**own, "init_args": {"broken": True}}
    with pytest.raises(InputError, match="Silent: ConnectionError: the server is down; the run is kept: run the same"):
        fit(small("ce", broken), tmp_path / "run", quiet=True, allow_code=True, force=True)
    assert run.folder.trained
    assert run.folder.environment().id != before  # started over, it is another run


def test_missing_packages_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "mlflow", "tensorboard", "trackio"):
        monkeypatch.setitem(sys.modules, name, None)
        assert main(["train", "digits", "--trainer.logger", name]) == 2
        assert f"trainer.logger {name} needs {name}, which is not installed: pip install {name}" in capsys.readouterr().err


# Those that the tests do not install


def wandb_records(data: bytes) -> Iterator[bytes]:
    """Records of W&B's file: after 7 bytes, blocks of 32 kB with pieces of records; type 1 is whole, 2 to 4 are parts."""
    place, record = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            yield record
            record = b""


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = interrupted(small("cals-alm", "wandb"), tmp_path / "mine")
    (log,) = (run.folder.logs / "wandb").glob("offline-run-*/run-*.wandb")
    rows, meta = [], None
    for data in wandb_records(log.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append({item.key or item.nested_key[0]: item.value_json for item in record.history.item})
        elif record.WhichOneof("record_type") == "run":
            meta = record.run
    assert (meta.display_name, meta.run_group, meta.run_id) == ("mine", "digits", run.folder.environment().id)
    assert [row["trainer/global_step"] for row in rows] == ["1", "2", "3", "4"]
    for name, points in expected(run).items():
        assert [float(row[name]) for row in rows if name in row] == pytest.approx([value for _, value in points])
    assert {"results", "reliability", "multipliers"} <= set(rows[-1])


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    run = interrupted(small("cals-alm", "trackio"), tmp_path / "mine")
    name = f"mine-{run.folder.environment().id[:6]}"
    (found,) = [one for one in trackio.Api().runs("digits") if one.name == name]
    logged = trackio.sqlite_storage.SQLiteStorage.get_logs("digits", name, run_id=found.id)
    for key, points in expected(run).items():
        assert [(row["step"], pytest.approx(row[key])) for row in logged if key in row] == points, key
    assert {"results", "reliability", "multipliers"} <= set(logged[-1])
