"""Searches over hyper-parameters: their results, and their folders."""

import contextlib
import csv
import io
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from calibrant.errors import InputError
from calibrant.files import HIDDEN, read_json, write_json, write_text
from calibrant.metrics.panel import html_table, markdown_table
from calibrant.metrics.table import Measure, measure
from calibrant.records import from_plain
from calibrant.runs.folder import RunFolder, StudyFolder
from calibrant.runs.results import plain


@dataclass(frozen=True)
class TrialRecord:
    """One trial of a search over hyper-parameters.

    Attributes:
        number: Its number, from 0.
        options: The chosen fields and their values.
        state: Whether it is done, was ended early because it did not look promising, or failed.
        score: What is minimised or maximised, the mean over its seeds; NaN if it is not done.
        values: Measures on the held-out samples, means over its seeds.
        epochs: Epochs trained.
        problem: What went wrong.
        folders: Its run folders, inside that of the search.
    """

    number: int
    options: dict[str, Any]
    state: Literal["done", "pruned", "failed"]
    score: float
    values: dict[str, float] = field(default_factory=dict)
    epochs: int = 0
    problem: str = ""
    folders: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TuningResult:
    """The result of a search over hyper-parameters.

    Attributes:
        recipe: Name of the recipe.
        loss: Key of the loss.
        by: The measure that trials are ranked by.
        space: The fields that were searched, and their values as text.
        scored: Held-out samples that trials are scored on.
        learned: Validation samples that adaptive losses and temperatures learn from meanwhile.
        trials: All trials that ended.
        repeats: Seeds of each trial.
    """

    recipe: str
    loss: str
    by: str
    space: dict[str, str]
    scored: int
    learned: int
    trials: list[TrialRecord]
    repeats: int = 1

    @property
    def best(self) -> TrialRecord:
        """The trial with the best score.

        Raises:
            InputError: If no trial is done.
        """
        done = [trial for trial in self.trials if trial.state == "done" and math.isfinite(trial.score)]
        if not done:
            problems = "; ".join(dict.fromkeys(trial.problem for trial in self.trials if trial.problem))
            raise InputError(f"no trial finished{f' ({problems})' if problems else ''}")
        return (max if measure(self.by).higher else min)(done, key=lambda trial: trial.score)

    @property
    def title(self) -> str:
        """Recipe, loss, and how trials were scored."""
        ended = {state: sum(trial.state == state for trial in self.trials) for state in ("done", "pruned", "failed")}
        counts = [f"{count} {state}" for state, count in ended.items() if count and state != "done"]
        more = f" ({', '.join(counts)})" if counts else ""
        trials = len(self.trials)
        return (
            f"{self.recipe}, {self.loss}: {trials} trial{'s' if trials != 1 else ''}{more}, ranked by "
            f"{measure(self.by).title} on {self.scored:,} held-out validation samples"
        )

    @property
    def winner(self) -> str:
        """The best trial and its options, and what the first trial scored, which usually has the recipe's own."""
        best, record = self.best, measure(self.by)
        options = ", ".join(f"{name} {_short(value)}" for name, value in best.options.items())
        first = next((trial for trial in self.trials if trial.number == 0 and trial.state == "done"), best)
        than = f"; trial 0 has {_value(record, first.values)}" if first.number != best.number else ""
        return f"best: trial {best.number}, {options}, with {record.label} {_value(record, best.values)}{than}"

    def __str__(self) -> str:
        return self.markdown()

    def _repr_html_(self) -> str:
        return html_table(*self.cells())

    def shown(self) -> list[str]:
        """Keys of the measures that tables show, first the one that trials are ranked by."""
        known = next((trial.values for trial in self.trials if trial.values), {})
        return [self.by, *(key for key in ("ece", "nll", "accuracy", "mean_iou") if key in known and key != self.by)]

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The table of trials, best first: columns and rows of text; the last column says why trials ended, if any did."""
        records = [measure(key) for key in self.shown()]
        rows = []
        for trial in self.ranked():
            values = [_value(record, trial.values) for record in records]
            options = [_short(trial.options[name]) if name in trial.options else "" for name in self.space]
            end = "" if trial.state == "done" else f"{trial.state}: {trial.problem}" if trial.problem else trial.state
            rows.append([str(trial.number), *options, *values, end])
        columns = ["trial", *self.space, *(record.label for record in records), ""]
        return (columns, rows) if any(row[-1] for row in rows) else (columns[:-1], [row[:-1] for row in rows])

    def ranked(self) -> list[TrialRecord]:
        """Trials, best first; those that are not done come last."""
        sign = -1 if measure(self.by).higher else 1
        done = [trial for trial in self.trials if trial.state == "done"]
        rest = [trial for trial in self.trials if trial.state != "done"]
        return [*sorted(done, key=lambda trial: sign * trial.score), *rest]

    def markdown(self) -> str:
        """The table in Markdown."""
        return f"{self.title}\n\n{markdown_table(*self.cells())}\n"

    def csv(self) -> str:
        """The table as .csv, with all digits and measures."""
        keys = [self.by, *sorted({key for trial in self.trials for key in trial.values} - {self.by})]
        text = io.StringIO()
        rows = csv.writer(text)
        rows.writerow(["trial", "state", *self.space, *keys, "problem"])
        for trial in self.ranked():
            options = [trial.options.get(name, "") for name in self.space]
            rows.writerow([trial.number, trial.state, *options, *(trial.values.get(key, "") for key in keys), trial.problem])
        return text.getvalue()


def _value(record: Measure, values: Mapping[str, float]) -> str:
    """A measure as tables show it; empty if it was not taken."""
    if record.key not in values:
        return ""
    return record.text(values[record.key])


def _short(value: Any) -> str:
    """A value as tables show it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class TuningFolder:
    """A search over hyper-parameters on disk: its trials, and a study of the best.

    Args:
        path: The folder.
    """

    def __init__(self, path: "str | Path | TuningFolder") -> None:
        self.path: Path = path.path if isinstance(path, TuningFolder) else Path(path)

    def __repr__(self) -> str:
        return f"TuningFolder({str(self.path)!r})"

    def __str__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def _tuning(self) -> Path:
        return self.path / "tuning.json"

    @property
    def there(self) -> bool:
        """Whether a search was written here."""
        return self._tuning.exists()

    @property
    def started(self) -> bool:
        """Whether a search was started here."""
        return self.journal.exists()

    @property
    def journal(self) -> Path:
        """Optuna's record of all trials, to which it only appends."""
        return self.path / "trials.log"

    @property
    def lock(self) -> Path:
        """Held while trials run."""
        return self.path / f"{HIDDEN}lock"

    @property
    def recipe(self) -> Path:
        """The recipe with the best options, for calibrant train."""
        return self.path / "best.yaml"

    def best(self, number: int) -> StudyFolder:
        """The study of the best options, which are those of a trial."""
        return StudyFolder(self.path / f"best-trial{number:03d}")

    @property
    def figure(self) -> Path:
        """The score against each option."""
        return self.path / "search.png"

    @property
    def report(self) -> Path:
        """The report."""
        return self.path / "report.html"

    def trial(self, number: int, seed: int) -> RunFolder:
        """A run of a trial."""
        return RunFolder(self.path / "trials" / f"trial{number:03d}-seed{seed}")

    @property
    def foreign(self) -> bool:
        """Whether it holds files, but no search."""
        return not self.started and self.path.is_dir() and any(path != self.lock for path in self.path.iterdir())

    def mend(self) -> None:
        """Cut off what a full disk left of a line of the journal, and drop the lock of a search that was killed."""
        (self.path / f"{self.journal.name}.lock").unlink(missing_ok=True)
        content = self.journal.read_bytes() if self.started else b""
        if content and not content.endswith(b"\n"):
            with self.journal.open("rb+") as file:
                file.truncate(content.rfind(b"\n") + 1)

    def clear(self) -> None:
        """Delete the search, and nothing else."""
        inside = self.path / "trials"
        runs = [path for path in inside.glob("trial*") if re.fullmatch(r"trial\d{3,}-seed\d+", path.name)]
        for folder in (*runs, *(path for path in self.path.glob("best-*") if re.fullmatch(r"best-trial\d{3,}", path.name))):
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # if there is anything else
            inside.rmdir()
        tables = (self.path / f"trials.{ending}" for ending in ("md", "csv"))
        for path in (self._tuning, self.recipe, self.figure, self.report, self.journal, *tables):
            path.unlink(missing_ok=True)

    def result(self) -> TuningResult:
        """The result of the search.

        Raises:
            InputError: If there is none here.
        """
        if not self.there:
            raise InputError(f"{self.path} holds no search: it has no {self._tuning.name}")
        return from_plain(TuningResult, read_json(self._tuning), str(self._tuning))

    def write_result(self, result: TuningResult) -> None:
        """Write the result of the search, and its table."""
        write_json(self._tuning, plain(result))
        write_text(self.path / "trials.md", result.markdown())
        write_text(self.path / "trials.csv", result.csv())
