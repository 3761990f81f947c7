"""From runs to rows: mean and spread over seeds, before and after temperature scaling, and significance."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant import stats
from calibrant.inputs import for_measuring
from calibrant.metrics import ece
from calibrant.metrics.table import MEASURES, ranked
from calibrant.posthoc import create
from calibrant.runs import STAGES, RunFolder, RunResult, Stage, Summary
from calibrant.stats.comparison import draw_together, paired
from calibrant.stats.resampling import Counts, Means, resampled
from calibrant.study.jobs import Job

#: Measures by which methods are compared.
COMPARED = ("ece", "nll", "accuracy")

#: Resamples of the test samples when each method has one run.
RESAMPLES = 1000

#: Other measures of runs, such as those on OOD data, before and after temperature scaling.
More = Mapping[RunFolder, Mapping[Stage, Mapping[str, float]]]


def usual(dense: bool) -> list[str]:
    """Keys of the measures that tables show by default."""
    return [record.key for record in ranked(1, dense=dense)]


def summarise(
    jobs: Sequence[Job], done: Mapping[RunFolder, RunResult], *, test: bool = True, more: More | None = None
) -> list[Summary]:
    """Rows from the finished jobs of a study.

    Args:
        jobs: All jobs.
        done: Results of the finished ones by folder.
        test: Compare with the first method.
        more: Other measures by folder.
    """
    methods: dict[str, list[Job]] = {}
    for job in jobs:
        if job.folder in done:
            methods.setdefault(job.method, []).append(job)
    rows: list[Summary] = []
    first: list[Job] = []
    for method, jobs_of_method in methods.items():
        own = sorted(jobs_of_method, key=lambda job: job.seed)
        values: dict[Stage, dict[str, list[float]]] = {"before": {}, "after": {}}
        for job in own:
            for stage in STAGES:
                others = more[job.folder][stage] if more else {}
                for key, value in {**done[job.folder].at(stage).values, **others}.items():
                    values[stage].setdefault(key, []).append(value)
        compared = _compare(first, own, done) if first and test else {}
        p_values = {key: c.p_value for key, c in compared.items()}
        differences = {key: {"difference": c.difference, "low": c.low, "high": c.high} for key, c in compared.items()}
        first = first or own
        results = [done[job.folder] for job in own]
        rows.append(
            Summary(
                method,
                [job.seed for job in own],
                values["before"],
                values["after"],
                [result.temperature for result in results],
                p_values,
                differences,
                *_by_other_criterion(results),
            )
        )
    return rows


def _by_other_criterion(results: Sequence[RunResult]) -> tuple[dict[str, list[float]], list[float]]:
    """Values and temperatures by the criterion that tables do not use; nothing if a run does not have them."""
    temperatures = [result.other_temperature for result in results if result.other_temperature is not None]
    audits = [result.test_after_other for result in results if result.test_after_other is not None]
    if not len(audits) == len(temperatures) == len(results):
        return {}, []
    return {key: [audit.values[key] for audit in audits] for key in audits[0].values}, temperatures


def _compare(first: Sequence[Job], other: Sequence[Job], done: Mapping[RunFolder, RunResult]) -> dict[str, stats.Comparison]:
    """Compare two methods on the seeds that both have.

    Runs are the unit: the differences of several seeds are compared by :func:`calibrant.stats.compare_runs`, with the
    variance due to the test set if all seeds share it. With one run each, test samples are compared, which says
    something about these two networks, not about the methods.
    """
    of_seed = {job.seed: job for job in first}
    pairs = [(of_seed[job.seed], job) for job in other if job.seed in of_seed]
    tested = [tuple(_tested(job) for job in pair) for pair in pairs]
    if not pairs or not all(torch.equal(a.target, b.target) for a, b in tested):
        return {}
    shared = all(torch.equal(tested[0][0].target, a.target) for a, _ in tested)
    found = {}
    for key in COMPARED:
        values = [[done[job.folder].test.values[key] for job in pair] for pair in pairs]
        sources = [[run.sources[key] for run in pair] for pair in tested]
        if len(pairs) == 1:
            draws = draw_together(sources[0], np.random.default_rng(0), RESAMPLES, progress=False)
            found[key] = paired(values[0], draws, level=0.95)
            continue
        (a, b), (first_values, second_values) = (list(zip(*rows, strict=True)) for rows in (sources, values))
        variance = stats.shared_variance(a, b) if shared else 0.0
        found[key] = stats.compare_runs(first_values, second_values, shared=variance)
    return found


class Tested(NamedTuple):
    """What comparisons need of a run's test predictions, far less than its logits."""

    target: Tensor
    sources: dict[str, Counts | Means]


def _tested(job: Job) -> Tested:
    logits, target = job.folder.open().read_all()
    samples = for_measuring(logits, target)
    options = {key: {"num_bins": job.recipe.num_bins} if MEASURES[key].on == "bins" else {} for key in COMPARED}
    return Tested(target, {key: resampled(MEASURES[key], samples, options[key]) for key in COMPARED})


def posthoc_errors(
    jobs: Sequence[Job], done: Mapping[RunFolder, RunResult], methods: Sequence[str]
) -> dict[str, dict[str, list[float]]]:
    """ECE over seeds after calibrators fitted on each run's validation predictions, by method and calibrator."""
    found: dict[str, dict[str, list[float]]] = {}
    for job in jobs:
        if job.folder not in done:
            continue
        (fit_z, fit_y), (z, y) = (job.folder.open(part).read_all() for part in ("validation", "test"))
        for key in methods:
            options = {"criterion": job.recipe.temperature} if key == "temperature" else {}
            value = float(ece(create(key, **options).fit(fit_z, fit_y).transform(z), y, num_bins=job.recipe.num_bins))
            found.setdefault(job.method, {}).setdefault(key, []).append(value)
    return found


def mean_text(values: Sequence[float]) -> str:
    """Mean of errors, in percent."""
    return f"{100 * statistics.mean(values):.2f}"
