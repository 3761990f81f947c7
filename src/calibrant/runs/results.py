"""Results of runs and studies, as records that convert to JSON and back."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from calibrant.audit import Audit
from calibrant.audit.tables import measures_table
from calibrant.errors import InputError
from calibrant.metrics.panel import html_table, markdown_table
from calibrant.metrics.table import measure
from calibrant.posthoc.temperature import Criterion
from calibrant.records import from_plain, to_plain
from calibrant.stats.student import quantile

if TYPE_CHECKING:
    from rich.table import Table

#: A measurement before and after temperature scaling.
Stage = Literal["before", "after"]
STAGES: tuple[Stage, ...] = ("before", "after")


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of a run.

    Attributes:
        recipe: Name of the recipe.
        loss: Key of the loss.
        seed: The seed.
        epochs: Epochs trained.
        reported: Which checkpoint is measured.
        parameters: Number of the network's parameters.
        validation: Its validation predictions.
        test: Its test predictions.
        temperature: The temperature fitted on the validation predictions.
        test_after_temperature: The test predictions after scaling with it.
        criterion: What the temperature minimises: ``"nll"`` or ``"ece"``.
        other_temperature: The temperature by the other criterion; None in older runs.
        test_after_other: The test predictions after scaling by it.
    """

    recipe: str
    loss: str
    seed: int
    epochs: int
    reported: str
    parameters: int
    validation: Audit
    test: Audit
    temperature: float
    test_after_temperature: Audit
    criterion: Criterion = "nll"
    other_temperature: float | None = None
    test_after_other: Audit | None = None

    def at(self, stage: Stage) -> Audit:
        """The test predictions before or after temperature scaling."""
        return self.test if stage == "before" else self.test_after_temperature

    def __repr__(self) -> str:
        shown = ", ".join(f"{record.label} {self.test.text(record)}" for record in self.test.shown(1))
        return f"RunResult({self.recipe}, {self.loss}, seed {self.seed}: {shown})"

    def scaled_by(self, criterion: Criterion) -> "RunResult":
        """The same result with the temperature by another criterion in place of its own.

        Raises:
            InputError: If it was not measured.
        """
        if criterion == self.criterion:
            return self
        if self.other_temperature is None or self.test_after_other is None:
            raise InputError(f"the temperature by {criterion.upper()} of {self._name()} was not measured; train it again")
        return replace(
            self,
            criterion=criterion,
            temperature=self.other_temperature,
            test_after_temperature=self.test_after_other,
            other_temperature=self.temperature,
            test_after_other=self.test_after_temperature,
        )

    def _audits(self) -> dict[str, Audit]:
        """Audits of the test predictions, by heading."""
        found = {
            "network": self.test,
            f"after temperature {self.temperature:.2f}, by {self.criterion.upper()}": self.test_after_temperature,
        }
        if self.other_temperature is not None and self.test_after_other is not None:
            found[f"{self.other_temperature:.2f}, by {other_criterion(self.criterion).upper()}"] = self.test_after_other
        return found

    def _name(self) -> str:
        return f"{self.recipe}, {self.loss}, seed {self.seed}"

    def _title(self) -> str:
        return f"{self._name()}: test, {self.reported}"

    def __rich__(self) -> "Table":
        audits = self._audits()
        return measures_table([*audits.values()], title=self._title(), headings=[*audits], rank=2)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The table of the test metrics before and after temperature scaling: columns, and rows of text."""
        audits = self._audits()
        rows = [[record.label, *(audit.text(record) for audit in audits.values())] for record in self.test.shown(2)]
        return ["measure", *audits], rows

    def markdown(self) -> str:
        """The table in Markdown."""
        return f"{self._title()}\n\n{markdown_table(*self.cells())}\n"

    def _repr_html_(self) -> str:
        return html_table(*self.cells(), self._title())


def other_criterion(criterion: Criterion) -> Criterion:
    """The other of the two criteria of a temperature."""
    return "ece" if criterion == "nll" else "nll"


@dataclass(frozen=True)
class Environment:
    """What a run depends on besides its recipe.

    Attributes:
        data: Samples and checksum of each part.
        train_counts: Training samples, or pixels, of each class.
        started: When it was started.
        command: The command line.
        seed: The seed.
        versions: Versions of the packages involved.
        machine: The machine it runs on.
        resumed: When it was resumed.
        id: Identifies the run to experiment trackers; empty in older runs.
    """

    data: dict[str, dict[str, int | str]]
    train_counts: list[int]
    started: str
    command: list[str]
    seed: int
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str | int] = field(default_factory=dict)
    resumed: list[str] = field(default_factory=list)
    id: str = ""


@dataclass(frozen=True)
class Detection:
    """How well a score separates OOD from test samples.

    Attributes:
        auroc: Area under the ROC curve.
        low: Lower end of its interval.
        high: Upper end.
        fpr95: Fraction of OOD samples accepted when 95% of the test samples are.
        aupr: Area under the precision-recall curve.
    """

    auroc: float
    low: float
    high: float
    fpr95: float
    aupr: float


@dataclass(frozen=True)
class OODResult:
    """Out-of-distribution detection on one OOD data set.

    Attributes:
        name: The OOD data.
        limit: Maximum number of samples.
        source: Where they came from.
        samples: Number of samples.
        temperature: The run's temperature.
        before: Detection by each score.
        after: The same after temperature scaling.
    """

    name: str
    limit: int | None
    source: str
    samples: int
    temperature: float
    before: dict[str, Detection]
    after: dict[str, Detection]

    def at(self, stage: Stage) -> dict[str, Detection]:
        """Detection by each score, before or after temperature scaling."""
        return self.before if stage == "before" else self.after


@dataclass(frozen=True)
class ShiftRecord:
    """Measures on the test images after one corruption.

    Attributes:
        corruption: Its name, ``"none"`` for clean images.
        severity: From 1 to 5, 0 for clean images.
        samples: Number of samples, or pixels.
        before: Measures by key.
        after: The same after temperature scaling.
    """

    corruption: str
    severity: int
    samples: int
    before: dict[str, float]
    after: dict[str, float]

    @property
    def key(self) -> tuple[str, int]:
        """Corruption and severity."""
        return self.corruption, self.severity

    def at(self, stage: Stage) -> dict[str, float]:
        """Measures before or after temperature scaling."""
        return self.before if stage == "before" else self.after


@dataclass(frozen=True)
class ShiftResult:
    """Measures on corrupted test images.

    Attributes:
        seed: Seed of the corruptions.
        source: Whether images were generated, or read from published files.
        results: One record for each corruption and severity.
    """

    seed: int
    source: str
    results: list[ShiftRecord] = field(default_factory=list)

    def only(self, keys: "set[tuple[str, int]]") -> "ShiftResult":
        """The records of some corruptions and severities."""
        return ShiftResult(self.seed, self.source, [record for record in self.results if record.key in keys])

    @property
    def severities(self) -> list[int]:
        """Severities measured, 0 for clean images."""
        return sorted({record.severity for record in self.results})

    def by_severity(self, stage: Stage, key: str) -> dict[int, float]:
        """A measure's mean over corruptions at each severity."""
        return {
            severity: statistics.mean(r.at(stage)[key] for r in self.results if r.severity == severity)
            for severity in self.severities
        }

    def mean(self, stage: Stage, key: str) -> float:
        """A measure's mean over all corruptions and severities, without the clean images."""
        return statistics.mean(record.at(stage)[key] for record in self.results if record.severity)


