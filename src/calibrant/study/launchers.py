"""Running the jobs of a study: one after another, in parallel, or on a Ray cluster."""

import contextlib
import math
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import current_process, get_all_start_methods, get_context, parent_process, set_start_method
from multiprocessing.connection import Connection, wait
from typing import Any, Final, NamedTuple

import torch

from calibrant.checks import one_of, whole
from calibrant.errors import InputError, InUseError, input_errors
from calibrant.extras import require
from calibrant.processes import WAITING, keep_freed_memory
from calibrant.recipes import Recipe
from calibrant.runs import RunFolder, RunResult
from calibrant.study.jobs import Job, StoppedError, Watch

#: Number of batches below which a study of small networks is done before other processes have started.
WORTHWHILE: Final = 1000
#: Bytes that a process takes before it trains anything.
PROCESS: Final = 1e9
#: Exit code of a process that runs the script which starts it.
UNGUARDED: Final = 64
#: How processes are started: forked ones would wait for threads of their parent that they do not have.
START = "spawn"


@dataclass
class State:
    """The state of the jobs so far.

    Attributes:
        done: Results of finished jobs by folder.
        failed: What went wrong, by folder.
        passing: Those that failed for reasons other than themselves, and may succeed another time.
        started: When each running job was started.
    """

    done: dict[RunFolder, RunResult] = field(default_factory=dict)
    failed: dict[RunFolder, str] = field(default_factory=dict)
    passing: set[RunFolder] = field(default_factory=set)
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
        jobs: Number of jobs trained in parallel on this machine, which share its cores; None for one per core on a CPU, or
            as many as fit into memory.
        threads: Threads per job; by default chosen by :func:`calibrant.train.fit` and the number of jobs.
        launcher: ``"local"``, or ``"ray"`` for a Ray cluster.
        resources: Ray resources per job, such as ``{"gpu": 1}``.
        force: Train everything again.
        allow_code: Allow code from outside calibrant in recipes.
        tell: Called after each job that was trained or failed.
    """
    refuse_while_starting()
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
        jobs = len(missing)  # Ray knows how many fit
    elif jobs is None:
        jobs = usual_jobs(missing, allow_code=allow_code)
    launch(missing, state, options, jobs=jobs, launcher=launcher, resources=resources, tell=tell)


def refuse_while_starting() -> None:
    """End a process that has come here while it started: it runs the script of its parent, which lacks a guard."""
    if getattr(current_process(), "_inheriting", False):
        sys.exit(UNGUARDED)


def launch(
    planned: Iterable[Job],
    state: State,
    options: "Options",
    *,
    jobs: int | None,
    launcher: str = "local",
    resources: Mapping[str, float] | None = None,
    tell: Callable[[Job], None] = lambda job: None,  # noqa: ARG005
) -> None:
    """Train jobs, each of which may depend on what was told before: the next one is asked for when there is room for it.

    Args:
        planned: The jobs.
        state: Updated along the way.
        options: How they are trained.
        jobs: Number of jobs trained in parallel; None for one, or as many as a Ray cluster has room for.
        launcher: ``"local"``, or ``"ray"`` for a Ray cluster.
        resources: Ray resources per job.
        tell: Called after each job.
    """
    if launcher == "ray":
        results = _on_ray(planned, state, jobs, resources or {}, options)
    elif jobs is not None and jobs > 1:
        results = _at_once(planned, state, jobs, options)
    else:
        results = _in_turn(planned, state, options)
    for job, result in results:
        state.started.pop(job.folder, None)
        if result.run is not None:
            state.done[job.folder] = result.run
        else:
            state.failed[job.folder] = result.problem
            if result.passing:
                state.passing.add(job.folder)
        tell(job)


def _finished(job: Job) -> RunResult | None:
    """Result of a finished job; a changed recipe or temperature is handled when the job's turn comes."""
    if not job.folder.finished or not job.folder.started or job.folder.recipe().difference(job.recipe):
        return None
    result = job.folder.result()
    return result if result.criterion == job.recipe.temperature else None


class Result(NamedTuple):
    """What came of a job.

    Attributes:
        run: Its result; None if it failed.
        problem: What went wrong.
        passing: Whether it may succeed another time: its process was killed, its folder was in use, or a file could not
            be read or written.
    """

    run: RunResult | None
    problem: str = ""
    passing: bool = False


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


