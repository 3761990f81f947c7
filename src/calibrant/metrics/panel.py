"""All measures in one pass over the logits."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from calibrant import outcomes, tensors
from calibrant.binning import BinStatistics, sums_by, width_index
from calibrant.checks import whole
from calibrant.extras import require
from calibrant.metrics import estimators
from calibrant.metrics.classwise import label_index, of_block
from calibrant.metrics.estimators import Grid
from calibrant.metrics.scores import calibration_part, of_samples
from calibrant.metrics.sums import State, Sums, as_bins, as_state
from calibrant.metrics.table import MEASURES, Measure, ranked
from calibrant.outcomes import Outcomes
from calibrant.tensors import Samples, Task

if TYPE_CHECKING:
    from rich.table import Table
    from typing_extensions import Unpack

    from calibrant.inputs import Given

#: Measures that are means of per-sample scores.
SCORES = [record for record in MEASURES.values() if record.on == "scores" and record.in_panel]


class Group(NamedTuple):
    """The samples whose true class belongs to a group.

    Attributes:
        samples: Number of samples.
        accuracy: Fraction of correct predictions; for a single class, its recall.
        confidence: Mean confidence of the predicted class.
        ece: Expected calibration error, with the panel's bins.
        nll: Negative log-likelihood.
        brier: Brier score.

    Example:
        >>> from calibrant.metrics import Panel
        >>> panel = Panel(num_classes=2, groups={"head": [0]})
        >>> panel.update([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2)
        >>> head = panel.compute().groups["head"]
        >>> head.samples, head.accuracy, round(head.confidence, 4)
        (6, 1.0, 0.982)
    """

    samples: int
    accuracy: float
    confidence: float
    ece: float
    nll: float
    brier: float


class PanelResult:
    """What a panel measured: ``result.ece`` or ``result["ece"]``, as fractions, for every measure in the table.

    Attributes:
        samples: Number of samples; with several labels, of pairs of a sample and a label.
        num_bins: Number of bins.
        task: What was predicted. Of events, bins and sorted outcomes are those of their probability.
        bins: Bins of the predicted class's confidence.
        class_bins: Bins of each class's probability, ``(K, num_bins)``, or of each label's.
        sorted: Outcomes sorted by confidence.
        areas: Samples of each class: both labelled and predicted, labelled, predicted, ``(3, K)``. With several labels, for
            each: correct predictions, samples, predicted to happen.

    Example:
        >>> from calibrant.metrics import Panel
        >>> panel = Panel(num_classes=2)
        >>> panel.update([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2)
        >>> result = panel.compute()
        >>> round(result.ece, 4), round(result["brier"], 4), result.bins.counts.sum().item()
        (0.232, 0.4827, 8)
    """

    def __init__(self, state: State, num_bins: int, groups: Mapping[str, Sequence[int]], task: Task = "multiclass") -> None:
        self.num_bins, self.task = num_bins, task
        self._groups, self._own, self._grid = groups, as_bins(state, "own_"), as_bins(state, "grid_")
        self._scores, self._squares = state["scores"], state["squares"]
        self.class_bins = as_bins(state, "class_")
        self.bins = BinStatistics(*(part[1] for part in self.class_bins)) if task == "binary" else self._own.pooled()
        self.sorted = Grid.filled(self._grid)
        self.areas = torch.stack([state["right"], self._own.counts.sum(dim=1), state["predicted"]])
        self.samples = int(self.bins.counts.sum())
        self._values: dict[str, float] = {}

    @property
    def predicted(self) -> BinStatistics:
        """Correct predictions of the more probable class, in one bin for each class or label."""
        return BinStatistics(self.areas[1], torch.zeros_like(self.areas[1], dtype=torch.float64), self.areas[0])

    @cached_property
    def accepted(self) -> estimators.SortedOutcomes:
        """Outcomes of the more probable class, sorted by its confidence."""
        return self.sorted if self.task == "multiclass" else Grid.folded(self._grid)

    # Values

    def __getitem__(self, key: str) -> float:
        if key not in self._values:
            self._values[key] = self._evaluate(MEASURES[key])
        return self._values[key]

    def __getattr__(self, name: str) -> float:
        if name.startswith("_") or name not in MEASURES or not self.has(MEASURES[name]):
            raise AttributeError(f"a panel has no {name!r}")
        return self[name]

    @staticmethod
    def has(record: Measure) -> bool:
        """Whether panels have a measure; not per-image measures, nor those that need more than logits."""
        return record.in_panel and record.on not in ("images", "outside")

    def _evaluate(self, record: Measure) -> float:
        if not self.samples:
            return float("nan")
        if record.on == "scores":
            return float(self._scores[SCORES.index(record)].sum() / self.samples)
        if record.on == "values":
            return float(record.estimate(self)) if record.estimate else float("nan")
        several = self.task == "multilabel" and record.estimate is calibration_part
        value: Tensor = record.evaluate(getattr(self, record.on), self.num_bins, **({"classes": 2} if several else {}))
        return float(value)

    def values(self, rank: int = 4, *, dense: bool = True) -> dict[str, float]:
        """All measures up to a rank."""
        return {record.key: self[record.key] for record in ranked(rank, dense=dense) if self.has(record)}

    def scalars(self) -> dict[str, float]:
        """The metrics of an audit as plain floats, for loggers and data frames; segmentation metrics are left out."""
        return self.values(3, dense=False)

    def standard_error(self, record: Measure) -> float:
        """Standard error of a measure that is a mean of scores."""
        place, count = SCORES.index(record), max(1, self.samples)
        mean, square = self[record.key], float(self._squares[place]) / count
        if math.isfinite(mean) and not math.isfinite(square):  # the squares of the scores overflow float64
            return math.inf
        variance = square - mean * mean
        return math.sqrt(max(0.0, variance) / max(1, count - 1))

    def how(self, record: Measure) -> str:
        """How a measure was computed."""
        return record.how.format_map(_Facts(self))

    # Classes and groups

    @cached_property
    def classes(self) -> list[Group]:
        """Results by true class, or by label."""
        return self._summaries(self._own, self._scores, self.areas[0])

    @cached_property
    def groups(self) -> dict[str, Group]:
        """Results by group of classes."""
        if not self._groups:
            return {}
        members = [torch.tensor(list(own), dtype=torch.int64, device=self._scores.device) for own in self._groups.values()]
        bins = BinStatistics(*(torch.stack([part[own].sum(dim=0) for own in members]) for part in self._own))
        scores = torch.stack([self._scores[:, own].sum(dim=1) for own in members], dim=1)
        right = torch.stack([self.areas[0][own].sum() for own in members])
        return dict(zip(self._groups, self._summaries(bins, scores, right), strict=True))

    @staticmethod
    def _summaries(bins: BinStatistics, scores: Tensor, right: Tensor) -> list[Group]:
        """From bins ``(G, M)``, sums of scores ``(S, G)`` and correct predictions ``(G,)``."""
        count = bins.counts.sum(dim=1)
        by_key = {record.key: total for record, total in zip(SCORES, scores, strict=True)}
        sums = (right.double(), bins.confidence.sum(dim=1), by_key["nll"], by_key["brier"])
        accuracy, confidence, nll, brier = ((total / count).tolist() for total in sums)
        ece = estimators.calibration_error(bins).tolist()
        return [Group(*row) for row in zip(count.tolist(), accuracy, confidence, ece, nll, brier, strict=True)]

    # Display

    def to_dict(self) -> dict[str, Any]:
        """Everything but the sorted outcomes, as plain Python types."""
        confidence, accuracy = self.bins.means()
        return {
            "samples": self.samples,
            "num_bins": self.num_bins,
            **self.values(),
            "how": {record.key: self.how(record) for record in MEASURES.values() if self.has(record) and record.how},
            "classes": [group._asdict() for group in self.classes],
            "groups": {name: group._asdict() for name, group in self.groups.items()},
            "bins": {
                "counts": self.bins.counts.tolist(),
                "confidence": confidence.tolist(),
                "accuracy": accuracy.tolist(),
            },
        }

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Table rows: title, value, and how it was computed."""
        for record in ranked(3):
            if self.has(record):
                title = f"  {record.label}" if record.part_of else record.label
                yield title, record.text(self[record.key]), self.how(record)
        for name, group in self.groups.items():
            yield (
                f"group {name}",
                f"{group.samples:,}",
                f"ECE {100 * group.ece:.2f}%, accuracy {100 * group.accuracy:.2f}%",
            )

    def __repr__(self) -> str:
        shown = ", ".join(f"{record.title} {record.text(self[record.key])}" for record in ranked(1) if self.has(record))
        # Loggers that expect a tensor, such as Lightning's self.log, show this in their error.
        return f"PanelResult({self.samples:,} samples: {shown}; result.scalars() has plain floats, for self.log_dict)"

    def __rich__(self) -> "Table":
        """A table for the terminal."""
        table: Table = require("rich.table", "a table of calibration measures").Table(title=f"{self.samples:,} samples")
        table.add_column("measure")
        table.add_column("value", justify="right")
        table.add_column("how", style="dim")
        for row in self.rows():
            table.add_row(*row)
        return table

    def _repr_html_(self) -> str:
        return html_table(["measure", "value", "how"], self.rows(), f"{self.samples:,} samples")


class _Facts(dict[str, Any]):
    """What the ``how`` of a measure may mention: the number of bins, and other measures by key."""

    def __init__(self, result: PanelResult) -> None:
        super().__init__(num_bins=result.num_bins)
        self.result = result

    def __missing__(self, key: str) -> float:
        return self.result[key]


def html_table(columns: Iterable[str], rows: Iterable[Iterable[str]], caption: str = "") -> str:
    """A plain table for notebooks."""
    from html import escape  # noqa: PLC0415

    def line(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag} style='text-align:left'>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    top = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{top}<thead>{line(columns, 'th')}</thead><tbody>{body}</tbody></table>"


def markdown_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table for READMEs."""
    columns = list(columns)
    lines = ["| " + " | ".join(line) + " |" for line in (columns, *rows)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]])


def class_groups(counts: Sequence[int], head: int = 100, tail: int = 20) -> dict[str, list[int]]:
    """Classes by their number of training samples: head (more than 100), medium (20 to 100), tail (fewer than 20).

    Example:
        >>> from calibrant.metrics import class_groups
        >>> class_groups([500, 60, 40, 5])
        {'head': [0], 'medium': [1, 2], 'tail': [3]}
    """
    groups: dict[str, list[int]] = {"head": [], "medium": [], "tail": []}
    for k, count in enumerate(counts):
        groups["head" if count > head else "tail" if count < tail else "medium"].append(k)
    return groups


class Panel(Sums):
    """Everything at once: accuracy, proper scores, and all calibration errors, overall, by class and by group.

    One pass over the logits with state of fixed size, whatever the number of samples. Errors that need sorted confidences
    use the fine grid (:class:`calibrant.metrics.estimators.Grid`); the others are exact.

    Args:
        num_classes: Number of classes K, 2 for an event, or of labels.
        num_bins: Number of bins for the binned errors.
        groups: Lists of classes by group name, such as those of :func:`class_groups`.
        **given: ``ignore_index``, ``probs`` and ``task``; see :class:`calibrant.inputs.Given`. With ``task="multilabel"``,
            overall results are those of all pairs of a sample and a label, and ``classes`` are the labels.

    Example:
        >>> from calibrant.metrics import Panel
        >>> panel = Panel(num_classes=2, groups={"head": [0], "tail": [1]})
        >>> panel.update([[4.0, 0.0]] * 8, [0] * 6 + [1] * 2)  # every batch
        >>> result = panel.compute()
        >>> round(result.ece, 4), result.classes[0].accuracy, result.groups["tail"].samples
        (0.232, 1.0, 2)
    """

    def __init__(
        self,
        num_classes: int,
        *,
        num_bins: int = 15,
        groups: Mapping[str, Sequence[int]] | None = None,
        **given: "Unpack[Given]",
    ) -> None:
        super().__init__(whole("num_classes", num_classes, 1 if given.get("task") == "multilabel" else 2), **given)
        self.classes = num_classes
        self.num_bins = whole("num_bins", num_bins, 1)
        self.groups = {name: sorted(classes) for name, classes in (groups or {}).items()}
        for name, classes in self.groups.items():
            if classes and not 0 <= classes[0] <= classes[-1] < num_classes:
                raise ValueError(f"groups: {name!r} has class {classes[-1]}, but classes are 0..{num_classes - 1}")

    def zeros(self) -> dict[str, Tensor]:
        """No samples."""
        shape = (self.classes, self.num_bins)
        own, grid = BinStatistics.zeros(*shape), BinStatistics.zeros(Grid.size)
        return {**as_state(own, "own_"), **as_state(grid, "grid_"), **self._by_block()}

    def _by_block(self, device: torch.device | None = None) -> dict[str, Tensor]:
        """Sums that grow block by block."""
        return {
            **as_state(BinStatistics.zeros(self.classes, self.num_bins, device=device), "class_"),
            "scores": torch.zeros(len(SCORES), self.classes, dtype=torch.float64, device=device),
            "squares": torch.zeros(len(SCORES), dtype=torch.float64, device=device),
            "right": torch.zeros(self.classes, dtype=torch.int64, device=device),
            "predicted": torch.zeros(self.classes, dtype=torch.int64, device=device),
        }

    @torch.no_grad()
    def of(self, samples: Samples) -> dict[str, Tensor]:
        """The sums of some samples."""
        if samples.task == "multilabel":
            return self._of_labels(samples)
        classes, device = samples.logits.shape[1], samples.logits.device
        found = self._by_block(device)
        class_bins = as_bins(found, "class_")
        none = torch.zeros(0, dtype=torch.float64, device=device)
        outcome: list[tuple[Tensor, Tensor, Tensor]] = [(none, none.bool(), none.long())]
        events: list[Tensor] = [none]
        for block in tensors.blocks(samples):
            largest, prediction = block.logits.max(dim=1, keepdim=True)
            softmax = outcomes.softmax(block, largest)
            label, predicted = block.pick(block.target), block.pick(prediction)
            for i, record in enumerate(SCORES):
                assert record.estimate is not None  # noqa: S101
                values = block.pick(record.estimate(block, softmax)).double()
                found["scores"][i].index_add_(0, label, values)
                found["squares"][i] += values @ values
            outcome.append((block.pick(1 / softmax.total).double(), predicted == label, label))
            found["predicted"] += torch.bincount(predicted, minlength=classes)
            if samples.of_event:
                events.append(block.pick(softmax.exponentials[:, 1:] / softmax.total).double())
            class_bins.add_(of_block(block, softmax, self.num_bins))  # last, as it overwrites the exponentials
        confidence, right, label = (torch.cat(parts) for parts in zip(*outcome, strict=True))
        place = label * self.num_bins + width_index(confidence, self.num_bins)
        own = sums_by(place, classes * self.num_bins, confidence, right).view(classes, self.num_bins)
        found["right"] = own.correct.sum(dim=1)
        judged = Outcomes(torch.cat(events), label == 1) if samples.of_event else Outcomes(confidence, right)
        return found | as_state(own, "own_") | as_state(Grid.sums(judged), "grid_")

    def _of_labels(self, samples: Samples) -> dict[str, Tensor]:
        """The sums of events, by label."""
        found, label = self._by_block(samples.logits.device), label_index(samples)
        judged = outcomes.judged(samples)
        label = label.to(judged.confidence.device)
        for i, record in enumerate(SCORES):
            assert record.estimate is not None  # noqa: S101
            values = of_samples(record.estimate, samples).to(label.device)
            found["scores"][i].index_add_(0, label, values)
            found["squares"][i] += values @ values
        happens = judged.confidence > 0.5
        found["right"] = torch.bincount(label[happens == judged.correct], minlength=self.classes)
        found["predicted"] = torch.bincount(label[happens], minlength=self.classes)
        place = label * self.num_bins + width_index(judged.confidence, self.num_bins)
        own = sums_by(place, self.classes * self.num_bins, *judged).view(self.classes, self.num_bins)
        return found | as_state(own, "own_") | as_state(own, "class_") | as_state(Grid.sums(judged), "grid_")

    def value(self, state: State) -> PanelResult:
        """All measures."""
        return PanelResult(state, self.num_bins, self.groups, self.given["task"])
