"""Collecting the content of a report from studies, runs, prediction files or audits."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from calibrant.audit import Audit, audit
from calibrant.binning import BinStatistics
from calibrant.checks import one_of
from calibrant.errors import InputError, input_errors
from calibrant.metrics import EpochBins
from calibrant.metrics.epochs import Binning, Label
from calibrant.metrics.table import MEASURES, measure, ranked
from calibrant.plots import BinCurves, ReliabilityDiagram, Sweep, SweepMap
from calibrant.plots.epochs import by_class
from calibrant.posthoc.temperature import Criterion
from calibrant.predictions import open_predictions
from calibrant.report.search import search_plain
from calibrant.report.sweeps import plain as sweeps_plain, sweeps
from calibrant.report.words import headline
from calibrant.runs import STAGES, Run, RunFolder, ShiftResult, Stage, StudyFolder, TuningFolder, TuningResult
from calibrant.runs.results import other_criterion

#: Maximum number of classes shown by name.
CLASSES = 200
#: Columns of the history that are plotted.
CURVES = ("ece", "accuracy", "adaptive_ece", "classwise_ece", "nll")
HISTORY = ("epoch", "train_loss", "validation_loss", *CURVES, *(f"test_{key}" for key in CURVES))
#: Training confidences by bin that the page shows next to the confidence and accuracy of the validation bins.
PATHS: dict[str, tuple[Binning, Label]] = {
    "common, true": ("common", "true"),
    "common, top": ("common", "top"),
    "independent, true": ("independent", "true"),
    "independent, top": ("independent", "top"),
}
#: Maximum number of points per bin curve on the page.
POINTS = 60


@dataclass
class Source:
    """One audited set of predictions, with the run it comes from, if any.

    Attributes:
        audits: Audits before and, for a run, after temperature scaling.
        values: All measures of each stage, including those on OOD and corrupted data.
        run: The run.
        history: Losses and measures by epoch.
        learned: What an adaptive loss learned, by epoch.
        shift: Results on the corrupted images that all runs share.
        bins: Bins of training and validation samples by epoch.
    """

    audits: dict[Stage, Audit]
    values: dict[Stage, dict[str, float]]
    run: Run | None = None
    history: dict[str, list[float | None]] = field(default_factory=dict)
    learned: Mapping[str, np.ndarray] = field(default_factory=dict)
    shift: ShiftResult | None = None
    bins: EpochBins | None = None

    @staticmethod
    def of_audit(found: Audit) -> "Source":
        """From an audit alone."""
        return Source({"before": found}, {"before": dict(found.values)})

    @staticmethod
    def of_run(run: Run, criterion: Criterion | None = None) -> "Source":
        """From a run folder; with the temperature by another criterion than the run's own, if given."""
        same = criterion in (None, run.result.criterion)
        run = run if criterion is None else replace(run, result=run.result.scaled_by(criterion))
        audits = {stage: run.result.at(stage) for stage in STAGES}
        values = {stage: dict(audits[stage].values) for stage in STAGES}
        for name, result in run.folder.ood().items() if same else ():  # measured with the run's own temperature
            for stage in STAGES:
                values[stage][f"auroc:{name}"] = result.at(stage)["entropy"].auroc
        rows = run.folder.history()
        history = {name: [row.get(name) for row in rows] for name in HISTORY if rows and name in rows[0]}
        shift = run.folder.shift() if same else None
        return Source(audits, values, run, history, run.folder.learned(), shift, run.folder.bins())

    @property
    def name(self) -> str:
        """What distinguishes it from other runs of its method."""
        return f"seed {self.run.recipe.seed}" if self.run else ""


@dataclass
class Collected:
    """Everything a report shows.

    Attributes:
        title: Its title.
        words: The verdict, in sentences.
        methods: Audited predictions by method, one per run.
        p_values: For the difference in ECE from the first method.
        differences: These differences.
        note: How temperatures and p-values were computed.
        sweeps: Figures of swept options, by name.
        search: The search that chose the options of the method, if there was one.
    """

    title: str
    words: list[str]
    methods: dict[str, list[Source]]
    p_values: dict[str, float] = field(default_factory=dict)
    differences: dict[str, float | None] = field(default_factory=dict)
    note: str = ""
    sweeps: dict[str, Sweep | SweepMap] = field(default_factory=dict)
    search: TuningResult | None = None