def train_job(recipe: Recipe, folder: RunFolder, options: Options, watch: Watch | None = None) -> Result:
    """Train one job and return its result, or an error message."""
    from calibrant.train import DivergedError, fit  # noqa: PLC0415 - a finished study needs no Lightning

    try:
        done = fit(recipe, folder, quiet=True, watch=watch, **options._asdict())
    except (InputError, DivergedError, StoppedError, OSError, ValueError, TypeError) as error:
        return Result(None, str(error), passing=isinstance(error, OSError | InUseError))
    except Exception as error:  # noqa: BLE001 - an error in one run must not end the study
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.error.write_text(traceback.format_exc())
        return Result(None, f"{type(error).__name__}: {error} (see {folder.error})")
    return Result(None, "it ran as another process of a distributed job") if done is None else Result(done.result)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usual_jobs(planned: Sequence[Job], *, allow_code: bool) -> int:
    """One job per core, or as many as fit into memory, if there is no accelerator; else one.

    Two runs with one thread each get further than one run with two threads, which wait for each other.
    """
    first = planned[0].recipe
    most = min(cores(), len(planned))
    alone = {"devices", "num_nodes", "strategy"} & set(first.trainer)
    if most == 1 or alone or torch.cuda.is_available() or torch.backends.mps.is_available():
        return 1
    from calibrant.train.preparing import machine_memory, prepare  # noqa: PLC0415 - Lightning is slow to import

    try:
        prepared = prepare(first, allow_code=allow_code)
    except (InputError, OSError):  # reported when its turn comes
        return 1
    batches = sum(job.recipe.epochs * math.ceil(len(prepared.data.train) / job.recipe.batch_size) for job in planned)
    if batches < WORTHWHILE:
        return 1
    return max(1, int(min(most, machine_memory() / 2 / (prepared.memory + PROCESS))))


def _in_turn(planned: Iterable[Job], state: State, options: Options) -> Iterator[tuple[Job, Result]]:
    for job in planned:
        state.started[job.folder] = time.time()
        yield job, train_job(job.recipe, job.folder, options, job.watch)


def _at_once(planned: Iterable[Job], state: State, jobs: int, options: Options) -> Iterator[tuple[Job, Result]]:
    """Several workers; if one dies, its job has failed and a new worker replaces it."""
    if options.threads is None and "OMP_NUM_THREADS" not in os.environ:
        options = options._replace(threads=max(1, cores() // jobs))
    waiting, idle, busy = iter(planned), list[_Worker](), dict[_Worker, Job]()
    try:
        while True:
            while len(busy) < jobs and (job := next(waiting, None)) is not None:
                worker = idle.pop() if idle else _Worker()
                busy[worker] = job
                state.started[job.folder] = time.time()
                worker.begin(job, options)
            if not busy:
                return
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
        context: Any = get_context(START)
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
        self.pipe.send((job.recipe, job.folder, options, job.watch))

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
        if code == UNGUARDED:
            raise InputError(
                "runs in parallel start new processes, which import this script: put its code under "
                'if __name__ == "__main__": or pass `jobs=1`'
            )
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return Result(None, f"its process {how}; run the same command again to resume it", passing=True)


def _work(pipe: "Connection[Any, Any]") -> None:
    """Train the jobs that arrive through the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the study, which ends its processes
    _prepare()
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        pipe.send(train_job(*job))


def _prepare() -> None:
    """Make a process of a study train like a standalone one, and end with the study.

    If the study is killed, its processes must not keep training unseen in folders that the same command would resume.
    """
    keep_freed_memory()
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
    planned: Iterable[Job], state: State, jobs: int | None, resources: Mapping[str, float], options: Options
) -> Iterator[tuple[Job, Result]]:
    ray = require("ray", "the Ray launcher")
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError:  # no cluster: start one on this machine
            ray.init(log_to_driver=False, include_dashboard=False)
    needs = _needs(resources)
    # A worker that dies is replaced, and the job resumes from its last checkpoint.
    task: Any = ray.remote(max_retries=3, **needs)(train_job)
    if options.threads is None:
        options = options._replace(threads=max(1, int(needs["num_cpus"])))
    source, running = iter(planned), dict[Any, Job]()
    most = jobs or _room(ray.cluster_resources(), needs)
    while True:
        while len(running) < most and (job := next(source, None)) is not None:
            running[task.remote(job.recipe, RunFolder(job.folder.path.resolve()), options, job.watch)] = job
            state.started[job.folder] = time.time()
        if not running:
            return
        ready, _ = ray.wait(list(running), num_returns=1, timeout=1.0)
        for reference in ready:
            job = running.pop(reference)
            try:
                yield job, ray.get(reference)
            except Exception as error:  # noqa: BLE001 - the task died too often
                yield job, Result(None, f"Ray gave up on it ({type(error).__name__})", passing=True)


def _room(there: Mapping[str, float], needs: Mapping[str, Any]) -> int:
    """How many jobs a Ray cluster has room for at once."""
    wanted = {"CPU": needs["num_cpus"], "GPU": needs.get("num_gpus", 0), **needs.get("resources", {})}
    most = [there.get(name, 0) / number for name, number in wanted.items() if number > 0]
    return max(1, int(min(most, default=there.get("CPU", 1))))


def _needs(resources: Mapping[str, float]) -> dict[str, Any]:
    """Resources of a job as arguments of Ray."""
    needs: dict[str, Any] = {"num_cpus": resources.get("cpu", 1)}
    if "gpu" in resources:
        needs["num_gpus"] = resources["gpu"]
    own = {name: value for name, value in resources.items() if name not in ("cpu", "gpu")}
    return {**needs, "resources": own} if own else needs
