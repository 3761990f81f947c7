"""From runs to rows: mean and spread over seeds, before and after temperature scaling, and what is significant."""

import statistics
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from calibrant import stats
from calibrant.metrics import ece
from calibrant.metrics.table import ranked
from calibrant.outcomes import Outcomes, top_label
from calibrant.posthoc import create
from calibrant.runs import STAGES, RunFolder, RunResult, Stage, Summary
from calibrant.stats.resampling import image_numbers
from calibrant.study.jobs import Job
from calibrant.tensors import for_measuring

#: Other measures of runs, such as those on unknown data, before and after temperature scaling.
More = Mapping[RunFolder, Mapping[Stage, Mapping[str, float]]]


def usual(dense: bool) -> list[str]:
    """Keys of the measures that tables show unless something else is asked for."""
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
        compared: tuple[dict[str, float], dict[str, dict[str, float]]] = ({}, {})
        if first and test:
            compared = _compare(first, own)
        first = first or own
        temperatures = [done[job.folder].temperature for job in own]
        seeds = [job.seed for job in own]
        rows.append(Summary(method, seeds, values["before"], values["after"], temperatures, *compared))
    return rows


def _compare(first: Sequence[Job], other: Sequence[Job]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Paired bootstrap over the test samples (or segmented images) of the seeds that both have."""
    seeds = {job.seed: job for job in first}
    pairs = [(seeds[job.seed], job) for job in other if job.seed in seeds]
    if not pairs:
        return {}, {}
    sides: list[list[Outcomes]] = [[], []]
    images: list[Tensor] = []
    for pair in pairs:
        loaded = [job.folder.open().read_all() for job in pair]
        if not torch.equal(loaded[0][1], loaded[1][1]):
            return {}, {}
        samples = [for_measuring(logits, target) for logits, target in loaded]
        for side, own in zip(sides, samples, strict=True):
            side.append(top_label(own))
        numbers = image_numbers(samples[0])
        if numbers is not None:
            images.append(numbers + (1 + images[-1].max() if images else 0))
    a, b = (Outcomes(torch.cat([o.confidence for o in side]), torch.cat([o.correct for o in side])) for side in sides)
    found = stats.compare_outcomes(a, b, images=torch.cat(images) if images else None)
    differences = {key: {"difference": c.difference, "low": c.low, "high": c.high} for key, c in found.items()}
    return {key: c.p_value for key, c in found.items()}, differences


def posthoc_errors(
    jobs: Sequence[Job], done: Mapping[RunFolder, RunResult], methods: Sequence[str]
) -> dict[str, dict[str, list[float]]]:
    """ECE over seeds after calibrators that are fitted on each run's validation predictions, by method and calibrator."""
    found: dict[str, dict[str, list[float]]] = {}
    for job in jobs:
        if job.folder not in done:
            continue
        (fit_z, fit_y), (z, y) = (job.folder.open(part).read_all() for part in ("validation", "test"))
        for key in methods:
            value = float(ece(create(key).fit(fit_z, fit_y).transform(z), y, num_bins=job.recipe.num_bins))
            found.setdefault(job.method, {}).setdefault(key, []).append(value)
    return found


def mean_text(values: Sequence[float]) -> str:
    """Mean of errors, in percent."""
    return f"{100 * statistics.mean(values):.2f}"
