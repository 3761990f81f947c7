"""An audit of predictions: what is measured, with intervals, in tables, words and figures."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant import stats, tensors
from calibrant.extras import require
from calibrant.metrics import CalibrationPanel, PanelResult, class_groups
from calibrant.metrics.cells import calibration_error
from calibrant.metrics.panel import MEASURES
from calibrant.metrics.scores import negative_log_likelihood, of_samples
from calibrant.outcomes import Outcomes, top_label
from calibrant.predictions import InputError, Predictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas
    from rich.table import Table

#: Measures of the table, in its order.
SHOWN = (
    "accuracy",
    "nll",
    "brier",
    "ece",
    "overconfidence",
    "underconfidence",
    "mce",
    "adaptive_ece",
    "classwise_ece",
    "debiased_ece",
    "sweep_ece",
    "smooth_ece",
)
#: Also, of segmented images.
DENSE = {"mean_iou": ("percent", "mean IoU"), "image_ece": ("percent", "ECE, mean of images")}


#: Measures as tables of several models head them: title, whether in percent, and whether more is better.
COLUMNS: dict[str, tuple[str, bool, bool]] = {
    "accuracy": ("accuracy", True, True),
    "error": ("error", True, False),
    "mean_iou": ("mIoU", True, True),
    "ece": ("ECE", True, False),
    "image_ece": ("ECE per image", True, False),
    "adaptive_ece": ("AdaECE", True, False),
    "classwise_ece": ("classwise ECE", True, False),
    "debiased_ece": ("debiased ECE, 15 bins", True, False),
    "debiased_ece_30": ("debiased ECE, 30 bins", True, False),
    "sweep_ece_width": ("sweep ECE, equal width", True, False),
    "sweep_ece": ("sweep ECE, equal mass", True, False),
    "smooth_ece": ("smooth ECE", True, False),
    "nll": ("NLL", False, False),
    "brier": ("Brier", False, False),
    "shift_accuracy": ("accuracy under shift", True, True),
    "shift_ece": ("ECE under shift", True, False),
}


def column(name: str) -> tuple[str, bool, bool]:
    """Title of a measure, whether in percent, and whether more is better; ``auroc:mnist`` is that of telling MNIST apart."""
    kind, _, unknown = name.partition(":")
    return (f"AUROC {unknown}", True, True) if kind == "auroc" else COLUMNS[name]


@dataclass(frozen=True)
class Audit:
    """What was found in one set of predictions.

    Attributes:
        name: What it is called in tables.
        source: Where the predictions came from.
        classes: Names of the classes.
        result: All measures.
        intervals: Those measures that have one.
        test: Test of "perfectly calibrated", or None for dense predictions, whose pixels are not independent.
        labels: True classes, if kept for a comparison.
        outcomes: Confidence and correctness of each sample, if kept.
        nll: NLL of each sample, if kept.
    """

    name: str
    source: str
    classes: list[str]
    result: PanelResult
    intervals: dict[str, stats.Interval]
    test: stats.CalibrationTest | None
    labels: Tensor | None = None
    outcomes: Outcomes | None = None
    nll: Tensor | None = None

    @property
    def verdict(self) -> str:
        """What it comes down to, in words."""
        ece, direction = self.intervals["ece"], _direction(self.result)
        sure = f"it is {direction}" if direction else "it is as often too sure as not sure enough"
        text = f"{self.name}: confidence and accuracy differ by {100 * ece.value:.1f} points on average; {sure}."
        if self.test is None:
            return text
        if self.test.p_value > 0.05:
            text += f" These {self.result.samples:,} samples do not contradict perfect calibration"
            return text + f" (p = {self.test.p_value:.2f})."
        return text + f" Chance does not explain this (p {_p(self.test.p_value)})."

    def class_errors(self) -> list[float]:
        """Calibration error of each class's probability."""
        values: list[float] = calibration_error(self.result.class_bins).tolist()
        return values

    def to_dict(self) -> dict[str, Any]:
        """In plain Python types."""
        found = self.result.to_dict()
        for row, name, error in zip(found["classes"], self.classes, self.class_errors(), strict=True):
            row.update({"name": name, "classwise_ece": error})
        return {
            "name": self.name,
            "source": self.source,
            **found,
            **({"image_ece": self.intervals["image_ece"].value} if "image_ece" in self.intervals else {}),
            "intervals": {name: interval.to_dict() for name, interval in self.intervals.items()},
            "calibration_test": None if self.test is None else self.test.to_dict(),
            "verdict": self.verdict,
        }


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
    measures: dict[str, stats.Comparison]

    def to_dict(self) -> dict[str, Any]:
        """In plain Python types."""
        measures = {name: comparison.to_dict() for name, comparison in self.measures.items()}
        return {"first": self.first, "second": self.second, "measures": measures}


