"""Running the jobs of a study: one after another, in parallel, or on a Ray cluster."""

import contextlib
import math
import os
import signal
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_all_start_methods, get_context, parent_process, set_start_method
from multiprocessing.connection import Connection, wait
from typing import Any, Final, NamedTuple

import torch

from calibrant.checks import one_of, whole
from calibrant.errors import InputError, input_errors
from calibrant.extras import WAITING, require
from calibrant.recipes import Recipe
from calibrant.runs import RunFolder, RunResult
from calibrant.study.jobs import Job

#: Number of batches below which a study of small networks is done before other processes have started.
WORTHWHILE: Final = 1000


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
    jobs: int | None = 1,
    threads: int | None = None,
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
        jobs: Number of jobs trained in parallel on this machine, which share its cores; None for one per core if the network
            is small, else one.
        threads: Threads per job; by default chosen by :func:`calibrant.train.fit` and the number of jobs.
        launcher: ``"local"``, or ``"ray"`` for a Ray cluster.
        resources: Ray resources per job, such as ``{"gpu": 1}``.
        force: Train everything again.
        allow_code: Allow code from outside calibrant in recipes.
        tell: Called after each job that was trained or failed.
    """
    with input_errors():
        whole("`jobs`", 1 if jobs is None else jobs, 1)
        whole("`threads`", 1 if threads is None else threads, 1)
        one_of("`launcher`", launcher, ("local", "ray"))
    if not force:
        state.done |= {job.folder: result for job in planned if (result := _finished(job)) is not None}
    missing = [job for job in planned if job.folder not in state.done]
    if not missing:
        return
    from calibrant.train import check  # noqa: PLC0415 - a finished study needs no Lightning

    for job in missing:
        check(job.recipe, allow_code=allow_code)
    options = Options(force, allow_code, threads, group=missing[0].folder.path.resolve().parent.name)
    if launcher == "ray":
        results = _on_ray(missing, state, resources or {}, options)
    elif (at_once := _usual_jobs(missing, allow_code=allow_code) if jobs is None else jobs) > 1:
        results = _at_once(missing, state, at_once, options)
    else:
        results = _in_turn(missing, state, options)
    for job, (result, problem) in results:
        state.started.pop(job.folder, None)
        if result is not None:
            state.done[job.folder] = result
        else:
            state.failed[job.folder] = problem
        tell(job)


def _finished(job: Job) -> RunResult | None:
    """Result of a finished job; a changed recipe or temperature is handled when the job's turn comes."""
    if not job.folder.finished or not job.folder.started or job.folder.recipe().difference(job.recipe):
        return None
    result = job.folder.result()
    return result if result.criterion == job.recipe.temperature else None


Result = tuple[RunResult | None, str]


class Options(NamedTuple):
    """How jobs are trained.

    Attributes:
        force: Train again.
        allow_code: Allow code from outside calibrant in recipes.
        threads: Threads per job.
        group: What experiment trackers file the jobs under.
    """

    force: bool
    allow_code: bool
    threads: int | None
    group: str | None = None


def train_job(recipe: Recipe, folder: RunFolder, options: Options) -> Result:
    """Train one job and return its result, or an error message."""
    from calibrant.train import DivergedError, fit  # noqa: PLC0415 - a finished study needs no Lightning

    try:
        done = fit(recipe, folder, quiet=True, **options._asdict())
    except (InputError, DivergedError, OSError, ValueError, TypeError) as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - an error in one run must not end the study
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.error.write_text(traceback.format_exc())
        return None, f"{type(error).__name__}: {error} (see {folder.error})"
    return (None, "it ran as another process of a distributed job") if done is None else (done.result, "")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _usual_jobs(planned: Sequence[Job], *, allow_code: bool) -> int:
    """One job per core if the first job's network is small and there is no accelerator, else one."""
    first = planned[0].recipe
    most = min(cores(), len(planned))
    alone = {"devices", "num_nodes", "strategy"} & set(first.trainer)
    if most == 1 or alone or torch.cuda.is_available() or torch.backends.mps.is_available():
        return 1
    from calibrant.train.preparing import is_small, prepare  # noqa: PLC0415 - Lightning is slow to import

    try:
        prepared = prepare(first, allow_code=allow_code)
    except (InputError, OSError):  # reported when its turn comes
        return 1
    batches = sum(job.recipe.epochs * math.ceil(len(prepared.data.train) / job.recipe.batch_size) for job in planned)
    return most if batches >= WORTHWHILE and is_small(first, prepared.operations) else 1


