"""The papers' figures, written to files."""

from pathlib import Path
from typing import Any

from calibrant.files import file_name, replacing
from calibrant.plots import AccuracyVsECE, GammaPath, MethodBars, MetricPath, MultiplierPath, ReliabilityDiagram
from calibrant.plots.base import Figure, close_all
from calibrant.report.collect import Collected


def write_figures(folder: Path, found: Collected, content: dict[str, Any], *, force: bool = False) -> list[Path]:
    """Write every figure there is data for, as .pdf and .png."""
    written = []
    for name, figure in {**figures(content), **found.sweeps}.items():
        for ending in ("pdf", "png"):
            path = folder / f"{file_name(name)}.{ending}"
            with replacing(path, force=force) as temporary:
                if isinstance(figure, Figure):
                    figure.save(temporary)
                else:
                    figure.savefig(temporary)
            written.append(path)
    close_all()
    return written


def figures(content: dict[str, Any]) -> dict[str, Any]:
    """Figures by name."""
    methods = content["methods"]
    diagrams = [_diagram(m["bins"]) for m in methods]
    found: dict[str, Any] = {"reliability": ReliabilityDiagram.side_by_side(diagrams)}
    if len(methods) > 1:
        runs = {m["name"]: list(zip(m["all"]["accuracy"], m["all"]["ece"], strict=True)) for m in methods}
        found["accuracy-vs-ece"] = AccuracyVsECE.from_runs(runs)
        points = {key: [m["all"][key] for m in methods] for key in ("accuracy", "ece", "nll")}
        found["bars"] = MethodBars([m["name"] for m in methods], points)
    trained = [m for m in methods if m["epochs"]]
    if trained:
        first = [m["epochs"][0] for m in trained]
        kept = [[i for i, value in enumerate(h["ece"]) if value is not None] for h in first]
        columns = {
            key: [[h[key][i] for i in own] for h, own in zip(first, kept, strict=True)]
            for key in ("epoch", "ece", "accuracy")
        }
        found["epochs"] = MetricPath([m["name"] for m in trained], columns["epoch"], columns["ece"], columns["accuracy"])
    for m in methods:
        label = "".join(c if c.isalnum() or c in "-=." else "-" for c in m["name"])
        if m["multipliers"]:
            own = m["multipliers"]
            found[f"multipliers-{label}"] = MultiplierPath(own["epochs"], own["max"], own["mean"], own["min"], {})
        if m["gammas"]:
            rows = {key: [list(row) for row in zip(*m["gammas"][key], strict=True)] for key in ("gammas", "errors")}
            found[f"gammas-{label}"] = GammaPath(m["gammas"]["epochs"], rows["gammas"], rows["errors"])
    return found


def _diagram(bins: dict[str, Any]) -> ReliabilityDiagram:
    return ReliabilityDiagram(**{key: value for key, value in bins.items() if key != "right"})