# Studies


@dataclass(frozen=True)
class JobRecord:
    """One planned run of a study.

    Attributes:
        method: Name of its row in the table.
        seed: Its seed.
        folder: Its folder, inside that of the study.
        state: Whether it is done.
        problem: What went wrong.
        base: Name of the method without the varied options.
        options: The varied options and their values, as in the name of the method.
    """

    method: str
    seed: int
    folder: str
    state: Literal["done", "failed", "missing"]
    problem: str = ""
    base: str = ""
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """One row of a study's table: a method.

    Attributes:
        method: Its name.
        seeds: Its seeds.
        before: Values over seeds by measure.
        after: The same after temperature scaling.
        temperatures: One per seed.
        p_values: By measure, of no difference from the first method; over seeds, or over test samples if there is one.
        differences: By measure, the first method's minus this one's: difference, low, high.
        others: Values after temperature scaling by the other criterion; empty if a run has none.
        other_temperatures: These temperatures, one per seed.
    """

    method: str
    seeds: list[int]
    before: dict[str, list[float]]
    after: dict[str, list[float]]
    temperatures: list[float]
    p_values: dict[str, float] = field(default_factory=dict)
    differences: dict[str, dict[str, float]] = field(default_factory=dict)
    others: dict[str, list[float]] = field(default_factory=dict)
    other_temperatures: list[float] = field(default_factory=list)

    def difference(self, key: str) -> float | None:
        """How much higher a measure is than that of the first method; None if they were not compared."""
        return -self.differences[key]["difference"] if key in self.differences else None

    def values(self, key: str, stage: Stage = "before") -> list[float]:
        """Values over seeds."""
        return (self.before if stage == "before" else self.after)[key]

    def mean(self, key: str, stage: Stage = "before") -> float:
        """Mean over seeds."""
        return statistics.mean(self.values(key, stage))

    def spread(self, key: str, stage: Stage = "before") -> float:
        """Standard deviation over seeds, NaN for a single one."""
        values = self.values(key, stage)
        return statistics.stdev(values) if len(values) > 1 else math.nan

    def interval(self, key: str, stage: Stage = "before") -> tuple[float, float]:
        """95% interval of the mean over seeds, by Student's t; NaN for a single seed."""
        values = self.values(key, stage)
        if len(values) < 2:
            return math.nan, math.nan
        half = quantile(0.95, len(values) - 1) * self.spread(key, stage) / len(values) ** 0.5
        return statistics.mean(values) - half, statistics.mean(values) + half


