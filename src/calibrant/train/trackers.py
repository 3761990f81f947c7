"""Experiment trackers: TensorBoard, MLflow, Weights & Biases, trackio, CSV files."""

import contextlib
import inspect
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as lightning
from lightning.pytorch import loggers
from lightning.pytorch.loggers.logger import Logger

from calibrant.errors import InputError
from calibrant.extras import require
from calibrant.files import write_text
from calibrant.recipes import Recipe, import_name
from calibrant.runs import STAGES, RunFolder, RunResult
from calibrant.train.engine import Keeper

#: Short names of loggers: the class in Lightning, or here, and the package it needs.
LOGGERS = {
    "wandb": ("WandbLogger", "wandb"),
    "mlflow": ("MLFlowLogger", "mlflow"),
    "tensorboard": ("TensorBoardLogger", "tensorboard"),
    "csv": ("CSVLogger", ""),
    "trackio": ("TrackioLogger", "trackio"),
    "comet": ("CometLogger", "comet_ml"),
}
#: The tag by which a run is found again in MLflow.
TAG = "calibrant.run"


class TrackioLogger(Logger):
    """A logger for trackio, which Lightning lacks.

    Args:
        project: The project.
        name: The run, resumed if it exists.
        group: The group of the run.
    """

    def __init__(self, project: str, name: str, group: str | None = None) -> None:
        super().__init__()
        self._project, self._name, self._group = project, name, group
        self._run: Any = None

    @property
    def experiment(self) -> Any:
        """The run, started when it is first needed."""
        if self._run is None:
            with contextlib.redirect_stdout(sys.stderr):  # which it greets
                init = require("trackio", "trainer.logger trackio").init
                self._run = init(self._project, self._name, self._group, resume="allow", embed=False, auto_log_cpu=False)
        return self._run

    @property
    def name(self) -> str:
        """The project."""
        return self._project

    @property
    def version(self) -> str:
        """The run."""
        return self._name

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Describe the run."""
        del args, kwargs
        self.experiment.config.update(params)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log numbers, or trackio's images and texts."""
        self.experiment.log(dict(metrics), step=step)

    def finalize(self, status: str) -> None:
        """Wait until everything is stored."""
        del status
        if self._run is not None:
            with contextlib.redirect_stdout(sys.stderr):
                self._run.finish()
            self._run = None


# What each of them has after a restart, and how it takes tables and figures


class Final(NamedTuple):
    """What a finished run adds to its history.

    Attributes:
        row: Test metrics before and after temperature scaling.
        table: The table of the run.
        columns: Columns of the table.
        rows: Rows of the table.
        figures: Files of figures by name.
    """

    row: dict[str, float]
    table: str
    columns: list[str]
    rows: list[list[str]]
    figures: dict[str, Path]


class Tracker:
    """A logger that gets every row of a run once, however often the run is interrupted.

    Row n of the history is logged as step n, and the final results as the step after the last. A logger that calibrant does
    not know is assumed to have the rows of the checkpoint from which a run is resumed.

    Args:
        name: Its name in the recipe.
        logger: The logger.
        folder: Folder of the run's logs.
    """

    def __init__(self, name: str, logger: Any, folder: Path) -> None:
        self.name, self.logger, self.folder = name, logger, folder

    def start(self, fields: dict[str, Any], saved: int) -> int:
        """Describe the run by the fields of its recipe, and return how many rows the tracker has.

        Args:
            fields: The fields.
            saved: Rows in the checkpoint from which the run is resumed.
        """
        if not saved:
            self.logger.log_hyperparams(fields)
        return saved

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Log a row."""
        self.logger.log_metrics(row, step)
        self.logger.save()

    def finish(self, final: Final, step: int) -> None:
        """Log the final results; by default only the numbers, as table and figures are files in the run folder."""
        self.log(final.row, step)

    def close(self, *, ok: bool) -> None:
        """End the run, successfully or not."""
        self.logger.finalize("success" if ok else "failed")

    def _inside(self, path: str | None) -> bool:
        """Whether a folder is part of the run's, so that it can be written anew."""
        return path is not None and Path(path).resolve().is_relative_to(self.folder.resolve())