#: What a report can be about.
Reported = str | Path | Audit | RunFolder | StudyFolder | TuningFolder


def collect(sources: Sequence[Reported], temperature: Criterion | None = None) -> Collected:
    """Collect the content of a report.

    Args:
        sources: The folder of a study or a search, run folders, prediction files, or audits.
        temperature: What the temperatures of runs minimise; their own criterion if not given.
    """
    if temperature is not None:
        with input_errors():
            one_of("`temperature`", temperature, get_args(Criterion))
    if len(sources) == 1 and not isinstance(sources[0], Audit | RunFolder):
        place = str(sources[0])
        if StudyFolder(place).there:
            return _of_study(StudyFolder(place), temperature)
        if TuningFolder(place).there:
            return _of_search(TuningFolder(place), temperature)
    found = Collected("Calibration report", [], {})
    for source in sources:
        if not isinstance(source, Audit) and RunFolder(str(source)).started:
            run = Run.load(str(source))
            name = _free(run.folder.name, found.methods)
            found.methods[name] = [Source.of_run(run, temperature)]
            found.words.append(replace(run.result.test, name=name).verdict)
            continue
        own = source if isinstance(source, Audit) else _audit(Path(str(source)))
        name = _free(own.name, found.methods)
        found.methods[name] = [Source.of_audit(own)]
        found.words.append(replace(own, name=name).verdict)
    return _checked(found)


def _of_study(folder: StudyFolder, temperature: Criterion | None = None) -> Collected:
    study = folder.result()
    study = replace(study, criterion=temperature or study.criterion)
    methods: dict[str, list[Source]] = {}
    for job in study.jobs:
        if job.state == "done":
            methods.setdefault(job.method, []).append(Source.of_run(Run.load(folder.run(job.folder)), temperature))
    failed = [f"{job.method}, seed {job.seed} failed: {job.problem}" for job in study.jobs if job.state != "done"]
    p_values = {row.method: row.p_values["ece"] for row in study.summaries if "ece" in row.p_values}
    differences = {row.method: row.difference("ece") for row in study.summaries}
    words = [*headline(study.summaries), *failed] if study.summaries else failed
    return _checked(Collected(study.title, words, methods, p_values, differences, study.note, sweeps(study)))


def _of_search(folder: TuningFolder, temperature: Criterion | None = None) -> Collected:
    """The study of the best options, and how they were found."""
    result = folder.result()
    found = _of_study(folder.best(result.best.number), temperature)
    return replace(found, title=f"{found.title}, tuned", search=result)


def _checked(found: Collected) -> Collected:
    if not found.methods:
        raise InputError("there is nothing to report: no run has finished")
    _compare_shift([source for sources in found.methods.values() for source in sources])
    return found


def _audit(path: Path) -> Audit:
    if path.is_dir() and not RunFolder(path).predictions().exists():
        raise InputError(f"{path} is neither a study nor a run folder: it has no study.json and no predictions")
    return audit(open_predictions(path), path.stem)


def _free(name: str, taken: Mapping[str, Any]) -> str:
    return name if name not in taken else next(f"{name} ({i})" for i in range(2, 10_000) if f"{name} ({i})" not in taken)


def _compare_shift(sources: Sequence[Source]) -> None:
    """Keep the corruptions measured for all runs, since only they can be compared, and add their means."""
    shifted = [source.shift for source in sources if source.shift is not None]
    alike = len({(one.seed, one.source) for one in shifted}) == 1 and len(shifted) == len(sources)
    shared = set.intersection(*({record.key for record in one.results} for one in shifted)) if alike else set()
    for source in sources:
        if source.shift is None or not any(severity for _, severity in shared):
            source.shift = None
            continue
        source.shift = source.shift.only(shared)
        for stage, values in source.values.items():
            values |= {f"shift_{key}": source.shift.mean(stage, key) for key in ("accuracy", "ece")}


# As plain Python types, for the page


