"""One page of a study, of runs, or of audited predictions: everything in it, nothing from the network."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from calibrant import __version__
from calibrant.audit import Audit, column, measure
from calibrant.binning import BinStatistics
from calibrant.extras import require
from calibrant.predictions import InputError, open_predictions, replacing
from calibrant.stats import bins_interval, wilson

if TYPE_CHECKING:
    from calibrant.train import Run

#: Measures of the table, the second and the fourth of segmented images only; unknown or corrupted images add theirs.
SHOWN = (
    "accuracy",
    "mean_iou",
    "ece",
    "image_ece",
    "adaptive_ece",
    "classwise_ece",
    "debiased_ece",
    "smooth_ece",
    "nll",
    "brier",
)
#: At most so many classes are shown by name.
CLASSES = 200


def write_report(path: str | Path, sources: Sequence[str | Path | Audit], *, force: bool = False) -> None:
    """Write the page.

    Args:
        path: Where to, an .html.
        sources: Study folders, run folders, files of predictions, or audits.
        force: Replace what is there.
    """
    jinja2 = require("jinja2", "a report")
    content = collect(sources)
    plotly = require("plotly.offline", "a report").get_plotlyjs()
    environment = jinja2.Environment(loader=jinja2.PackageLoader("calibrant.report"), autoescape=True)
    # Inside <script> only "<" can end the data: written as an escape of JSON, nothing in it can.
    data = json.dumps(_finite(content)).replace("<", "\\u003c")
    page = environment.get_template("report.html").render(
        title=content["title"],
        headline=content["headline"],
        sections=content["sections"],
        data=data,
        plotly=plotly,
        version=__version__,
    )
    with replacing(path, force=force) as temporary:
        temporary.write_text(page, encoding="utf-8")


def collect(sources: Sequence[str | Path | Audit]) -> dict[str, Any]:
    """Everything the page shows, in plain Python types."""
    if len(sources) == 1 and not isinstance(sources[0], Audit) and (Path(sources[0]) / "study.json").exists():
        return _study(Path(sources[0]))
    methods: dict[str, list[dict[str, Any]]] = {}
    words = []
    for source in sources:
        if not isinstance(source, Audit) and (Path(source) / "recipe.yaml").exists():
            run = _load(Path(source))
            methods.setdefault(_free(Path(source).name, methods), []).append(_of_run(run))
            words.append(run.metrics["test"]["verdict"].replace("test:", f"{Path(source).name}:", 1))
            continue
        audit = source if isinstance(source, Audit) else _audit(Path(source))
        methods.setdefault(_free(audit.name, methods), []).append({"test": audit.to_dict(), "after": None})
        words.append(audit.verdict)
    return _content("Calibration report", words, methods)


def _audit(path: Path) -> Audit:
    if path.is_dir() and not (path / "predictions").is_dir():
        raise InputError(f"{path} is neither a study nor a run folder: it has no study.json and no predictions")
    return measure(open_predictions(path), path.stem)


def _free(name: str, taken: Mapping[str, Any]) -> str:
    return name if name not in taken else next(f"{name} ({i})" for i in range(2, 10_000) if f"{name} ({i})" not in taken)


def _study(folder: Path) -> dict[str, Any]:
    study = json.loads((folder / "study.json").read_text())
    methods: dict[str, list[dict[str, Any]]] = {}
    for cell in study["cells"]:
        if cell["state"] == "done":
            methods.setdefault(cell["method"], []).append(_of_run(_load(folder / cell["folder"])))
    words = headline(study["summaries"])
    failed = [
        f"{cell['method']}, seed {cell['seed']} failed: {cell['problem']}"
        for cell in study["cells"]
        if cell["state"] != "done"
    ]
    return _content(
        study["title"], [*words, *failed], methods, {row["method"]: row["p_values"] for row in study["summaries"]}
    )


def headline(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which method, how much better, with interval, in plain words."""
    ece = {row["method"]: 100 * statistics.mean(row["before"]["ece"]) for row in summaries}
    accuracy = {row["method"]: 100 * statistics.mean(row["before"]["accuracy"]) for row in summaries}
    first = summaries[0]["method"]
    best = min(ece, key=lambda name: ece[name])
    seeds = len(summaries[0]["seeds"])
    runs = f"{seeds} runs of each" if seeds > 1 else "one run of each"
    off = f"off by {ece[best]:.1f} points on average ({runs})"
    if best == first:
        return [f"{best} knows best how sure it is: its confidence is {off}.", "No other method in this study comes closer."]
    row = next(row for row in summaries if row["method"] == best)
    found = row["differences"].get("ece")
    text, more = f"{best} knows best how sure it is: its confidence is {off}.", f"{first} is off by {ece[first]:.1f}."
    if found:
        gap = f"{100 * found['difference']:.1f} points (95 % interval {100 * found['low']:.1f} to {100 * found['high']:.1f})"
        more = f"{first} is off by {ece[first]:.1f}. Over all test samples together the gap is {gap}"
        if row["p_values"]["ece"] < 0.05:
            more += ", more than chance."
        else:
            text = f"{best} comes out first, {off}, but its lead may be chance."
            more += ", which chance could explain."
    gain = accuracy[best] - accuracy[first]
    same = abs(gain) < 0.05
    change = "the same as" if same else f"{abs(gain):.1f} points {'higher' if gain > 0 else 'lower'} than"
    return [text, more, f"Its accuracy, {accuracy[best]:.1f} %, is {change} that of {first}."]


