"""The numbered figures and tables of the papers, drawn from any study.

:data:`ITEMS` lists them: how each is drawn, with which options, and a command for a study that has the data.
"""

import inspect
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from calibrant.errors import lookup
from calibrant.files import replacing
from calibrant.losses import METHODS
from calibrant.metrics.panel import markdown_table
from calibrant.metrics.table import FUNCTIONS, measure
from calibrant.plots import ROC, BinCurves, FocalShapes, MetricPath, PenaltyShapes, ReliabilityDiagram
from calibrant.plots.base import close_all
from calibrant.predictions import open_predictions
from calibrant.report.collect import Collected, Source
from calibrant.report.figures import accuracy_vs_ece, bars, bins, curves, gammas, multipliers, save
from calibrant.runs import STAGES, Run, Stage


@dataclass(frozen=True)
class Item:
    """A figure or table of a paper.

    Attributes:
        number: Its number, such as ``"Figure 3a"``.
        title: What it shows.
        drawing: How it is drawn, a key of :data:`DRAWINGS`.
        options: Options of the drawing.
        needs: What a study must have for it; empty if any study will do.
        command: A command that runs such a study; ``{recipe}`` and ``{study}`` are filled in.
        having: The loss and options that one of the methods must have.
    """

    number: str
    title: str
    drawing: str
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: str = ""
    command: str = ""
    having: Mapping[str, Any] = field(default_factory=dict)


TRAIN: Final = "calibrant compare {recipe} --losses"
FOCAL: Final = f"{TRAIN} ce fl flsd --set fl.gamma=3,4,5 --out {{study}}-focal"
CURVES: Final = f"{TRAIN} ce flsd adafocal --curves test --out {{study}}-curves"
CALFOCAL: Final = f"{TRAIN} ce calfocal --calfocal.scale 10 --curves test --out {{study}}-calfocal"
MOMENTUM: Final = f"{TRAIN} ce adafocal --adafocal.momentum 0.5 --curves test --out {{study}}-momentum"
LIMITED: Final = f"{TRAIN} flsd adafocal --adafocal.gamma_max MOST --seeds 5 --curves test --out {{study}}-maxMOST"
OOD: Final = f"{TRAIN} ce flsd adafocal --ood noise --out {{study}}-ood"
ERRORS: Final = ("ece", "adaptive_ece", "debiased_ece", "sweep_ece")

