"""The result of an audit, a record that converts to JSON and back."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from calibrant.binning import BinStatistics
from calibrant.errors import InputError
from calibrant.metrics.panel import html_table
from calibrant.metrics.table import MEASURES, Measure, measure, ranked
from calibrant.outcomes import Outcomes
from calibrant.records import from_fields, from_plain, to_plain
from calibrant.stats import CalibrationTest, Comparison, Interval


@dataclass(frozen=True)
class ReliabilityBins:
    """Equal-width bins of the predicted class's confidence.

    Attributes:
        counts: Samples in each bin.
        confidence: Their mean confidence; 0 in an empty bin.
        accuracy: Their accuracy; 0 in an empty bin.
    """

    counts: list[int]
    confidence: list[float]
    accuracy: list[float]

    def statistics(self) -> BinStatistics:
        """The same bins as sums."""
        counts, confidence, accuracy = (
            torch.tensor(part, dtype=torch.float64) for part in (self.counts, self.confidence, self.accuracy)
        )
        return BinStatistics(counts, counts * confidence, counts * accuracy)


@dataclass(frozen=True)
class GroupRow:
    """Samples whose true class belongs to a group.

    Attributes:
        samples: Number of samples.
        accuracy: Fraction of correct predictions; for a single class, its recall.
        confidence: Mean confidence of the predicted class.
        ece: Expected calibration error.
        nll: Negative log-likelihood.
        brier: Brier score.
    """

    samples: int
    accuracy: float
    confidence: float
    ece: float
    nll: float
    brier: float


@dataclass(frozen=True)
class ClassRow(GroupRow):
    """Samples of one class.

    Attributes:
        name: Name of the class.
        classwise_ece: Calibration error of the class's probability, over all samples.
    """

    name: str = ""
    classwise_ece: float = math.nan


@dataclass(frozen=True)
class KeptSamples:
    """What a paired comparison needs of each sample: 13 bytes.

    Attributes:
        labels: True classes.
        outcomes: Confidence and correctness.
        nll: Negative log-likelihood.
    """

    labels: Tensor
    outcomes: Outcomes
    nll: Tensor


@dataclass(frozen=True, repr=False)
class Audit:
    """The audit of one set of predictions; ``audit["ece"]`` is a measure, as a fraction.

    Attributes:
        name: Name shown in tables.
        source: Where the predictions came from.
        samples: Number of samples, or pixels.
        num_bins: Number of bins.
        values: Measures by their keys in :data:`calibrant.metrics.MEASURES`.
        intervals: Confidence intervals of the measures that have one.
        how: How the measures were computed.
        bins: Bins for a reliability diagram.
        classes: Results by true class.
        groups: Results by group of classes.
        test: Test of perfect calibration; None for dense predictions, whose pixels are not independent.
        event: Name of the class whose probability is judged, if there was one score for two classes.
        kept: Individual samples, if kept for a comparison; not written to files.
    """

    name: str
    source: str
    samples: int
    num_bins: int
    values: dict[str, float]
    intervals: dict[str, Interval]
    how: dict[str, str]
    bins: ReliabilityBins
    classes: list[ClassRow]
    groups: dict[str, GroupRow]
    test: CalibrationTest | None
    event: str = ""
    kept: KeptSamples | None = field(default=None, compare=False)

    def __getitem__(self, key: str) -> float:
        return self.values[key]

    @property
    def dense(self) -> bool:
        """Whether there is a prediction for every pixel."""
        return "image_ece" in self.values

    def shown(self, rank: int) -> list[Measure]:
        """The audit's measures up to a rank."""
        return [record for record in ranked(rank, dense=self.dense) if record.key in self.values]

    def label(self, record: Measure) -> str:
        """The title and unit of a measure, in words that fit an event."""
        named = {"overconfidence": "too high, %", "underconfidence": "too low, %"} if self.event else {}
        title = named.get(record.key, record.label)
        return f"  {title}" if record.part_of else title

    def text(self, record: Measure) -> str:
        """A measure with its interval, as tables print it."""
        value, interval = record.text(self.values[record.key]), self.intervals.get(record.key)
        return value if interval is None else f"{value} [{record.text(interval.low)}, {record.text(interval.high)}]"

    @property
    def verdict(self) -> str:
        """A summary in plain words."""
        over, under = self.values["overconfidence"], self.values["underconfidence"]
        words = ("too high", "too low") if self.event else ("overconfident", "underconfident")
        lean = words[0] if over > under else words[1]
        if math.isclose(over, under, rel_tol=0.5):
            lean = f"{words[0]} about as often as {words[1]}"
        # Not the ECE, which is biased upwards on small samples, as is its interval.
        error = "ece" if self.dense else "debiased_ece"
        what = f"the probability of {self.event}" if self.event else "confidence"
        text = f"{self.name}: {what} is off by {100 * self[error]:.1f} points on average"
        if error in self.intervals:
            low, high = (100 * getattr(self.intervals[error], end) for end in ("low", "high"))
            text += f" ({100 * self.intervals[error].level:.0f}% interval {low:.1f} to {high:.1f})"
        text += f"; {'it' if self.event else 'the model'} is {lean}."
        if self.test is None:
            return text
        if self.test.p_value > 0.05:
            fine = f"These {self.samples:,} samples are consistent with perfect calibration"
            return f"{text} {fine} (p = {self.test.p_value:.2f})."
        return f"{text} Chance alone does not explain this (p {p_text(self.test.p_value)})."

    # To JSON and back

    def to_dict(self) -> dict[str, Any]:
        """As plain Python types, with the measures at the top level."""
        return {
            "name": self.name,
            "source": self.source,
            "samples": self.samples,
            "num_bins": self.num_bins,
            **({"event": self.event} if self.event else {}),
            **self.values,
            "how": dict(self.how),
            "classes": [asdict(row) for row in self.classes],
            "groups": {name: asdict(row) for name, row in self.groups.items()},
            "bins": asdict(self.bins),
            "intervals": to_plain(self.intervals),
            "calibration_test": None if self.test is None else self.test.to_dict(),
            "verdict": self.verdict,
        }

    @classmethod
    def from_dict(cls, found: Any, where: str = "audit") -> "Audit":
        """Rebuild the record from the output of :meth:`to_dict`."""
        if not isinstance(found, dict):
            raise InputError(f"{where}: expected an object, got {type(found).__name__}")
        keys = [key for key in found if key in MEASURES]
        values: dict[str, float] = from_plain(dict[str, float], {key: found[key] for key in keys}, where)
        rest = {key: value for key, value in found.items() if key not in MEASURES}
        fields = {"how": {}, "test": rest.get("calibration_test"), **rest, "values": values}
        made = from_fields(cls, fields, where)
        sizes = {len(made.bins.counts), len(made.bins.confidence), len(made.bins.accuracy)}
        if sizes != {made.num_bins}:
            raise InputError(f"{where}.bins: expected {made.num_bins} bins, got {', '.join(map(str, sorted(sizes)))}")
        return made

    # Display

    def rows(self, rank: int = 3) -> Iterator[tuple[str, str, str]]:
        """Title, value with interval, and how it was computed."""
        for record in self.shown(rank):
            yield self.label(record), self.text(record), self.how.get(record.key, "")
        if self.test is not None:
            yield "test of perfect calibration", f"p {p_text(self.test.p_value)}", "consistency resampling"

    def __repr__(self) -> str:
        shown = ", ".join(f"{record.label} {self.text(record)}" for record in self.shown(1))
        return f"Audit({self.name}, {self.samples:,} samples: {shown})"

    def _repr_html_(self) -> str:
        return html_table(["measure", "value", "how"], self.rows(), f"{self.name}: {self.samples:,} samples")


@dataclass(frozen=True)
class PairedComparison:
    """Two audits of the same samples.

    Attributes:
        first: Name of the first.
        second: Name of the second.
        measures: Differences first - second.
    """

    first: str
    second: str
    measures: dict[str, Comparison]

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Title, difference, interval and p-value."""
        for key, found in self.measures.items():
            record = measure(key)
            ends = f"{record.text(found.low, sign='+')} to {record.text(found.high, sign='+')}"
            yield record.label, record.text(found.difference, sign="+"), ends, p_text(found.p_value).removeprefix("= ")

    def to_dict(self) -> dict[str, Any]:
        """As plain Python types."""
        return {"first": self.first, "second": self.second, "measures": to_plain(self.measures)}


def p_text(value: float) -> str:
    """A p-value with its relation sign."""
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"