class _Files(Tracker):
    """A logger of files; those in the run folder are written anew after a restart."""

    def start(self, fields: dict[str, Any], saved: int) -> int:
        if not self._inside(self.logger.log_dir):
            return super().start(fields, saved)
        shutil.rmtree(self.logger.log_dir, ignore_errors=True)
        return super().start(fields, 0)


class _TensorBoard(_Files):
    def finish(self, final: Final, step: int) -> None:
        from matplotlib.image import imread  # noqa: PLC0415 - slow to import

        super().finish(final, step)
        writer = self.logger.experiment
        writer.add_text("results", final.table, step)
        for name, path in final.figures.items():
            writer.add_image(name, imread(path), step, dataformats="HWC")
        writer.flush()


class _MLflow(Tracker):
    def start(self, fields: dict[str, Any], saved: int) -> int:
        del saved
        self.id, client = self.logger.run_id, self.logger.experiment
        found = client.get_run(self.id).data
        client.update_run(self.id, status="RUNNING")  # an interrupted one has failed
        self.known = {key: {m.step for m in client.get_metric_history(self.id, key)} for key in found.metrics}
        if not found.params:  # they cannot be changed
            self.logger.log_hyperparams(fields)
        return 0

    def log(self, row: Mapping[str, Any], step: int) -> None:
        missing = {key: value for key, value in row.items() if step not in self.known.get(key, ())}
        if missing:
            super().log(missing, step)

    def finish(self, final: Final, step: int) -> None:
        super().finish(final, step)
        self.logger.experiment.log_text(self.id, final.table, "results.md")
        for path in final.figures.values():
            self.logger.experiment.log_artifact(self.id, str(path), "figures")


class _Wandb(Tracker):
    def start(self, fields: dict[str, Any], saved: int) -> int:
        self.wandb = require("wandb", "trainer.logger wandb")
        self.ours = self.wandb.run is None  # otherwise Lightning logs to the run in progress
        if self._inside(self.logger.save_dir):
            shutil.rmtree(Path(self.logger.save_dir) / "wandb", ignore_errors=True)  # of an offline run, logged again
            Path(self.logger.save_dir).mkdir(parents=True, exist_ok=True)
        self.logger.log_hyperparams(fields)
        return int(self.logger.experiment.step) if self.ours else saved

    def finish(self, final: Final, step: int) -> None:
        images = {name: self.wandb.Image(str(path)) for name, path in final.figures.items()}
        self.log({**final.row, "results": self.wandb.Table(columns=final.columns, data=final.rows), **images}, step)

    def close(self, *, ok: bool) -> None:
        super().close(ok=ok)
        if self.ours:
            self.logger.experiment.finish(exit_code=0 if ok else 1)


class _Trackio(Tracker):
    def start(self, fields: dict[str, Any], saved: int) -> int:
        del saved
        self.logger.log_hyperparams(fields)
        return max(0, int(self.logger.experiment._next_step) - 1)  # noqa: SLF001 - there is no other way to ask

    def finish(self, final: Final, step: int) -> None:
        trackio = require("trackio", "trainer.logger trackio")
        images = {name: trackio.Image(str(path)) for name, path in final.figures.items()}
        self.log({**final.row, "results": trackio.Markdown(final.table), **images}, step)


#: How to treat loggers, by class.
KINDS: Mapping[type[Logger], type[Tracker]] = {
    loggers.CSVLogger: _Files,
    loggers.TensorBoardLogger: _TensorBoard,
    loggers.MLFlowLogger: _MLflow,
    loggers.WandbLogger: _Wandb,
    TrackioLogger: _Trackio,
}