def measure(
    file: Predictions,
    name: str,
    *,
    transform: Callable[[Tensor], Tensor] | None = None,
    counts: Sequence[int] | None = None,
    num_bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    keep: bool = False,
    advance: Callable[[int], Any] = lambda rows: None,  # noqa: ARG005
) -> Audit:
    """Audit a file in one pass, a few rows at a time.

    Args:
        file: The predictions.
        name: What to call them.
        transform: Applied to logits first, such as a calibrator.
        counts: Training samples of each class, for head, medium and tail.
        num_bins: Bins of all errors that have bins.
        resamples: Resamples of each interval.
        seed: Makes intervals repeatable.
        keep: Keep 13 bytes of each sample, for a paired comparison.
        advance: Told how many rows were read.
    """
    file.require_target()
    counts = counts if counts is not None else file.train_counts
    groups = {} if counts is None or file.shape else class_groups(counts)  # which are by numbers of samples, not of pixels
    alone = {"sync_on_compute": False}  # one process audits, also after distributed training
    panel = CalibrationPanel(file.num_classes, num_bins, ignore_index=file.ignore_index, groups=groups, **alone)
    images = stats.ImageBins(num_bins) if file.shape else None
    kept: dict[str, list[Tensor]] = {"labels": [], "confidence": [], "correct": [], "nll": []}
    for chunk in file.chunks():
        assert chunk.target is not None  # noqa: S101
        logits = chunk.logits if transform is None else transform(chunk.logits)
        panel.update(logits, chunk.target)
        if images is not None:
            images.update(logits, chunk.target, file.ignore_index)
        elif keep:
            batch = tensors.check(logits, chunk.target, file.ignore_index)
            outcomes = top_label(batch)
            parts = (
                chunk.target.int(),
                outcomes.confidence.float(),
                outcomes.correct,
                of_samples(negative_log_likelihood, batch).float(),
            )
            for part, values in zip(kept.values(), parts, strict=True):
                part.append(values)
        advance(len(chunk.logits))
    result: PanelResult = panel.compute()
    if not result.samples:
        raise InputError(
            f"{file.path}: every sample is labelled {file.ignore_index} and left out; there is nothing to measure"
        )
    common = {"resamples": resamples, "seed": seed}
    if images is not None:
        intervals, test = images.intervals(**common), None
    else:
        intervals, test = stats.panel_intervals(result, **common), stats.panel_test(result, **common)
    classes = [file.name_of(k) for k in range(file.num_classes)]
    audit = Audit(name, str(file.path), classes, result, intervals, test)
    if not keep or images is not None:
        return audit
    labels, confidence, correct, nll = (torch.cat(parts) for parts in kept.values())
    return replace(audit, labels=labels, outcomes=Outcomes(confidence, correct), nll=nll)


def compare(first: Audit, second: Audit, *, num_bins: int = 15, resamples: int = 1000, seed: int = 0) -> PairedComparison:
    """Paired comparison of two audits that kept their samples."""
    if first.outcomes is None or second.outcomes is None or first.nll is None or second.nll is None:
        return PairedComparison(first.name, second.name, {})
    assert first.labels is not None  # noqa: S101
    assert second.labels is not None  # noqa: S101
    if not torch.equal(first.labels, second.labels):
        raise InputError(
            f"{first.source} and {second.source} have different labels; they are compared sample by sample and have to "
            "hold the same samples in the same order: evaluate them one at a time"
        )
    measures = stats.compare_outcomes(first.outcomes, second.outcomes, num_bins=num_bins, resamples=resamples, seed=seed)
    return PairedComparison(first.name, second.name, {**measures, "nll": stats.compare_means(first.nll, second.nll)})


def short_names(paths: Sequence[Path]) -> list[str]:
    """As much of each path, from its end, as tells it from the others."""
    parts = [path.with_suffix("").parts for path in paths]
    for depth in range(1, max(len(p) for p in parts) + 1):
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{path.stem} ({i + 1})" for i, path in enumerate(paths)]


# Tables and figures


def tables(audits: Sequence[Audit], comparisons: Sequence[PairedComparison] = (), *, worst: int = 5) -> "list[Table]":
    """What the terminal shows."""
    found = [_main_table(audits)]
    if any(audit.result.groups for audit in audits):
        found.append(_group_table(audits))
    if worst > 0:
        found += [_class_table(audit, worst) for audit in audits[:1]]
    filled = [comparison for comparison in comparisons if comparison.measures]
    if filled:
        found.append(_comparison_table(filled))
    return found