def _load(folder: Path) -> "Run":
    from calibrant.train import Run  # noqa: PLC0415 - Lightning takes a while

    return Run.load(folder)


def _of_run(run: "Run") -> dict[str, Any]:
    """What a run folder adds to its metrics."""
    found: dict[str, Any] = {"test": {**run.metrics["test"]}, "after": {**run.metrics["test_after_temperature"]}}
    _add_beyond(run.folder, found)
    found |= {"temperature": run.metrics["temperature"], "seed": run.metrics["seed"], "folder": str(run.folder)}
    with (run.folder / "history.csv").open() as file:
        header, *lines = [line.strip().split(",") for line in file]
    found["history"] = {
        name: [None if cell == "" else float(cell) for cell in column]
        for name, column in zip(header, zip(*lines, strict=True), strict=True)
        if name in ("epoch", "ece", "accuracy", "train_loss", "validation_loss", "nll")
    }
    if (run.folder / "learned.npz").exists():
        with np.load(run.folder / "learned.npz", allow_pickle=False) as learned:
            found["learned"] = {name: learned[name] for name in learned.files}
    found["recipe"] = (run.folder / "recipe.yaml").read_text()
    found["environment"] = (run.folder / "environment.json").read_text()
    return found


def _add_beyond(folder: Path, found: dict[str, Any]) -> None:
    """Add what ``calibrant ood`` and ``calibrant shift`` measured."""
    from calibrant.study import ood, shift  # noqa: PLC0415 - Lightning takes a while

    for name, result in ood.results(folder).items():
        for part, values in (("before", found["test"]), ("after", found["after"])):
            values[f"auroc:{name}"] = result[part]["entropy"]["auroc"]
    found["shifted"] = shift.results(folder)


def _add_shift(runs: Sequence[dict[str, Any]]) -> None:
    """Add means over the corruptions that were measured of all runs, which alone can be compared."""
    shifted = [run.get("shifted") or {} for run in runs]
    if not all(shifted) or len({(one["seed"], one["source"]) for one in shifted}) > 1:
        return
    from calibrant.study import shift  # noqa: PLC0415 - Lightning takes a while

    pairs = [{(record["corruption"], record["severity"]) for record in one["results"]} for one in shifted]
    shared = set.intersection(*pairs)
    if not any(severity for _, severity in shared):
        return
    for run, one in zip(runs, shifted, strict=True):
        own = {"results": [r for r in one["results"] if (r["corruption"], r["severity"]) in shared]}
        for part, values in (("before", run["test"]), ("after", run["after"])):
            values |= {f"shift_{name}": shift.mean_of(own, part, name) for name in ("accuracy", "ece")}
        run["severities"] = {name: shift.by_severity(own, "before", name) for name in ("accuracy", "ece")}