def _in_turn(planned: Sequence[Job], state: State, options: Options) -> Iterator[tuple[Job, Result]]:
    for job in planned:
        state.started[job.folder] = time.time()
        yield job, train_job(job.recipe, job.folder, options)


def _at_once(planned: Sequence[Job], state: State, jobs: int, options: Options) -> Iterator[tuple[Job, Result]]:
    """Several workers; if one dies, its job has failed and a new worker replaces it."""
    if options.threads is None and "OMP_NUM_THREADS" not in os.environ:
        options = options._replace(threads=max(1, cores() // jobs))
    waiting, idle, busy = deque(planned), list[_Worker](), dict[_Worker, Job]()
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                worker = idle.pop() if idle else _Worker()
                busy[worker] = job = waiting.popleft()
                state.started[job.folder] = time.time()
                worker.begin(job, options)
            wait([handle for worker in busy for handle in (worker.pipe, worker.process.sentinel)])
            for worker in [worker for worker in busy if worker.ready]:
                job, result = busy.pop(worker), worker.result()
                if worker.process.is_alive():
                    idle.append(worker)
                yield job, result
    finally:
        for worker in (*idle, *busy):
            worker.process.kill()
        for worker in (*idle, *busy):  # until it has let go of its folder
            worker.process.join()


class _Worker:
    """A process that trains one job after another."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,))
        absent = [name for name in WAITING if name not in os.environ]
        os.environ.update({name: WAITING[name] for name in absent})  # inherited by the process
        try:
            self.process.start()
        finally:
            for name in absent:
                del os.environ[name]
        theirs.close()

    def begin(self, job: Job, options: Options) -> None:
        """Start a job."""
        self.pipe.send((job.recipe, job.folder, options))

    @property
    def ready(self) -> bool:
        """Whether the job, or the process, has ended."""
        return self.pipe.poll() or not self.process.is_alive()

    def result(self) -> Result:
        """The result of the job."""
        with contextlib.suppress(EOFError, OSError):
            if self.pipe.poll():  # otherwise it would wait for data workers, which outlive it briefly and send nothing
                found: Result = self.pipe.recv()
                return found
        self.process.join()
        code = self.process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return None, f"its process {how}; run the same command again to resume it"


def _work(pipe: "Connection[Any, Any]") -> None:
    """Train the jobs that arrive through the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the study, which ends its processes
    _prepare()
    while True:
        try:
            recipe, folder, options = pipe.recv()
        except EOFError:
            return
        pipe.send(train_job(recipe, folder, options))


def _prepare() -> None:
    """Make a process of a study train like a standalone one, and end with the study.

    If the study is killed, its processes must not keep training unseen in folders that the same command would resume.
    """
    set_start_method(get_all_start_methods()[0], force=True)  # spawned data workers would import torch each time
    for kind in (DeprecationWarning, FutureWarning):
        warnings.simplefilter("ignore", kind)

    def wait_for_the_end() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait_for_the_end, daemon=True).start()


def _on_ray(
    planned: Sequence[Job], state: State, resources: Mapping[str, float], options: Options
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
    if options.threads is None:
        options = options._replace(threads=max(1, int(needs["num_cpus"])))
    waiting = {}
    for job in planned:
        waiting[task.remote(job.recipe, RunFolder(job.folder.path.resolve()), options)] = job
        state.started[job.folder] = time.time()
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
        for reference in ready:
            job = waiting.pop(reference)
            try:
                yield job, ray.get(reference)
            except Exception as error:  # noqa: BLE001 - the task died too often
                yield job, (None, f"Ray gave up on it ({type(error).__name__})")
