"""Running the jobs of a study: one after another, in parallel, or on a Ray cluster."""

import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_all_start_methods, get_context, parent_process, set_start_method
from typing import Any

import torch

from calibrant.checks import one_of, whole
from calibrant.errors import InputError, input_errors
from calibrant.extras import require
from calibrant.recipes import Recipe
from calibrant.runs import RunFolder, RunResult
from calibrant.study.jobs import Job


@dataclass
class State:
    """The state of the jobs so far.

    Attributes:
        done: Results of finished jobs by folder.
        failed: What went wrong, by folder.
        started: When each running job was started.
    """

    done: dict[RunFolder, RunResult] = field(default_factory=dict)
    failed: dict[RunFolder, str] = field(default_factory=dict)
    started: dict[RunFolder, float] = field(default_factory=dict)


def execute(
    planned: Sequence[Job],
    state: State,
    *,
    jobs: int = 1,
    launcher: str = "local",
    resources: Mapping[str, float] | None = None,
    force: bool = False,
    allow_code: bool = False,
    tell: Callable[[Job], None] = lambda job: None,  # noqa: ARG005
) -> None:
    """Train the missing jobs; failures are recorded and do not stop the others.

    Args:
        planned: The jobs of the study.
        state: Updated along the way.
        jobs: Number of jobs trained in parallel on this machine, which share its cores.
        launcher: ``"local"``, or ``"ray"`` for a Ray cluster.
        resources: Ray resources per job, such as ``{"gpu": 1}``.
        force: Train everything again.
        allow_code: Allow code from outside calibrant in recipes.
        tell: Called after each job that was trained or failed.
    """
    with input_errors():
        whole("`jobs`", jobs, 1)
        one_of("`launcher`", launcher, ("local", "ray"))
    missing = []
    for job in planned:
        finished = None if force else _finished(job)
        if finished is None:
            missing.append(job)
        else:
            state.done[job.folder] = finished
    if not missing:
        return
    from calibrant.train import check  # noqa: PLC0415 - a finished study needs no Lightning

    for job in missing:
        check(job.recipe, allow_code=allow_code)
    if launcher == "ray":
        results = _on_ray(missing, state, resources or {}, force=force, allow_code=allow_code)
    elif jobs > 1:
        results = _at_once(missing, state, jobs, force=force, allow_code=allow_code)
    else:
        results = _in_turn(missing, state, force=force, allow_code=allow_code)
    for job, (result, problem) in results:
        state.started.pop(job.folder, None)
        if result is not None:
            state.done[job.folder] = result
        else:
            state.failed[job.folder] = problem
        tell(job)


def _finished(job: Job) -> RunResult | None:
    """Result of a finished job; a different recipe in its folder is reported when its turn comes."""
    if not job.folder.finished or not job.folder.started or job.folder.recipe().difference(job.recipe):
        return None
    return job.folder.result()


Result = tuple[RunResult | None, str]


def train_job(recipe: Recipe, folder: RunFolder, force: bool, allow_code: bool, threads: int | None = None) -> Result:
    """Train one job and return its result, or an error message."""
    from calibrant.train import DivergedError, fit  # noqa: PLC0415 - a finished study needs no Lightning

    if threads is not None:  # in its own process
        torch.set_num_threads(threads)
        for kind in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
    try:
        done = fit(recipe, folder, force=force, quiet=True, allow_code=allow_code)
    except (InputError, DivergedError, OSError, ValueError, TypeError) as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - an error in one run must not end the study
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.error.write_text(traceback.format_exc())
        return None, f"{type(error).__name__}: {error} (see {folder.error})"
    return (None, "it ran as another process of a distributed job") if done is None else (done.result, "")


def _in_turn(planned: Sequence[Job], state: State, **options: bool) -> Iterator[tuple[Job, Result]]:
    for job in planned:
        state.started[job.folder] = time.time()
        yield job, train_job(job.recipe, job.folder, **options)


def _at_once(planned: Sequence[Job], state: State, jobs: int, **options: bool) -> Iterator[tuple[Job, Result]]:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_prepare) as pool:
        waiting: dict[Future[Result], Job] = {}
        for job in planned:
            task = pool.submit(train_job, job.recipe, job.folder, options["force"], options["allow_code"], threads)
            waiting[task] = job
            state.started[job.folder] = time.time()
        for task in as_completed(waiting):
            error = task.exception()
            if error is None:
                yield waiting[task], task.result()
            else:  # a process that died
                yield waiting[task], (None, f"its process died ({type(error).__name__}); run the same command again to resume it")


def _prepare() -> None:
    """Make a pool process train like a standalone one, and end with the study.

    If the study is killed, its processes must not keep training unseen in folders that the same command would resume.
    """
    set_start_method(get_all_start_methods()[0], force=True)  # spawned data workers would import torch each time

    def wait() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _on_ray(
    planned: Sequence[Job], state: State, resources: Mapping[str, float], **options: bool
) -> Iterator[tuple[Job, Result]]:
    ray = require("ray", "the Ray launcher")
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError:  # no cluster: start one on this machine
            ray.init(log_to_driver=False, include_dashboard=False)
    needs: dict[str, Any] = {"num_cpus": resources.get("cpu", 1)}
    if "gpu" in resources:
        needs["num_gpus"] = resources["gpu"]
    own = {name: value for name, value in resources.items() if name not in ("cpu", "gpu")}
    if own:
        needs["resources"] = own
    # A worker that dies is replaced, and the job resumes from its last checkpoint.
    task: Any = ray.remote(max_retries=3, **needs)(train_job)
    threads = max(1, int(needs["num_cpus"]))
    waiting = {}
    for job in planned:
        arguments = (job.recipe, RunFolder(job.folder.path.resolve()), options["force"], options["allow_code"], threads)
        waiting[task.remote(*arguments)] = job
        state.started[job.folder] = time.time()
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
        for reference in ready:
            job = waiting.pop(reference)
            try:
                yield job, ray.get(reference)
            except Exception as error:  # noqa: BLE001 - the task died too often
                yield job, (None, f"Ray gave up on it ({type(error).__name__})")