#: Numbered figures and tables by paper.
ITEMS: Final[dict[str, tuple[Item, ...]]] = {
    "cals": (
        Item("Figure 1", "ECE against accuracy", "accuracy_vs_ece", {}, "several methods", f"{TRAIN} ce mbls cals-alm"),
        Item("Figure 2", "The penalty for several rho and multipliers", "penalty"),
        Item("Figure 3a", "Validation ECE over epochs", "curves", {"keys": ("ece",)}, "runs", f"{TRAIN} ce mbls cals-alm"),
        Item("Figure 3b", "Multipliers over epochs", "multipliers", {}, "a run of CALS", f"{TRAIN} cals-alm cals-hr"),
        Item(
            *(
                "Figure 3c",
                "Validation and test curves by penalty and margin",
                "both_curves",
                {"keys": ("ece", "accuracy"), "loss": "cals-alm"},
            ),
            *("test curves of CALS-ALM with several penalties or margins",),
            f"{TRAIN} cals-alm --set cals-alm.penalty=phr,p2,p3 --curves test --out {{study}}-penalties",
            {"loss": "cals-alm"},
        ),
        Item(
            "Figure 4",
            "Reliability diagrams, 25 bins",
            "reliability",
            {"num_bins": 25},
            "predictions",
            f"{TRAIN} ce cals-alm",
        ),
        Item("Table 1", "ECE and AECE", "table", {"keys": ("ece", "adaptive_ece"), "stages": ("before",)}),
        Item(
            *(
                "Table 2",
                "Segmentation: mIoU and ECE",
                "table",
                {"keys": ("mean_iou", "ece", "adaptive_ece")},
                "segmentation",
            ),
            "calibrant compare voc2012-deeplabv3 --losses ce mbls cals-alm",
        ),
        Item("Table 3", "ECE and accuracy", "table", {"keys": ("ece", "accuracy"), "stages": ("before",)}),
    ),
    "adafocal": (
        Item("Figure 1a", "Validation AdaECE over epochs", "curves", {"keys": ("adaptive_ece",)}, "runs", FOCAL),
        Item("Figure 1b", "Calibration error of three bins", "bins", {"rows": ("error",)}, "bins over epochs", FOCAL),
        Item(
            *("Figure 2a", "Training and validation confidence, independent bins", "bins"),
            {"rows": ("confidence",), "binning": "independent"},
            *("bins over epochs", FOCAL),
        ),
        Item(
            *("Figure 2b", "Training and validation confidence, common bins", "bins"),
            {"rows": ("confidence",), "binning": "common"},
            *("bins over epochs", FOCAL),
        ),
        Item("Figure 3a", "Loss of CalFocal against the probability", "focal"),
        Item(
            *(
                "Figure 3bc",
                "Test error and ECE over epochs, CalFocal",
                "curves",
                {"keys": ("error", "ece"), "part": "test"},
            ),
            *("test curves of CalFocal", CALFOCAL),
            {"loss": "calfocal"},
        ),
        Item(
            *("Figure 3d", "Confidences and accuracy of the first bin, CalFocal", "bins", {"rows": ("all",), "bins": (0,)}),
            *("bins of CalFocal", CALFOCAL),
            {"loss": "calfocal"},
        ),
        Item(
            *("Figures 4 and 7", "Test error and ECE over epochs", "curves", {"keys": ("error", "ece"), "part": "test"}),
            *("test curves", CURVES),
        ),
        Item(
            *("Figure 5", "Error and gamma of bins", "bins", {"rows": ("error", "gamma")}),
            *("a run of AdaFocal", CURVES),
            {"loss": "adafocal"},
        ),
        Item("Figure 6", "ROC of OOD detection", "roc", {}, "OOD data", OOD),
        Item(
            *("Figure 8", "Error, gamma and edges of bins", "bins"),
            {"rows": ("error", "gamma", "edges"), "bins": range(0, 99, 2)},
            *("a run of AdaFocal", CURVES),
            {"loss": "adafocal"},
        ),
        Item(
            "Figure 9", "Error and edges of all bins", "bins", {"rows": ("error", "edges"), "bins": range(99)}, "bins", FOCAL
        ),
        Item(
            *("Figure 10", "Training confidence of the true and of the predicted class", "bins"),
            {"rows": ("labels",), "bins": range(0, 99, 2)},
            *("bins over epochs", FOCAL),
        ),
        Item(
            *("Figure 11", "Confidences and accuracy, independent bins", "bins"),
            {"rows": ("all", "edges"), "binning": "independent", "bins": range(0, 99, 2)},
            *("bins over epochs", FOCAL),
        ),
        Item(
            *("Figure 12", "Confidences and accuracy, common bins", "bins"),
            {"rows": ("all", "edges"), "binning": "common", "bins": range(0, 99, 2)},
            *("bins over epochs", FOCAL),
        ),
        Item(
            *("Figure 13", "Test error and ECE over epochs, both forms of CalFocal", "curves"),
            {"keys": ("error", "ece"), "part": "test"},
            "test curves of CalFocal by sample",
            f"{TRAIN} ce calfocal --calfocal.scale 10 --set calfocal.per=bin,sample --curves test --out {{study}}-both",
            {"loss": "calfocal", "per": "sample"},
        ),
        Item("Figure 14", "ECE, before and after temperature scaling", "bars", {"keys": ("ece",)}),
        Item(
            *(
                "Figure 15",
                "Test error and ECE over epochs, moving average",
                "curves",
                {"keys": ("error", "ece"), "part": "test"},
            ),
            "test curves of AdaFocal with momentum",
            MOMENTUM,
            {"loss": "adafocal", "momentum": any},
        ),
        Item(
            *("Figure 16", "Error and gamma of bins, moving average", "gammas", {}, "AdaFocal with momentum"),
            MOMENTUM,
            {"loss": "adafocal", "momentum": any},
        ),
        *(
            item
            for numbers, most in (((17, 18), 20.0), ((19, 20), 50.0), ((21, 22), math.inf))
            for item in (
                Item(
                    *(f"Figure {numbers[0]}", f"Test curves of AdaFocal's runs, gamma at most {most:g}", "curves"),
                    {"keys": ("error", "ece", "adaptive_ece"), "part": "test", "runs": True},
                    f"test curves of AdaFocal with gamma_max {most:g}",
                    LIMITED.replace("MOST", f"{most:g}"),
                    {"loss": "adafocal", "gamma_max": most},
                ),
                Item(
                    *(f"Figure {numbers[1]}", f"Gammas of every run, at most {most:g}", "gammas", {}),
                    f"AdaFocal with gamma_max {most:g}",
                    LIMITED.replace("MOST", f"{most:g}"),
                    {"loss": "adafocal", "gamma_max": most},
                ),
            )
        ),
        Item(
            *("Figures 23 to 32", "Test error, ECE, AdaECE and classwise ECE over epochs", "curves"),
            {"keys": ("error", "ece", "adaptive_ece", "classwise_ece"), "part": "test"},
            *("test curves", CURVES),
        ),
        Item("Table 1", "ECE", "table", {"keys": ("ece",)}),
        Item("Table 2", "Error", "table", {"keys": ("error",), "stages": ("before",)}),
        Item("Table 3", "AdaECE", "table", {"keys": ("adaptive_ece",)}),
        Item("Table 4", "Classwise ECE", "table", {"keys": ("classwise_ece",)}),
        Item("Table 5", "Debiased ECE, 15 bins", "measured", {"key": "debiased_ece", "num_bins": 15}, "predictions", FOCAL),
        Item("Table 6", "Debiased ECE, 30 bins", "measured", {"key": "debiased_ece", "num_bins": 30}, "predictions", FOCAL),
        Item(
            "Table 7",
            "Sweep ECE, equal-width bins",
            "measured",
            {"key": "sweep_ece", "binning": "width"},
            "predictions",
            FOCAL,
        ),
        Item(
            "Table 8",
            "Sweep ECE, equal-mass bins",
            "measured",
            {"key": "sweep_ece", "binning": "mass"},
            "predictions",
            FOCAL,
        ),
        Item(
            *(
                "Table 9",
                "Numbers of AdaFocal's bins",
                "table",
                {"keys": ERRORS, "stages": ("before",), "swept": "num_bins"},
            ),
            *("AdaFocal with several numbers of bins",),
            f"{TRAIN} flsd adafocal --set adafocal.num_bins=5,10,15,20,30,50 --out {{study}}-bins",
        ),
        Item("Table 10", "AUROC of OOD detection", "table", {"ood": True}, "OOD data", OOD),
    ),
}


