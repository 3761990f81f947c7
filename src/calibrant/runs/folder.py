"""Folders of runs and studies: the only place that knows the names of their files."""

import contextlib
import csv
import io
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.audit import Audit
from calibrant.errors import InputError, input_errors
from calibrant.files import HIDDEN, file_name, locked, read_json, read_text, replacing, write_json, write_text
from calibrant.metrics import EpochBins
from calibrant.predictions import Predictions, open_predictions
from calibrant.recipes import Recipe
from calibrant.recipes.recipe import read_yaml
from calibrant.records import from_plain
from calibrant.runs.results import Environment, OODResult, RunResult, ShiftResult, StudyResult, pairs, plain

Row = dict[str, float | None]


class RunFolder:
    """A run on disk.

    Args:
        path: The folder.
    """

    #: Files written by a run and by later evaluation of it.
    FOLDERS = ("checkpoints", "predictions", "logs", "figures")
    FILES = (
        *("metrics.json", "ood.json", "ood-*.png", "shift.json", "shift.png", "error.txt"),
        *("history.csv", "learned.npz", "bins.npz", "split.npz", "environment.json", "recipe.yaml"),
    )

    def __init__(self, path: "str | Path | RunFolder") -> None:
        self.path: Path = path.path if isinstance(path, RunFolder) else Path(path)

    @staticmethod
    def usual(recipe: Recipe) -> "RunFolder":
        """The default folder of a run: ``runs/RECIPE/LOSS-seedN``."""
        return RunFolder(Path("runs") / file_name(recipe.name) / file_name(f"{recipe.loss.name}-seed{recipe.seed}"))

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def __str__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunFolder) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    # State

    @property
    def started(self) -> bool:
        """Whether a run was started here."""
        return self._recipe.exists()

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return self._metrics.exists()

    @property
    def trained(self) -> bool:
        """Whether there is something that would be lost: an epoch, or a result."""
        return self.finished or any(self.checkpoint(name).exists() for name in ("last", "previous"))

    @property
    def foreign(self) -> bool:
        """Whether the folder holds something other than a run."""
        if self.started or not self.path.exists():
            return False
        ours = (HIDDEN, self.error.name)  # left by a failed start
        return not self.path.is_dir() or any(not path.name.startswith(ours) for path in self.path.iterdir())

    def owns(self, path: Path) -> bool:
        """Whether a file belongs to the run here."""
        if not self.started:
            return False
        inside = path.parent.name in self.FOLDERS and path.parent.parent == self.path
        return inside or (path.parent == self.path and any(path.match(name) for name in self.FILES))

    def require_finished(self) -> None:
        """Refuse a folder that holds no finished run."""
        if not self.started:
            raise InputError(f"{self.path} is not a run folder: it has no {self._recipe.name}")
        if not self.finished:
            raise InputError(f"{self.path} is not finished: run the same calibrant train command again to resume it")

    def clear(self) -> None:
        """Delete the run, and nothing else: the result first, and last what makes it a run folder."""
        *others, recipe = self.FILES
        for path in (path for name in others for path in self.path.glob(name)):
            path.unlink()
        for name in self.FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)
        (self.path / recipe).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove half-written files of a killed process, unless another process is at work here."""
        if self._lock.exists():
            with contextlib.suppress(InputError, OSError), self.claimed():
                pass

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Lock the folder for this process, and remove half-written files of a killed one.

        Raises:
            InputError: If another process is at work here.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = self._lock
        try:
            with locked(lock, str(self)):
                for folder in (self.path, *(self.path / name for name in self.FOLDERS)):
                    for path in (*folder.glob(f"{HIDDEN}*"), *folder.glob("new*.ckpt")):
                        if path != lock:
                            path.unlink()
                yield
        finally:
            with contextlib.suppress(OSError):  # it is not empty
                self.path.rmdir()

    # Files

    @property
    def _lock(self) -> Path:
        return self.path / f"{HIDDEN}lock"

    @property
    def _recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def _environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def _history(self) -> Path:
        return self.path / "history.csv"

    @property
    def _learned(self) -> Path:
        return self.path / "learned.npz"

    @property
    def _bins(self) -> Path:
        return self.path / "bins.npz"

    @property
    def _ood(self) -> Path:
        return self.path / "ood.json"

    @property
    def _shift(self) -> Path:
        return self.path / "shift.json"

    def checkpoint(self, name: str) -> Path:
        """A checkpoint: ``last``, ``previous``, ``best``, or ``new`` and ``new-best`` while these are being written."""
        return self.path / "checkpoints" / f"{name}.ckpt"

    @property
    def error(self) -> Path:
        """The traceback of a failed run."""
        return self.path / "error.txt"

    @property
    def figures(self) -> Path:
        """Folder of figures."""
        return self.path / "figures"

    @property
    def logs(self) -> Path:
        """Folder of what experiment trackers write, and of the final table and figures they get."""
        return self.path / "logs"

    @property
    def shift_figure(self) -> Path:
        """Curves on corrupted test images."""
        return self.path / "shift.png"

    def ood_figure(self, name: str) -> Path:
        """ROC curves of OOD detection."""
        return self.path / f"{self.ood_predictions(name).stem}.png"

    def predictions(self, part: str = "test") -> Path:
        """The prediction file of a part."""
        return self.path / "predictions" / f"{part}.npz"

    def ood_predictions(self, name: str) -> Path:
        """The prediction file of OOD data."""
        short = "".join(c if c.isalnum() or c in "-_." else "_" for c in name.removesuffix(".npz")).strip("._")
        unlike = "" if short == name.replace(":", "_") else f"-{zlib.crc32(name.encode()):08x}"  # a/b is not a_b
        return self.predictions(f"ood-{short}{unlike}")

    def open(self, part: str = "test") -> Predictions:
        """Open the predictions of a part."""
        return open_predictions(self.predictions(part))

    # Contents

    def recipe(self) -> Recipe:
        """The recipe, with every field."""
        return Recipe.load(read_yaml(self._recipe))

    def write_recipe(self, recipe: Recipe) -> None:
        """Write the recipe; from then on this is a run folder."""
        write_text(self._recipe, recipe.to_yaml())
        self.checkpoint("last").parent.mkdir(exist_ok=True)

    def recipe_text(self) -> str:
        """The text of the recipe file."""
        return read_text(self._recipe)

    def result(self) -> RunResult:
        """The result of the run.

        Raises:
            InputError: If this is not a finished run.
        """
        self.require_finished()
        return from_plain(RunResult, read_json(self._metrics), str(self._metrics))

    def write_result(self, result: RunResult) -> None:
        """Write the result of the run, which is then finished."""
        write_json(self._metrics, plain(result))

    def environment(self) -> Environment | None:
        """What the run depends on besides its recipe; None if it was never written."""
        found = read_json(self._environment)
        return from_plain(Environment, found, str(self._environment)) if found else None

    def write_environment(self, environment: Environment) -> None:
        """Write what the run depends on."""
        write_json(self._environment, plain(environment))

    def environment_text(self) -> str:
        """The text of the environment file."""
        return read_text(self._environment) if self._environment.exists() else ""

    def write_split(self, split: Mapping[str, np.ndarray]) -> None:
        """Write which samples went into which part."""
        _write_arrays(self.path / "split.npz", split)

    def history(self) -> list[Row]:
        """Losses and measures of each epoch; None where an epoch was not validated."""
        if not self._history.exists():
            return []
        with self._history.open(newline="") as file:
            try:
                return [{name: float(text) if text else None for name, text in row.items()} for row in csv.DictReader(file)]
            except (ValueError, TypeError, csv.Error) as error:
                raise InputError(f"{self._history} cannot be read ({error}); train again, or delete it") from error

    def learned(self) -> dict[str, np.ndarray]:
        """What an adaptive loss learned over time: one row per validation of each buffer, and the ``epoch`` of each row."""
        learned = _read_arrays(self._learned)
        rows = max(map(len, learned.values()), default=0)
        if learned and len(learned.get("epoch", ())) != rows:  # an older run, with one row per epoch
            learned["epoch"] = np.arange(1.0, rows + 1)
        return learned

    def bins(self) -> EpochBins | None:
        """Bins of training and validation samples over epochs; None if the run was never validated."""
        found = _read_arrays(self._bins)
        with input_errors(f"{self._bins} cannot be read; delete it", unfit=True):
            return EpochBins(**found) if found else None

    def write_history(
        self,
        rows: Sequence[Mapping[str, float]],
        learned: Mapping[str, np.ndarray],
        bins: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Write losses and measures of each epoch, what an adaptive loss has learned, and bins."""
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(rows)
        write_text(self._history, text.getvalue())
        if learned:
            _write_arrays(self._learned, learned)
        if bins:
            _write_arrays(self._bins, bins)

    def epochs_done(self) -> int:
        """Number of finished epochs."""
        try:
            with self._history.open() as file:
                return max((int(float(line.partition(",")[0])) for line in list(file)[1:]), default=0)
        except (OSError, ValueError):
            return 0

    def ood(self) -> dict[str, OODResult]:
        """Results of out-of-distribution detection, by name of the OOD data."""
        return dict(pairs(read_json(self._ood), OODResult, str(self._ood)))

    def write_ood(self, results: Mapping[str, OODResult]) -> None:
        """Write results of out-of-distribution detection."""
        write_json(self._ood, {name: plain(result) for name, result in results.items()})

    @property
    def ood_file(self) -> Path:
        """File of the results of out-of-distribution detection."""
        return self._ood

    def shift(self) -> ShiftResult | None:
        """Results on corrupted test images, if there are any."""
        found = read_json(self._shift)
        return from_plain(ShiftResult, found, str(self._shift)) if found else None

    def write_shift(self, result: ShiftResult) -> None:
        """Write results on corrupted test images."""
        write_json(self._shift, plain(result))

    def drop_beyond(self) -> None:
        """Delete results on OOD and corrupted data; predictions of OOD data stay."""
        for name in ("ood.json", "ood-*.png", "shift.json", "shift.png"):
            for path in self.path.glob(name):
                path.unlink()

    @property
    def shift_file(self) -> Path:
        """File of the results on corrupted test images."""
        return self._shift


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run.

    Attributes:
        folder: Its folder.
        recipe: Its recipe.
        result: Its result: ``run.result.test["ece"]`` and so on.
    """

    folder: RunFolder
    recipe: Recipe
    result: RunResult

    @staticmethod
    def load(path: "str | Path | RunFolder") -> "Run":
        """Read a run folder.

        Raises:
            InputError: If it is not a run folder, or the run is not finished.
        """
        folder = RunFolder(path)
        folder.require_finished()
        return Run(folder, folder.recipe(), folder.result())

    @property
    def test(self) -> Audit:
        """The audit of its test predictions."""
        return self.result.test

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.result!r})"

    def _repr_html_(self) -> str:
        return self.result._repr_html_()


class StudyFolder:
    """A study on disk: runs, tables and figures.

    Args:
        path: The folder.
    """

    def __init__(self, path: "str | Path | StudyFolder") -> None:
        self.path: Path = path.path if isinstance(path, StudyFolder) else Path(path)

    def __repr__(self) -> str:
        return f"StudyFolder({str(self.path)!r})"

    def __str__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def _study(self) -> Path:
        return self.path / "study.json"

    @property
    def there(self) -> bool:
        """Whether a study was written here."""
        return self._study.exists()

    def run(self, name: str) -> RunFolder:
        """A run of the study."""
        return RunFolder(self.path / name)

    def runs(self) -> list[RunFolder]:
        """All finished runs in the folder."""
        inside = [RunFolder(path) for path in sorted(self.path.iterdir())] if self.path.is_dir() else []
        return [run for run in inside if run.started and run.finished]

    def result(self) -> StudyResult:
        """The result of the study.

        Raises:
            InputError: If there is no study here.
        """
        if not self.there:
            raise InputError(f"{self.path} is not a study folder: it has no {self._study.name}")
        return from_plain(StudyResult, read_json(self._study), str(self._study))

    def write_result(self, result: StudyResult) -> None:
        """Write the result of the study."""
        write_json(self._study, plain(result))

    def write_table(self, ending: str, text: str) -> None:
        """Write the table as .md, .tex or .csv."""
        write_text(self.path / f"table.{ending}", text)

    @property
    def run_table(self) -> Path:
        """The metrics of every run, as .csv."""
        return self.path / "runs.csv"

    def write_runs(self, text: str) -> None:
        """Write the metrics of every run."""
        write_text(self.run_table, text)

    def figure(self, name: str) -> Path:
        """A figure of the study."""
        return self.path / f"{file_name(name)}.png"

    def drop_sweeps(self) -> None:
        """Delete the figures of swept options: another command may name them differently."""
        for path in self.path.glob("sweep*.png"):
            path.unlink()

    @property
    def report(self) -> Path:
        """The report."""
        return self.path / "report.html"


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except Exception as error:
        raise InputError(f"{path} cannot be read ({type(error).__name__}: {error}); delete it") from error


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with replacing(path, force=True) as temporary:
        content: dict[str, Any] = dict(arrays)
        np.savez(temporary, **content)
