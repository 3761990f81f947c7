"""The whole family of measures in one pass over the logits."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from calibrant import outcomes, tensors
from calibrant.binning import BinStatistics, bin_index, equal_width_edges
from calibrant.extras import require
from calibrant.metrics import calibration, scores, segmentation
from calibrant.metrics import cells as on_cells
from calibrant.metrics.cells import Cells, Grid
from calibrant.metrics.classes import LogitsMetric
from calibrant.metrics.classwise import add_class_bins, empty_bins
from calibrant.outcomes import Outcomes
from calibrant.tensors import Batch
from calibrant.validation import whole

if TYPE_CHECKING:
    from rich.table import Table

#: What a panel measures: name, how it is printed (percent or as it is), and what it is.
MEASURES = {
    "accuracy": ("percent", "accuracy"),
    "nll": ("plain", "negative log-likelihood"),
    "brier": ("plain", "Brier score, summed over classes"),
    "brier_calibration": ("plain", "  of which calibration"),
    "brier_refinement": ("plain", "  of which refinement"),
    "ece": ("percent", "ECE"),
    "overconfidence": ("percent", "  of which overconfidence"),
    "underconfidence": ("percent", "  of which underconfidence"),
    "mce": ("percent", "maximum calibration error"),
    "adaptive_ece": ("percent", "adaptive ECE"),
    "classwise_ece": ("percent", "classwise ECE"),
    "debiased_ece": ("percent", "debiased ECE"),
    "sweep_ece": ("percent", "sweep ECE"),
    "smooth_ece": ("percent", "smooth ECE"),
    "aurc": ("percent", "area under risk-coverage"),
    "mean_iou": ("percent", "mean IoU"),
}


class Group(NamedTuple):
    """Some of the samples: those whose true class belongs to a group.

    Attributes:
        samples: How many there are.
        accuracy: Fraction of right predictions.
        confidence: Mean confidence of the predicted class.
        ece: Expected calibration error, with the panel's bins.
        nll: Negative log-likelihood.
        brier: Brier score.
    """

    samples: int
    accuracy: float
    confidence: float
    ece: float
    nll: float
    brier: float


class Held:
    """Tensors of a result, in a class that torchmetrics does not look into: it would take the dimension off a single bin."""

    def __init__(self, bins: BinStatistics, class_bins: BinStatistics, cells: Cells) -> None:
        self.bins, self.class_bins, self.cells = bins, class_bins, cells


class PanelResult(NamedTuple):
    """What a :class:`CalibrationPanel` measured; fractions.

    Besides the measures: ``nll_error`` and ``brier_error``, standard errors of these means; ``classes`` by true class,
    ``groups`` by group of classes, ``bins`` for a reliability diagram, ``class_bins`` for one of each class's
    probability, ``cells`` in order of confidence.
    """

    samples: int
    num_bins: int
    accuracy: float
    nll: float
    brier: float
    brier_calibration: float
    brier_refinement: float
    ece: float
    overconfidence: float
    underconfidence: float
    mce: float
    adaptive_ece: float
    classwise_ece: float
    debiased_ece: float
    sweep_ece: float
    sweep_bins: int
    smooth_ece: float
    aurc: float
    mean_iou: float
    nll_error: float
    brier_error: float
    classes: list[Group]
    groups: dict[str, Group]
    held: Held

    @property
    def bins(self) -> BinStatistics:
        """Bins of the predicted class's confidence."""
        return self.held.bins

    @property
    def class_bins(self) -> BinStatistics:
        """Bins of each class's probability, ``(K, num_bins)``."""
        return self.held.class_bins

    @property
    def cells(self) -> Cells:
        """Outcomes in order of confidence."""
        return self.held.cells

    @property
    def recipe(self) -> dict[str, str]:
        """How each measure was computed."""
        bins = f"{self.num_bins} bins"
        return {
            "ece": f"{bins} of equal width, L1",
            "overconfidence": f"{bins} of equal width",
            "underconfidence": f"{bins} of equal width",
            "mce": f"{bins} of equal width",
            "adaptive_ece": f"{bins} of equal mass, L1",
            "classwise_ece": f"{bins} of equal width, L1, mean over all classes",
            "debiased_ece": f"{bins} of equal mass, L1, closed form",
            "sweep_ece": f"equal mass, L1, {self.sweep_bins} bins found",
            "smooth_ece": "Gaussian kernel of its own width",
            "brier_calibration": f"{bins} of equal width for each class",
            "brier_refinement": "the rest",
            "mean_iou": "with background, without classes that do not occur",
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything but the cells, in plain Python types."""
        mean_confidence, accuracy = self.bins.means()
        groups = {name: group._asdict() for name, group in self.groups.items()}
        return {
            "samples": self.samples,
            **{name: getattr(self, name) for name in MEASURES},
            "recipe": {"num_bins": self.num_bins, **self.recipe},
            "groups": groups,
            "classes": [group._asdict() for group in self.classes],
            "bins": {
                "counts": self.bins.counts.tolist(),
                "confidence": mean_confidence.tolist(),
                "accuracy": accuracy.tolist(),
            },
        }

    def __rich__(self) -> "Table":
        """A table for the terminal, errors in percent."""
        table: Table = require("rich.table", "a table of calibration measures").Table(title=f"{self.samples:,} samples")
        table.add_column("measure")
        table.add_column("value", justify="right")
        table.add_column("how", style="dim")
        for name, (unit, title) in MEASURES.items():
            value = getattr(self, name)
            table.add_row(title, f"{100 * value:.2f} %" if unit == "percent" else f"{value:.4f}", self.recipe.get(name, ""))
        for name, group in self.groups.items():
            values = f"ECE {100 * group.ece:.2f} %, accuracy {100 * group.accuracy:.2f} %"
            table.add_row(f"group {name}", f"{group.samples:,}", values)
        return table


def class_groups(counts: Sequence[int], head: int = 100, tail: int = 20) -> dict[str, list[int]]:
    """Classes by the number of their training samples: head (more than 100), medium (20 to 100), tail (fewer than 20)."""
    groups: dict[str, list[int]] = {"head": [], "medium": [], "tail": []}
    for k, count in enumerate(counts):
        groups["head" if count > head else "tail" if count < tail else "medium"].append(k)
    return groups


class CalibrationPanel(LogitsMetric):
    """Everything at once: accuracy, proper scores, and all calibration errors, overall, by class and by group.

    One pass over the logits and state of fixed size, whatever the number of samples. Errors that need the order of
    confidences come from the fine grid (:class:`calibrant.metrics.cells.Grid`); the others are exact.

    Args:
        num_classes: Number of classes K.
        num_bins: Number of bins of all errors that have bins.
        groups: Lists of classes by the name of their group, such as those of :func:`class_groups`.
        ignore_index: Label of samples or pixels to leave out.
        **kwargs: Arguments of ``torchmetrics.Metric``.
    """

    nll_sums: Tensor
    brier_sums: Tensor
    squares: Tensor
    predicted: Tensor

    def __init__(
        self,
        num_classes: int,
        num_bins: int = 15,
        *,
        ignore_index: int = -100,
        groups: Mapping[str, Sequence[int]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(ignore_index=ignore_index, **kwargs)
        self.num_classes = whole("num_classes", num_classes, 2)
        self.num_bins = whole("num_bins", num_bins, 1)
        self.groups = {name: sorted(classes) for name, classes in (groups or {}).items()}
        for name, classes in self.groups.items():
            if classes and not 0 <= classes[0] <= classes[-1] < num_classes:
                raise ValueError(f"groups: {name!r} has class {classes[-1]}, but classes are 0..{num_classes - 1}")
        self._bins(num_classes, num_bins, prefix="own_")  # of the predicted class, by true class
        self._bins(num_classes, num_bins, prefix="class_")  # of each class's probability
        self._bins(Grid.size, prefix="grid_")
        self._sums("nll_sums", num_classes)
        self._sums("brier_sums", num_classes)
        self._sums("squares", 2)  # of the two scores
        self._sums("predicted", num_classes, whole_numbers=True)

    def _add(self, batch: Batch) -> None:
        classes = batch.logits.shape[1]
        device = batch.logits.device
        of_class = empty_bins(classes, self.num_bins, device)
        sums = torch.zeros(2, classes, dtype=torch.float64, device=device)
        squares = torch.zeros(2, dtype=torch.float64, device=device)
        confidences, rights, labels, predictions = [], [], [], []
        for block in tensors.blocks(batch):
            largest, prediction = block.logits.max(dim=1, keepdim=True)
            exponentials = (block.logits - largest).exp_()
            softmax = outcomes.Softmax(largest, exponentials, exponentials.sum(dim=1, keepdim=True))
            outcomes.check_softmax(block, softmax.total)
            label = block.pick(block.target)
            for i, score in enumerate((scores.negative_log_likelihood, scores.brier)):
                values = block.pick(score(block, softmax)).double()
                sums[i].index_add_(0, label, values)
                squares[i] += values @ values
            confidences.append(block.pick(1 / softmax.total))
            predictions.append(block.pick(prediction))
            rights.append(predictions[-1] == label)
            labels.append(label)
            add_class_bins(of_class, block, softmax)  # last, for it uses up the exponentials
        if not labels:
            return
        confidence, right, label = torch.cat(confidences).double(), torch.cat(rights), torch.cat(labels)
        own = empty_bins(classes, self.num_bins, device)
        cell = label * self.num_bins + bin_index(confidence, equal_width_edges(self.num_bins).to(device))
        own.counts.view(-1).add_(torch.bincount(cell, minlength=own.counts.numel()))
        own.correct.view(-1).add_(torch.bincount(cell[right], minlength=own.counts.numel()))
        own.confidence.view(-1).index_add_(0, cell, confidence)
        self._add_bins(own, "own_")
        self._add_bins(of_class, "class_")
        self._add_bins(Grid.sums(Outcomes(confidence, right)), "grid_")
        predicted = torch.bincount(torch.cat(predictions), minlength=classes)
        parts = {"nll_sums": sums[0], "brier_sums": sums[1], "squares": squares, "predicted": predicted}
        for name, part in parts.items():
            total = getattr(self, name)
            total += part.to(total.device)

    def _groups(self, classes: Sequence[Sequence[int]]) -> list[Group]:
        """Summary of each of several lists of classes."""
        member = torch.zeros(len(classes), len(self.nll_sums), dtype=torch.float64, device=self.device)
        for row, members in zip(member, classes, strict=True):
            row[list(members)] = 1
        own = BinStatistics(*(member @ part.double() for part in self._get_bins("own_")))
        count = own.counts.sum(dim=1)
        sums = (own.correct.sum(dim=1), own.confidence.sum(dim=1), member @ self.nll_sums, member @ self.brier_sums)
        accuracy, confidence, nll, brier = ((total / count).tolist() for total in sums)
        ece = on_cells.calibration_error(own).tolist()
        counts = count.round().long().tolist()
        return [Group(*values) for values in zip(counts, accuracy, confidence, ece, nll, brier, strict=True)]

    def compute(self) -> PanelResult:
        """Return all measures."""
        own, of_class = self._get_bins("own_"), self._get_bins("class_")
        bins = BinStatistics(*(part.sum(dim=0) for part in own))
        cells = Grid.cells(self._get_bins("grid_"))
        (everything,) = self._groups([range(len(own.counts))])
        areas = torch.stack([own.correct.sum(dim=1), own.counts.sum(dim=1), self.predicted])
        brier_calibration = float((of_class.weights() * of_class.gaps() ** 2).sum())
        means = torch.tensor([everything.nll, everything.brier], dtype=torch.float64, device=self.device)
        count = max(1, everything.samples)
        errors = ((self.squares / count - means**2).clamp(min=0) / max(1, count - 1)).sqrt()
        sweep, sweep_bins = on_cells.sweep(cells) if everything.samples else (torch.nan, 0)
        return PanelResult(
            samples=everything.samples,
            num_bins=self.num_bins,
            accuracy=everything.accuracy,
            nll=everything.nll,
            brier=everything.brier,
            brier_calibration=brier_calibration,
            brier_refinement=everything.brier - brier_calibration,
            ece=everything.ece,
            overconfidence=float(calibration.overconfident_part(bins)),
            underconfidence=float(calibration.underconfident_part(bins)),
            mce=float(calibration.maximum_error(bins)) if everything.samples else torch.nan,
            adaptive_ece=float(on_cells.calibration_error(on_cells.bins_of_equal_mass(cells, self.num_bins))),
            classwise_ece=float(on_cells.calibration_error(of_class).mean()),
            debiased_ece=float(
                on_cells.debiased_error(on_cells.bins_of_equal_mass(cells, self.num_bins, split=True)).clamp(min=0)
            ),
            sweep_ece=float(sweep),
            sweep_bins=int(sweep_bins),
            smooth_ece=float(on_cells.smooth_error(cells)) if everything.samples else torch.nan,
            aurc=float(on_cells.area_under_risk_coverage(cells)),
            mean_iou=float(segmentation.iou_of(areas)),
            nll_error=float(errors[0]),
            brier_error=float(errors[1]),
            classes=self._groups([[k] for k in range(len(own.counts))]),
            groups=dict(zip(self.groups, self._groups(list(self.groups.values())), strict=True)),
            held=Held(bins, of_class, cells),
        )