class Missing(NamedTuple):
    """A figure or table that cannot be drawn.

    Attributes:
        item: The figure or table.
        command: A command for a study that has the data.
    """

    item: Item
    command: str

    def __str__(self) -> str:
        return f"{self.item.number} ({self.item.title}) needs {self.item.needs}: {self.command}"


def write_paper(
    folder: Path, found: Collected, paper: str, study: str, *, force: bool = False
) -> tuple[list[Path], list[Missing]]:
    """Write the figures (.pdf and .png) and tables (.md) of a paper that can be drawn.

    Args:
        folder: Output folder.
        found: What a report collected.
        paper: ``"cals"`` or ``"adafocal"``.
        study: Folder of the study, used in the commands for missing items.
        force: Overwrite existing files.

    Returns:
        The files written, and what is missing.
    """
    written, missing = list[Path](), list[Missing]()
    runs = [own.run for sources in found.methods.values() for own in sources if own.run is not None]
    places = {"recipe": runs[0].recipe.name if runs else "RECIPE", "study": study.rstrip("/")}
    for item in lookup(paper, ITEMS, "paper"):
        drawn = DRAWINGS[item.drawing](found, **item.options) if _has(item, runs) else None
        name = f"{paper}-{item.number.lower().replace(' ', '-')}"
        if drawn is None:
            missing.append(Missing(item, item.command.format(**places)))
        elif isinstance(drawn, str):
            path = folder / f"{name}.md"
            with replacing(path, force=force) as temporary:
                temporary.write_text(f"{item.number}: {item.title}\n\n{drawn}", encoding="utf-8")
            written.append(path)
        else:
            written += save(folder, name, drawn, force=force)
        close_all()
    return written, missing