class Tracking(lightning.Callback):
    """Sends the history of a run to its trackers: each row when its checkpoint is written, and the final results.

    Args:
        keeper: The keeper of the history, a callback before this one.
        recipe: The recipe.
    """

    def __init__(self, keeper: Keeper, recipe: Recipe) -> None:
        self.keeper, self.recipe = keeper, recipe
        self.trackers: list[Tracker] = []
        self._sent: dict[Tracker, int] = {}

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Start, with what the trackers lack of an interrupted run."""
        del trainer, pl_module
        self._send()

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Send the rows of the epoch."""
        del trainer, pl_module
        self._send()

    def finish(self, result: RunResult, folder: RunFolder) -> None:
        """Send the final results."""
        if not self.trackers:
            return
        self._send()
        step, final = len(self.keeper.rows) + 1, _final(result, folder)
        for tracker in self.trackers:
            if self._sent[tracker] < step:
                with _naming(tracker.name):
                    tracker.finish(final, step)

    def _send(self) -> None:
        rows = self.keeper.rows
        for tracker in self.trackers:
            with _naming(tracker.name):
                if tracker not in self._sent:
                    self._sent[tracker] = tracker.start(self.recipe.to_dict(), len(rows))
                for step in range(self._sent[tracker] + 1, len(rows) + 1):
                    tracker.log(rows[step - 1], step)
            self._sent[tracker] = max(self._sent[tracker], len(rows))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """End the runs of all trackers afterwards, as failed if there was an error."""
        try:
            yield
        except BaseException:
            for tracker in self._sent:
                with contextlib.suppress(Exception):  # the first error is the one to show
                    tracker.close(ok=False)
            raise
        for tracker in self._sent:
            with _naming(tracker.name):
                tracker.close(ok=True)


def _final(result: RunResult, folder: RunFolder) -> Final:
    """The final results; table and figures are also written to the folder of the logs."""
    from calibrant.audit.tables import figure  # noqa: PLC0415 - matplotlib is slow to import
    from calibrant.report.collect import Collected, Source  # noqa: PLC0415
    from calibrant.report.figures import gammas, multipliers, save  # noqa: PLC0415

    row = {"temperature": result.temperature}
    for part, audit in {"test": result.test, "test_after_temperature": result.test_after_temperature}.items():
        row |= {f"{part}/{record.key}": audit[record.key] for record in audit.shown(2)}
    source = Source({stage: result.at(stage) for stage in STAGES}, {}, learned=folder.learned())
    drawn = {
        "reliability": figure([result.test, result.test_after_temperature]),
        "multipliers": multipliers(Collected("", [], {result.loss: [source]})),
        "gammas": gammas({result.loss: [source]}),
    }
    options: Any = {"force": True, "endings": ["png"]}
    figures = {name: save(folder.logs, name, made, **options)[0] for name, made in drawn.items() if made is not None}
    write_text(folder.logs / "results.md", result.markdown())
    return Final(row, result.markdown(), *result.cells(), figures)


# From a recipe


def check_loggers(value: Any, *, allow_code: bool = False) -> None:
    """Refuse loggers that do not exist, or whose package is not installed."""
    for one in _listed(value):
        kind = _logger_class(one, allow_code=allow_code)
        if isinstance(one, str):
            package = next((package for name, package in LOGGERS.values() if name == kind.__name__), "")
            try:
                _ = package and require(package, f"trainer.logger {one}")
            except ModuleNotFoundError as error:
                raise InputError(str(error)) from error
        else:
            try:
                inspect.signature(kind).bind(**dict(one.get("init_args") or {}))
            except TypeError as error:
                raise InputError(f"trainer.logger: {one['class_path']} does not take these init_args: {error}") from error