def _table(title: str, first: str, columns: Sequence[str]) -> "Table":
    module = require("rich.table", "tables in the terminal")
    table: Table = module.Table(title=title, title_justify="left", box=require("rich.box", "tables").SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(require("rich.markup", "tables").escape(column), justify="right")
    return table


def _main_table(audits: Sequence[Audit]) -> "Table":
    level = next(iter(audits[0].intervals.values())).level
    several = len(audits) > 1
    title = (
        f"{audits[0].result.samples:,} samples, {len(audits[0].classes)} classes; in brackets {100 * level:.0f} % intervals"
    )
    table = _table(title, "measure", [audit.name for audit in audits] + ([] if several else ["how"]))
    if not several:
        table.columns[-1].justify = "left"
        table.columns[-1].style = "dim"
    dense = all("image_ece" in audit.intervals for audit in audits)
    for name in (*SHOWN, *(DENSE if dense else ())):
        unit, label = DENSE.get(name) or MEASURES[name]
        values = [_with_interval(audit, name, unit) for audit in audits]
        how = [] if several else [audits[0].result.recipe.get(name, "")]
        table.add_row(label + (", %" if unit == "percent" else ""), *values, *how)
    tests = ["-" if audit.test is None else f"p {_p(audit.test.p_value)}" for audit in audits]
    table.add_row("test of perfect calibration", *tests, *([] if several else ["consistency resampling"]))
    return table


def _with_interval(audit: Audit, name: str, unit: str) -> str:
    scale, digits = (100, 2) if unit == "percent" else (1, 4)
    interval = audit.intervals.get(name)
    if interval is None:
        return f"{scale * getattr(audit.result, name):.{digits}f}"
    text = f"{scale * interval.value:.{digits}f}"
    return text + f" \\[{scale * interval.low:.{digits}f}, {scale * interval.high:.{digits}f}]"


def _group_table(audits: Sequence[Audit]) -> "Table":
    table = _table(
        "By number of training samples, in %", "classes", [f"{a.name}: {m}" for a in audits for m in ("accuracy", "ECE")]
    )
    for group in audits[0].result.groups:
        rows = [audit.result.groups[group] for audit in audits]
        cells = [text for row in rows for text in (f"{100 * row.accuracy:.2f}", f"{100 * row.ece:.2f}")]
        table.add_row(f"{group} ({rows[0].samples:,} samples)", *("-" if not rows[0].samples else cell for cell in cells))
    return table


def _class_table(audit: Audit, worst: int) -> "Table":
    escape = require("rich.markup", "tables").escape
    errors = audit.class_errors()
    order = sorted(range(len(errors)), key=lambda k: -errors[k])[:worst]
    title = f"Worst calibrated classes of {audit.name}, in %"
    table = _table(title, "class", ["samples", "found", "mean confidence", "ECE of its probability"])
    for k in order:
        row = audit.result.classes[k]
        found = ["-", "-"] if not row.samples else [f"{100 * row.accuracy:.2f}", f"{100 * row.confidence:.2f}"]
        table.add_row(escape(audit.classes[k]), f"{row.samples:,}", *found, f"{100 * errors[k]:.2f}")
    return table


def _comparison_table(comparisons: Sequence[PairedComparison]) -> "Table":
    table = _table("Paired differences of the same samples", "", ["measure", "difference", "interval", "p"])
    titles = {"ece": ("ECE, %", 100, 2), "accuracy": ("accuracy, %", 100, 2), "nll": ("NLL", 1, 4)}
    for comparison in comparisons:
        for i, (name, (title, scale, digits)) in enumerate(titles.items()):
            c = comparison.measures[name]
            low, high = f"{scale * c.low:+.{digits}f}", f"{scale * c.high:+.{digits}f}"
            first = require("rich.markup", "tables").escape(f"{comparison.first} - {comparison.second}") if i == 0 else ""
            table.add_row(
                first, title, f"{scale * c.difference:+.{digits}f}", f"{low} to {high}", _p(c.p_value).removeprefix("= ")
            )
    return table


def run_table(metrics: dict[str, Any]) -> "Table":
    """What a run came to, before and after temperature scaling."""
    title = f"{metrics['recipe']}, {metrics['loss']}, seed {metrics['seed']}: test, {metrics['reported']}"
    table = _table(title, "measure", ["network", f"after temperature {metrics['temperature']:.2f}"])
    shown = ["accuracy", "nll", "ece", "adaptive_ece", "classwise_ece", "debiased_ece", "smooth_ece"]
    for name in (*shown, *(DENSE if "image_ece" in metrics["test"] else ())):
        unit, label = DENSE.get(name) or MEASURES[name]
        scale, digits = (100, 2) if unit == "percent" else (1, 4)
        cells = []
        for part in ("test", "test_after_temperature"):
            text, interval = f"{scale * metrics[part][name]:.{digits}f}", metrics[part]["intervals"].get(name)
            if interval:
                text += f" \\[{scale * interval['low']:.{digits}f}, {scale * interval['high']:.{digits}f}]"
            cells.append(text)
        table.add_row(label + (", %" if unit == "percent" else ""), *cells)
    return table


def figure(audits: Sequence[Audit]) -> "Canvas":
    """Reliability diagrams side by side."""
    from calibrant.plots import ReliabilityDiagram  # noqa: PLC0415

    diagrams = [ReliabilityDiagram.from_panel(audit.result, audit.name, ece=audit.intervals["ece"]) for audit in audits]
    return ReliabilityDiagram.side_by_side(diagrams)


def _direction(result: PanelResult) -> str:
    over, under = result.overconfidence, result.underconfidence
    if math.isclose(over, under, rel_tol=0.5):
        return ""
    return "overconfident" if over > under else "underconfident"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"