def _has(item: Item, runs: Sequence[Run]) -> bool:
    """Whether a run has the loss that an item is about."""
    if not item.having:
        return True
    loss, wanted = item.having["loss"], {name: value for name, value in item.having.items() if name != "loss"}
    for run in runs:
        if run.recipe.loss.name == loss:
            defaults = {name: own.default for name, own in inspect.signature(METHODS[loss].loss).parameters.items()}
            options = {**defaults, **run.recipe.methods.get(loss, {}), **run.recipe.loss.options}
            if all(options[n] is not None if value is any else options[n] == value for n, value in wanted.items()):
                return True
    return False


# How they are drawn


def _both_curves(found: Collected, keys: Sequence[str], loss: str) -> MetricPath | None:
    """Validation and test curves of a loss with several options: two lines for each."""
    own = {
        name: sources
        for name, sources in found.methods.items()
        if sources[0].run and sources[0].run.recipe.loss.name == loss
    }
    found = replace(found, methods=own)
    if len(own) < 2:
        return None
    parts = [curves(found, keys, part) for part in ("validation", "test")]
    if parts[0] is None or parts[1] is None or parts[0].names != parts[1].names:
        return None
    names = [f"{name}, {part.part}" for part in parts if part for name in part.names]
    values = {key: [*parts[0].values[key], *parts[1].values[key]] for key in keys}
    return MetricPath(names, [*parts[0].epochs, *parts[1].epochs], values, "validation and test")


def _curves(found: Collected, keys: Sequence[str], part: str = "validation", *, runs: bool = False) -> MetricPath | None:
    """Curves of all methods, or of all their runs."""
    if runs:
        methods = {
            (f"{name}, {own.name}" if len(sources) > 1 else name): [own]
            for name, sources in found.methods.items()
            for own in sources
        }
        found = replace(found, methods=methods)
    return curves(found, keys, part)


def _gammas(found: Collected) -> BinCurves | None:
    return gammas(found.methods)


def _predictions(source: Source, part: str = "test") -> tuple[torch.Tensor, torch.Tensor] | None:
    if source.run is None or not source.run.folder.predictions(part).exists():
        return None
    return source.run.folder.open(part).read_all()


def _reliability(found: Collected, num_bins: int) -> Any:
    """Reliability diagrams of the test predictions of all runs, pooled."""
    diagrams = []
    for name, sources in found.methods.items():
        both = [own for source in sources if (own := _predictions(source)) is not None]
        if not both:
            return None
        logits, target = (torch.cat(parts) for parts in zip(*both, strict=True))
        diagrams.append(ReliabilityDiagram.from_logits(logits, target, name, num_bins=num_bins, resamples=200))
    return ReliabilityDiagram.side_by_side(diagrams)