def content(found: Collected) -> dict[str, Any]:
    """Everything the page shows, as plain Python types."""
    sources = [source for own in found.methods.values() for source in own]
    keys = _shown(sources)
    methods = [
        {**_method(name, own, keys), "p": found.p_values.get(name), "difference": found.differences.get(name)}
        for name, own in found.methods.items()
    ]
    first = sources[0]
    flags = ("after", "epochs", "multipliers", "gammas", "paths", "groups", "shift")
    records = [measure(key) for key in keys]
    how = {MEASURES[key].title: text for key, text in first.audits["before"].how.items() if MEASURES[key].rank < 4}
    return {
        "title": found.title,
        "headline": list(found.words),
        "columns": [{"key": r.key, "title": r.title, "percent": r.percent, "more": r.higher} for r in records],
        "methods": methods,
        "sweeps": [sweeps_plain(figure) for figure in found.sweeps.values()],
        "search": None if found.search is None else search_plain(found.search),
        "sections": {
            **{flag: any(m[flag] for m in methods) for flag in flags},
            "scatter": len(methods) > 1,
            "sweeps": bool(found.sweeps),
            "search": found.search is not None,
            "test_curves": any("test_ece" in history for m in methods for history in m["epochs"]),
            "pooled": any(len(own) > 1 for own in found.methods.values()),
            "event": _event(methods),
            "runs": any(source.run for source in sources),
        },
        "how": how,
        "note": found.note,
        "samples": first.audits["before"].samples,
        "recipe": first.run.folder.recipe_text() if first.run else "",
        "environment": first.run.folder.environment_text() if first.run else "",
    }


def _shown(sources: Sequence[Source]) -> list[str]:
    """Measures that all sources have."""
    values = [source.values["before"] for source in sources]
    usual = [record.key for record in ranked(2, dense=sources[0].audits["before"].dense)]
    more = [key for key in values[0] if key.startswith(("auroc:", "shift_"))]
    return [key for key in (*usual, *more) if all(key in own for own in values)]


def _method(name: str, sources: Sequence[Source], keys: Sequence[str]) -> dict[str, Any]:
    """One method: runs are pooled for diagrams and averaged for tables."""
    before = [source.audits["before"] for source in sources]
    after = [source.audits["after"] for source in sources if "after" in source.audits]
    runs = [source.run for source in sources if source.run is not None]
    return {
        "name": name,
        "runs": len(sources),
        "values": {key: _spread([source.values["before"][key] for source in sources]) for key in keys},
        "values_after": {key: _spread([s.values["after"][key] for s in sources]) for key in keys} if after else None,
        "intervals": {k: i.to_dict() for k, i in before[0].intervals.items()} if len(sources) == 1 else {},
        "temperature": statistics.mean(run.result.temperature for run in runs) if runs else None,
        "criterion": runs[0].result.criterion if runs else None,
        "other": _by_other_criterion(runs),
        "all": {key: [source.values["before"][key] for source in sources] for key in keys},
        "bins": _pooled(name, before),
        "after": _pooled(name, after) if after else None,
        "epochs": [source.history for source in sources if source.history],
        "multipliers": [_multipliers(s, before[0]) for s in sources if "multipliers" in s.learned],
        "gammas": [_gammas(s) for s in sources if "gammas" in s.learned],
        "paths": _paths([source.bins for source in sources if source.bins is not None]),
        "groups": _groups(before),
        "shift": _shift([source.shift for source in sources if source.shift is not None]),
        "classes": _classes(before),
    }