def make_trackers(value: Any, folder: RunFolder, *, group: str, allow_code: bool = False) -> list[Tracker]:
    """Trackers by name, or by ``{"class_path": ..., "init_args": {...}}``.

    Args:
        value: The ``logger`` of the trainer's options.
        folder: The run folder; runs are named after it.
        group: What trackers file the run under: the study, or the recipe.
        allow_code: Allow code from outside calibrant.
    """
    made = []
    for one in _listed(value):
        kind = _logger_class(one, allow_code=allow_code)
        name = one if isinstance(one, str) else str(one["class_path"])
        with _naming(name, "") if isinstance(one, str) else contextlib.nullcontext():
            options = _options(kind, folder, group) if isinstance(one, str) else dict(one.get("init_args") or {})
            logger = kind(**options)
        tracker = next((own for base, own in KINDS.items() if isinstance(logger, base)), Tracker)
        made.append(tracker(name, logger, folder.logs))
    return made


def _options(kind: Any, folder: RunFolder, group: str) -> dict[str, Any]:
    """Options of a logger chosen by name: the run is named after its folder, and files are in its logs."""
    environment, place = folder.environment(), str(folder.logs)
    run = "" if environment is None else environment.id
    if kind is loggers.CSVLogger:
        return {"save_dir": place, "name": "", "version": "csv"}
    if kind is loggers.TensorBoardLogger:
        return {"save_dir": place, "name": "", "version": "tensorboard", "default_hp_metric": False}
    if kind is loggers.WandbLogger:
        project = os.environ.get("WANDB_PROJECT", "calibrant")
        settings = require("wandb", "trainer.logger wandb").Settings(console="off")
        return {"save_dir": place, "name": folder.name, "id": run, "project": project, "group": group, "settings": settings}
    if kind is loggers.MLFlowLogger:
        return _mlflow_options(folder.name, run, group)
    if kind is TrackioLogger:  # which finds runs by name
        return {"project": group, "name": f"{folder.name}-{run[:6]}"}
    accepted = inspect.signature(kind).parameters
    return {key: value for key, value in {"save_dir": place, "name": folder.name}.items() if key in accepted}


def _mlflow_options(name: str, run: str, group: str) -> dict[str, Any]:
    """Where MLflow itself is told to log, and the run there if it was interrupted."""
    mlflow = require("mlflow", "trainer.logger mlflow")
    where = mlflow.get_tracking_uri()
    options = {"experiment_name": group, "tracking_uri": where}
    client = mlflow.MlflowClient(where)
    if client.get_experiment_by_name(group) is None:
        with contextlib.suppress(mlflow.MlflowException):  # another run of the study may do the same
            client.create_experiment(group)
    found = client.search_runs([client.get_experiment_by_name(group).experiment_id], f"tags.`{TAG}` = '{run}'")
    return {**options, **({"run_id": found[0].info.run_id} if found else {"run_name": name, "tags": {TAG: run}})}


@contextlib.contextmanager
def _naming(name: str, cure: str = "; the run is kept: run the same command again to resume it") -> Iterator[None]:
    """Say which tracker went wrong; they raise all kinds of errors."""
    try:
        yield
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"trainer.logger {name}: {said}{cure}") from error


def _listed(value: Any) -> list[Any]:
    return [] if value is None or value is False else list(value) if isinstance(value, list | tuple) else [value]


def _logger_class(value: Any, *, allow_code: bool) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("class_path"), str):
        return import_name(value["class_path"], allow_code=allow_code)
    name = LOGGERS.get(value, (value, ""))[0] if isinstance(value, str) else ""
    if name == TrackioLogger.__name__:
        return TrackioLogger
    kind = getattr(loggers, name, None) if name in loggers.__all__ and name != "Logger" else None
    if kind is None:
        raise InputError(
            f"trainer.logger must be one of {', '.join(LOGGERS)}, the name of one of Lightning's loggers, or with "
            f"`allow_code=True` {{class_path: package.module.Logger}}; got {value!r}"
        )
    return kind