@dataclass(frozen=True)
class StudyResult:
    """The result of a study.

    Attributes:
        title: Recipe, test samples, seeds, epochs and bins.
        recipe: Name of the recipe.
        metrics: Keys of the measures that tables show.
        jobs: All planned runs.
        summaries: One row for each method.
        posthoc: ECE over seeds after other calibrators, by method and calibrator.
        criterion: What the temperatures minimise on the validation part.
    """

    title: str
    recipe: str
    metrics: list[str]
    jobs: list[JobRecord]
    summaries: list[Summary]
    posthoc: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    criterion: Criterion = "nll"

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in the order of the study."""
        return list(dict.fromkeys(job.method for job in self.jobs))

    @property
    def note(self) -> str:
        """What the temperatures and the p-values are about."""
        grid = " (grid 0.1 to 10)" if self.criterion == "ece" else ""
        found = f"T minimises the {self.criterion.upper()} of the validation set{grid}."
        tested = [len(row.seeds) for row in self.summaries if row.p_values]
        if not tested:
            return found
        found += f" ΔECE: difference in ECE from {self.summaries[0].method} in points, with its p-value"
        if min(tested) == 1:
            return f"{found} from resampling the test set. With one run each, this compares two networks, not methods."
        return f"{found} from a paired t-test over seeds that also allows for the variance of the test set."

    def __getitem__(self, method: str) -> Summary:
        for summary in self.summaries:
            if summary.method == method:
                return summary
        raise KeyError(method)


def check_measures(keys: Sequence[str], known: Mapping[str, Any]) -> None:
    """Refuse measures that runs do not have."""
    for key in keys:
        record = measure(key)
        if key not in known:
            raise InputError(f"these runs have no {record.title} ({key})")


def pairs(plain: Mapping[str, Any], kind: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Records by name, from plain Python types."""
    for name, value in plain.items():
        yield name, from_plain(kind, value, f"{where}: {name}")


def plain(record: Any) -> dict[str, Any]:
    """A record as plain Python types."""
    found: dict[str, Any] = to_plain(record)
    return found