def _shown(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Measures that all runs have."""
    more = [name for name in tests[0] if name.startswith(("auroc:", "shift_"))]
    names = [name for name in (*SHOWN, *more) if all(name in test for test in tests)]
    return names if "image_ece" in names else [name for name in names if name != "mean_iou"]  # which is of segmented images


def _content(
    title: str,
    words: Sequence[str],
    methods: Mapping[str, Sequence[dict[str, Any]]],
    p_values: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    if not methods:
        raise InputError("there is nothing to report: no run is finished")
    _add_shift([run for runs in methods.values() for run in runs])
    names = _shown([run["test"] for runs in methods.values() for run in runs])
    shown = [_method(name, runs, (p_values or {}).get(name, {}), names) for name, runs in methods.items()]
    first = next(iter(methods.values()))[0]
    sections = {
        "after": any(method["after"] for method in shown),
        "epochs": any(method["epochs"] for method in shown),
        "multipliers": any(method["multipliers"] for method in shown),
        "gammas": any(method["gammas"] for method in shown),
        "groups": any(method["groups"] for method in shown),
        "shift": any(method["shift"] for method in shown),
        "scatter": len(shown) > 1,
    }
    return {
        "title": title,
        "headline": list(words),
        "columns": [{"key": k, "title": t, "percent": p, "more": m} for k, (t, p, m) in ((k, column(k)) for k in names)],
        "methods": shown,
        "sections": sections,
        "how": first["test"]["recipe"],
        "samples": first["test"]["samples"],
        "recipe": first.get("recipe", ""),
        "environment": first.get("environment", ""),
    }


def _method(
    name: str, runs: Sequence[Mapping[str, Any]], p_values: Mapping[str, float], shown: Sequence[str]
) -> dict[str, Any]:
    """One method: its runs pooled for diagrams, averaged for tables."""
    tests = [run["test"] for run in runs]
    after = [run["after"] for run in runs if run["after"]]
    learned: Mapping[str, Any] = next((run["learned"] for run in runs if "learned" in run), {})
    return {
        "name": name,
        "runs": len(runs),
        "values": {key: _spread([test[key] for test in tests]) for key in shown},
        "values_after": {key: _spread([test[key] for test in after]) for key in shown} if after else None,
        "intervals": tests[0]["intervals"] if len(runs) == 1 else {},
        "p": p_values.get("ece"),
        "temperature": statistics.mean(run["temperature"] for run in runs) if after else None,
        "all": {key: [test[key] for test in tests] for key in shown},
        "bins": _pooled(tests),
        "after": _pooled(after) if after else None,
        "epochs": [run["history"] for run in runs if "history" in run],
        "multipliers": _multipliers(learned, tests[0]),
        "gammas": _gammas(learned),
        "groups": _groups(tests),
        "shift": _shift([run["severities"] for run in runs if run.get("severities")]),
        "classes": _classes(tests),
    }


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": statistics.mean(values), "std": statistics.stdev(values) if len(values) > 1 else None}


def _pooled(tests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Bins of all runs together, with Wilson's interval of the accuracy."""
    counts, confidence, accuracy = (
        torch.tensor([[v if v is not None else 0.0 for v in test["bins"][key]] for test in tests], dtype=torch.float64)
        for key in ("counts", "confidence", "accuracy")
    )
    total = counts.sum(dim=0)
    right = (counts * accuracy.nan_to_num()).sum(dim=0)
    sure = (counts * confidence.nan_to_num()).sum(dim=0)
    low, high = wilson(right, total)
    share = total.clamp(min=1)
    ece = bins_interval(BinStatistics(total, sure, right))
    if "image_ece" in tests[0]:  # pixels are not independent: the runs' own intervals, from resampled images
        bounds = [[test["intervals"]["ece"][side] for test in tests] for side in ("low", "high")]
        ece = replace(ece, low=statistics.mean(bounds[0]), high=statistics.mean(bounds[1]))
    return {
        "counts": total.long().tolist(),
        "right": right.round().long().tolist(),
        "confidence": (sure / share).tolist(),
        "accuracy": (right / share).tolist(),
        "low": low.tolist(),
        "high": high.tolist(),
        "ece": ece.value,
        "ece_low": ece.low,
        "ece_high": ece.high,
    }


def _shift(runs: Sequence[Mapping[str, Mapping[int, float]]]) -> dict[str, Any] | None:
    """Accuracy and ECE at each severity, means over runs."""
    if not runs:
        return None
    severities = sorted(set.intersection(*(set(run["ece"]) for run in runs)))
    means = {name: [statistics.mean(run[name][s] for run in runs) for s in severities] for name in ("accuracy", "ece")}
    return {"severities": severities, **means}


def _multipliers(learned: Mapping[str, Any], test: Mapping[str, Any]) -> dict[str, Any] | None:
    if "multipliers" not in learned:
        return None
    values = np.asarray(learned["multipliers"], dtype=np.float64)
    names = [row.get("name", str(k)) for k, row in enumerate(test["classes"])]
    return {
        "max": values.max(1).tolist(),
        "mean": values.mean(1).tolist(),
        "min": values.min(1).tolist(),
        "classes": names[:CLASSES],
        "values": values[:, :CLASSES].T.tolist(),
    }


def _gammas(learned: Mapping[str, Any]) -> dict[str, Any] | None:
    if "gammas" not in learned:
        return None
    found = {name: np.asarray(learned[name], dtype=np.float64) for name in learned}
    lower = np.concatenate([np.zeros((len(found["edges"]), 1)), found["edges"]], axis=1)
    return {
        "gammas": found["gammas"].T.tolist(),
        "errors": (found["confidences"] - found["accuracies"]).T.tolist(),
        "validation": found["confidences"].T.tolist(),
        "train": found["train_confidences"].T.tolist() if "train_confidences" in found else None,
        "edges": lower.T.tolist(),
    }


def _groups(tests: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    names = [name for name, group in tests[0]["groups"].items() if group["samples"]]
    if not names:
        return None
    return {name: {key: _spread([t["groups"][name][key] for t in tests]) for key in ("accuracy", "ece")} for name in names}


def _classes(tests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for k, first in enumerate(tests[0]["classes"][:CLASSES]):
        filled = [t["classes"][k] for t in tests if t["classes"][k]["samples"]]
        row = {"name": first.get("name", str(k)), "samples": sum(r["samples"] for r in filled)}
        row |= {key: statistics.mean(r[key] for r in filled) if filled else None for key in ("accuracy", "confidence")}
        row["classwise_ece"] = statistics.mean(t["classes"][k].get("classwise_ece", 0.0) for t in tests)
        rows.append(row)
    return rows


def _finite(value: Any) -> Any:
    """JSON knows no NaN."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return round(value, 6) if isinstance(value, float) else value