def _by_other_criterion(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Mean temperature by the criterion that the table does not use, and the ECE after scaling by it."""
    results = [run.result for run in runs]
    temperatures = [r.other_temperature for r in results if r.other_temperature is not None]
    errors = [r.test_after_other["ece"] for r in results if r.test_after_other is not None]
    if not results or not len(temperatures) == len(errors) == len(results):
        return None
    name = other_criterion(results[0].criterion)
    return {"criterion": name, "temperature": statistics.mean(temperatures), "ece": _spread(errors)}


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": statistics.mean(values), "std": statistics.stdev(values) if len(values) > 1 else None}


def _event(methods: Sequence[dict[str, Any]]) -> str:
    """The event that all methods predict, if there is one."""
    events = {method["bins"]["event"] for method in methods}
    return str(events.pop()) if len(events) == 1 else ""


def _pooled(name: str, audits: Sequence[Audit]) -> dict[str, Any]:
    """Reliability diagram of all runs pooled."""
    bins = BinStatistics(*(sum(parts) for parts in zip(*(own.bins.statistics() for own in audits), strict=True)))
    ece = None
    if audits[0].dense:  # pixels are not independent: use the runs' own intervals, from resampling images
        own = [one.intervals["ece"] for one in audits]
        low, high = (statistics.mean(getattr(interval, end) for interval in own) for end in ("low", "high"))
        ece = replace(own[0], low=low, high=high)
    diagram = ReliabilityDiagram.from_bins(bins, ece, name, event=audits[0].event)
    return {**diagram.to_dict(), "right": bins.correct.round().long().tolist()}


def _shift(results: Sequence[ShiftResult]) -> dict[str, Any] | None:
    """Accuracy and ECE at each severity, averaged over runs."""
    if not results:
        return None
    severities = results[0].severities
    curves = {key: [result.by_severity("before", key) for result in results] for key in ("accuracy", "ece")}
    means = {key: [statistics.mean(own[s] for own in curve) for s in severities] for key, curve in curves.items()}
    return {"severities": severities, **means}


def _multipliers(source: Source, found: Audit) -> dict[str, Any]:
    values, names = by_class(source.learned["multipliers"], [row.name for row in found.classes])
    return {
        "run": source.name,
        "epochs": source.learned["epoch"].tolist(),
        "max": values.max(1).tolist(),
        "mean": values.mean(1).tolist(),
        "min": values.min(1).tolist(),
        "classes": names[:CLASSES],
        "values": values[:, :CLASSES].T.tolist(),
    }


def _gammas(source: Source) -> dict[str, Any]:
    found = {name: np.asarray(array, dtype=np.float64) for name, array in source.learned.items()}
    lower = np.concatenate([np.zeros((len(found["edges"]), 1)), found["edges"]], axis=1)
    return {
        "run": source.name,
        "epochs": found["epoch"].tolist(),
        "gammas": found["gammas"].T.tolist(),
        "errors": (found["confidences"] - found["accuracies"]).T.tolist(),
        "edges": lower.T.tolist(),
    }


def _paths(runs: Sequence[EpochBins]) -> dict[str, Any] | None:
    """Bins over epochs, averaged over runs and thinned out to the points that the page can use."""
    if not runs:
        return None
    length = min(len(own.epochs) for own in runs)
    some = np.unique(np.linspace(0, length - 1, min(POINTS, length)).round().astype(int))
    found: dict[str, Any] = {"epochs": runs[0].epochs[some].tolist(), "count": runs[0].num_bins}
    shown = range(runs[0].num_bins)
    for name, (binning, label) in PATHS.items():
        rows = BinCurves.from_bins({"": runs}, rows=["all"], bins=shown, binning=binning, label=label).rows["all"]
        found |= {name: rows["train"][0], "confidence": rows["validation"][0], "accuracy": rows["accuracy"][0]}
    for name in (*PATHS, "confidence", "accuracy"):
        found[name] = [[path[i] for i in some] for path in found[name]]
    return found


def _groups(audits: Sequence[Audit]) -> dict[str, Any] | None:
    names = [name for name, group in audits[0].groups.items() if group.samples]
    if not names:
        return None
    return {
        name: {key: _spread([getattr(own.groups[name], key) for own in audits]) for key in ("accuracy", "ece")}
        for name in names
    }


def _classes(audits: Sequence[Audit]) -> list[dict[str, Any]]:
    rows = []
    for k, first in enumerate(audits[0].classes[:CLASSES]):
        filled = [own.classes[k] for own in audits if own.classes[k].samples]
        row: dict[str, Any] = {"name": first.name or str(k), "samples": sum(own.samples for own in filled)}
        for key in ("accuracy", "confidence"):
            row[key] = statistics.mean(getattr(own, key) for own in filled) if filled else None
        row["classwise_ece"] = statistics.mean(own.classes[k].classwise_ece for own in audits)
        rows.append(row)
    return rows