def _roc(found: Collected) -> ROC | None:
    """ROC curves of the first run of each method, before and after temperature scaling, on the first OOD data."""
    pairs: dict[str, tuple[Any, Any]] = {}
    name = ""
    for method, sources in found.methods.items():
        run = sources[0].run
        known = _predictions(sources[0])
        if run is None or known is None:
            continue
        name = next((own for own in run.folder.ood() if name in ("", own)), name)
        path = run.folder.ood_predictions(name)
        if not name or not path.exists():
            continue
        unknown = torch.cat([chunk.logits for chunk in open_predictions(path).chunks()])
        pairs[method] = (known[0], unknown)
        pairs[f"{method}, post T"] = (known[0] / run.result.temperature, unknown / run.result.temperature)
    return ROC.from_logits(pairs, title=f"OOD data: {name}") if pairs else None


def _table(
    found: Collected, keys: Sequence[str] = (), stages: Sequence[Stage] = STAGES, *, ood: bool = False, swept: str = ""
) -> str | None:
    """Methods x measures, before and after temperature scaling."""
    known = dict.fromkeys(key for sources in found.methods.values() for own in sources for key in own.values["before"])
    keys = [key for key in known if key.startswith("auroc:")] if ood else keys
    if not keys or any(key not in known for key in keys):
        return None
    if swept and not any(getattr(figure, "option", "").split(".")[-1] == swept for figure in found.sweeps.values()):
        return None
    values = {
        name: {
            (key, stage): [own.values[stage][key] for own in sources if key in own.values.get(stage, {})]
            for key in keys
            for stage in stages
        }
        for name, sources in found.methods.items()
    }
    return _markdown(found, values)


def _measured(found: Collected, key: str, **options: Any) -> str | None:
    """A measure with options of its own, from the test predictions."""
    values: dict[str, dict[tuple[str, Stage], list[float]]] = {}
    for name, sources in found.methods.items():
        own: dict[tuple[str, Stage], list[float]] = {(key, stage): [] for stage in STAGES}
        for source in sources:
            both = _predictions(source)
            if both is None or source.run is None:
                return None
            for stage, temperature in zip(STAGES, (1.0, source.run.result.temperature), strict=True):
                own[key, stage].append(float(FUNCTIONS[key](both[0] / temperature, both[1], **options)))
        values[name] = own
    return _markdown(found, values)


def _markdown(found: Collected, values: Mapping[str, Mapping[tuple[str, Stage], Sequence[float]]]) -> str:
    columns = [column for column in next(iter(values.values())) if any(row[column] for row in values.values())]
    heads = [measure(key).label + (", post T" if stage == "after" else "") for key, stage in columns]
    after = any(stage == "after" for _, stage in columns)
    rows = []
    for name, row in values.items():
        entries = [name]
        for key, stage in columns:
            own, record = row[key, stage], measure(key)
            text = record.text(statistics.mean(own)) if own else "-"
            entries.append(text + (f" ± {record.text(statistics.stdev(own))}" if len(own) > 1 else ""))
        if after:
            scaled = [source.run.result.temperature for source in found.methods[name] if source.run is not None]
            entries.append(f"{statistics.mean(scaled):.2f}" if scaled else "-")
        rows.append(entries)
    return markdown_table(["method", *heads, *(["T"] if after else [])], rows) + "\n"


#: How figures and tables are drawn: functions of what a report collected, which return None if data are missing.
DRAWINGS: Final[dict[str, Callable[..., Any]]] = {
    "accuracy_vs_ece": accuracy_vs_ece,
    "bars": bars,
    "bins": bins,
    "both_curves": _both_curves,
    "curves": _curves,
    "focal": lambda found: FocalShapes.of(),  # noqa: ARG005
    "gammas": _gammas,
    "measured": _measured,
    "multipliers": multipliers,
    "penalty": lambda found: PenaltyShapes.of(),  # noqa: ARG005
    "reliability": _reliability,
    "roc": _roc,
    "table": _table,
}
