"""The papers' figures, written to files."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure as Canvas

from calibrant.files import file_name, replacing
from calibrant.metrics.table import measure
from calibrant.plots import AccuracyVsECE, BinCurves, MethodBars, MetricPath, MultiplierPath, ReliabilityDiagram
from calibrant.plots.base import Figure, close_all, styled
from calibrant.report.collect import Collected, Source
from calibrant.report.search import search_plot
from calibrant.runs import STAGES, Stage


def write_figures(folder: Path, found: Collected, content: dict[str, Any], *, force: bool = False) -> list[Path]:
    """Write every figure there is data for, as .pdf and .png."""
    written = []
    for name, figure in figures(found, content).items():
        written += save(folder, name, figure, force=force)
    close_all()
    return written


@styled
def save(
    folder: Path, name: str, figure: Figure | Canvas, *, force: bool = False, endings: Sequence[str] = ("pdf", "png")
) -> list[Path]:
    """Write a figure, drawn once, as .pdf and .png."""
    written = [folder / f"{file_name(name)}.{ending}" for ending in endings]
    canvas = figure.plot().get_figure(root=True) if isinstance(figure, Figure) else figure
    for path in written:
        with replacing(path, force=force) as temporary:
            if canvas is not None:
                canvas.savefig(temporary, bbox_inches="tight")
    plt.close(canvas)
    return written


def figures(found: Collected, content: dict[str, Any]) -> dict[str, Any]:
    """Figures by name."""
    methods = content["methods"]
    diagrams = [_diagram(m["bins"]) for m in methods]
    drawn: dict[str, Any] = {"reliability": ReliabilityDiagram.side_by_side(diagrams)}
    if len(methods) > 1:
        drawn["accuracy-vs-ece"] = accuracy_vs_ece(found)
        drawn["bars"] = bars(found, ("accuracy", "ece", "nll"))
    more = {
        "epochs": curves(found, ("ece", "accuracy"), "validation"),
        "epochs-test": curves(found, ("ece", "accuracy"), "test"),
        "bins": bins(found, ("error", "all")),
        "multipliers": multipliers(found),
    }
    drawn |= {name: figure for name, figure in more.items() if figure is not None}
    for name, sources in found.methods.items():
        own = gammas({name: sources})
        if own is not None:
            label = "".join(c if c.isalnum() or c in "-=." else "-" for c in name)
            drawn[f"gammas-{label}"] = own
    if found.search is not None:
        drawn["search"] = search_plot(found.search)
    return {**drawn, **found.sweeps}


# Each figure is drawn only if the runs have the data for it.


def accuracy_vs_ece(found: Collected) -> AccuracyVsECE | None:
    """Methods by accuracy and ECE."""
    if len(found.methods) < 2:
        return None
    pairs = {
        name: [(own.values["before"]["accuracy"], own.values["before"]["ece"]) for own in sources]
        for name, sources in found.methods.items()
    }
    return AccuracyVsECE.from_runs(pairs)


def bars(found: Collected, keys: Sequence[str]) -> MethodBars | None:
    """Measures of all methods, before and, for runs, after temperature scaling."""
    first = next(iter(found.methods.values()))[0].values["before"]
    stages: tuple[Stage, ...] = STAGES
    values: dict[Stage, dict[str, list[list[float]]]] = {
        stage: {
            key: [[own.values[stage][key] for own in sources if stage in own.values] for sources in found.methods.values()]
            for key in keys
            if key in first
        }
        for stage in stages
    }
    after = values["after"] if all(group for groups in values["after"].values() for group in groups) else {}
    return MethodBars(list(found.methods), values["before"], {k: v for k, v in after.items() if measure(k).scaled})


def curves(found: Collected, keys: Sequence[str], part: str) -> MetricPath | None:
    """Measures over epochs, of the methods that have them."""
    columns = [("test_" if part == "test" else "") + ("accuracy" if key == "error" else key) for key in keys]
    histories = {
        name: [own.history for own in sources if own.history]
        for name, sources in found.methods.items()
        if all(column in own.history for own in sources for column in columns)
    }
    histories = {name: own for name, own in histories.items() if own}
    return MetricPath.from_histories(histories, keys, part) if histories else None


def bins(found: Collected, rows: Sequence[str], **options: Any) -> BinCurves | None:
    """Bins over epochs, of the methods that have them; those with another number of bins than the first are left out."""
    runs = {name: [own.bins for own in sources if own.bins is not None] for name, sources in found.methods.items()}
    runs = {name: own for name, own in runs.items() if own}
    if not runs:
        return None
    number = next(iter(runs.values()))[0].num_bins
    runs = {name: own for name, own in runs.items() if all(one.num_bins == number for one in own)}
    paths = {
        name: [s.learned["gammas"] for s in sources if "gammas" in s.learned] for name, sources in found.methods.items()
    }
    gammas = {
        name: np.mean([path[: min(map(len, own))] for path in own], axis=0)
        for name, own in paths.items()
        if own and all(path.shape[1] == number for path in own)
    }
    return BinCurves.from_bins(runs, rows=rows, gammas=gammas, **options)


def multipliers(found: Collected) -> Canvas | None:
    """Multipliers of every run, methods side by side."""
    paths: dict[str, list[MultiplierPath]] = {}
    for name, sources in found.methods.items():
        for own in sources:
            if "multipliers" in own.learned:
                names = [row.name or str(k) for k, row in enumerate(own.audits["before"].classes)]
                path = MultiplierPath.from_history(own.learned["epoch"], own.learned["multipliers"], names)
                paths.setdefault(name, []).append(path)
    return MultiplierPath.side_by_side(paths) if paths else None


def gammas(methods: Mapping[str, Sequence[Source]], number: int = 8) -> BinCurves | None:
    """Calibration errors and gammas of every run, in some bins."""
    runs = {
        (f"{name}, {own.name}" if len(sources) > 1 else name): own.learned
        for name, sources in methods.items()
        for own in sources
        if "gammas" in own.learned
    }
    if not runs:
        return None
    count = min(learned["gammas"].shape[1] for learned in runs.values())
    shown = sorted({round(b) for b in np.linspace(0, count - 1, min(number, count))})

    def rows(values: Callable[[Mapping[str, np.ndarray]], np.ndarray]) -> list[list[list[float]]]:
        return [[values(learned)[:, b].astype(float).tolist() for b in shown] for learned in runs.values()]

    drawn = {
        "error": {"validation": rows(lambda own: own["confidences"] - own["accuracies"])},
        "gamma": {"gamma": rows(lambda own: own["gammas"])},
    }
    return BinCurves(list(runs), [own["epoch"].tolist() for own in runs.values()], shown, drawn)


def _diagram(bins: dict[str, Any]) -> ReliabilityDiagram:
    return ReliabilityDiagram(**{key: value for key, value in bins.items() if key != "right"})
