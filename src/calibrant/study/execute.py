"""Running the cells: one after the other, several at once, or on a Ray cluster."""

import csv
import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_all_start_methods, get_context, parent_process, set_start_method
from pathlib import Path
from typing import Any

import torch

from calibrant.data import MissingDataError
from calibrant.extras import require
from calibrant.predictions import InputError
from calibrant.study.grid import Cell
from calibrant.train import DivergedError, Recipe, fit


@dataclass
class State:
    """What became of the cells so far.

    Attributes:
        done: Metrics of finished cells by folder.
        failed: What went wrong, by folder.
        started: When each running cell was started.
    """

    done: dict[Path, Mapping[str, Any]] = field(default_factory=dict)
    failed: dict[Path, str] = field(default_factory=dict)
    started: dict[Path, float] = field(default_factory=dict)


def execute(
    cells: Sequence[Cell],
    state: State,
    *,
    jobs: int = 1,
    launcher: str = "local",
    resources: Mapping[str, float] | None = None,
    force: bool = False,
    allow_code: bool = False,
    tell: Callable[[Cell], None] = lambda cell: None,  # noqa: ARG005
) -> None:
    """Train what is missing; what fails is noted and does not stop the others.

    Args:
        cells: The cells of the study.
        state: Filled on the way.
        jobs: Cells trained at once on this machine, the cores divided among them.
        launcher: ``"local"``, or ``"ray"`` for a Ray cluster.
        resources: What a cell needs of a Ray cluster, such as ``{"gpu": 1}``.
        force: Train everything again.
        allow_code: Let recipes name code outside calibrant.
        tell: Called after each cell that was trained or failed.
    """
    missing = []
    for cell in cells:
        finished = None if force else _finished(cell)
        if finished is None:
            missing.append(cell)
        else:
            state.done[cell.folder] = finished
    if not missing:
        return
    if launcher == "ray":
        results = _on_ray(missing, state, resources or {}, force=force, allow_code=allow_code)
    elif jobs > 1:
        results = _at_once(missing, state, jobs, force=force, allow_code=allow_code)
    else:
        results = _in_turn(missing, state, force=force, allow_code=allow_code)
    for cell, (metrics, problem) in results:
        state.started.pop(cell.folder, None)
        if metrics is not None:
            state.done[cell.folder] = metrics
        else:
            state.failed[cell.folder] = problem
        tell(cell)


def _finished(cell: Cell) -> Mapping[str, Any] | None:
    """Metrics of a cell that is there already; another recipe under its name is an error of this cell."""
    if not (cell.folder / "metrics.json").exists():
        return None
    try:
        done = fit(cell.recipe, cell.folder, quiet=True, allow_code=True)
    except InputError:
        return None  # said when it is its turn
    return None if done is None else done.metrics


Result = tuple[Mapping[str, Any] | None, str]


def train_cell(recipe: Recipe, folder: Path, force: bool, allow_code: bool, threads: int | None = None) -> Result:
    """Train one cell; metrics, or what went wrong in a sentence."""
    if threads is not None:  # in a process of its own
        torch.set_num_threads(threads)
        for kind in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
    try:
        done = fit(recipe, folder, force=force, quiet=True, allow_code=allow_code)
    except (InputError, DivergedError, MissingDataError, OSError, ValueError, TypeError) as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - what a network raises must not end the study
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "error.txt").write_text(traceback.format_exc())
        return None, f"{type(error).__name__}: {error} (see {folder / 'error.txt'})"
    return (None, "it ran as another process of a distributed job") if done is None else (done.metrics, "")


def _in_turn(cells: Sequence[Cell], state: State, **options: bool) -> Iterator[tuple[Cell, Result]]:
    for cell in cells:
        state.started[cell.folder] = time.time()
        yield cell, train_cell(cell.recipe, cell.folder, **options)


def _at_once(cells: Sequence[Cell], state: State, jobs: int, **options: bool) -> Iterator[tuple[Cell, Result]]:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_prepare) as pool:
        waiting: dict[Future[Result], Cell] = {}
        for cell in cells:
            task = pool.submit(train_cell, cell.recipe, cell.folder, options["force"], options["allow_code"], threads)
            waiting[task] = cell
            state.started[cell.folder] = time.time()
        for task in as_completed(waiting):
            error = task.exception()
            if error is None:
                yield waiting[task], task.result()
            else:  # a process that died
                yield waiting[task], (None, f"its process died ({type(error).__name__}); the same command goes on with it")


def _prepare() -> None:
    """Make a process of the pool train as one of its own would, and end with the study.

    A study that is killed must not train on unseen, into folders in which the same command would go on.
    """
    set_start_method(get_all_start_methods()[0], force=True)  # spawned readers of files would import torch each time

    def wait() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _on_ray(
    cells: Sequence[Cell], state: State, resources: Mapping[str, float], **options: bool
) -> Iterator[tuple[Cell, Result]]:
    ray = require("ray", "--launcher ray")
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError:  # there is no cluster: one on this machine
            ray.init(log_to_driver=False, include_dashboard=False)
    needs: dict[str, Any] = {"num_cpus": resources.get("cpu", 1)}
    if "gpu" in resources:
        needs["num_gpus"] = resources["gpu"]
    own = {name: value for name, value in resources.items() if name not in ("cpu", "gpu")}
    if own:
        needs["resources"] = own
    # A worker that dies is replaced, and the cell goes on from its last checkpoint.
    task: Any = ray.remote(max_retries=3, **needs)(train_cell)
    threads = max(1, int(needs["num_cpus"]))
    waiting = {}
    for cell in cells:
        arguments = (cell.recipe, cell.folder.resolve(), options["force"], options["allow_code"], threads)
        waiting[task.remote(*arguments)] = cell
        state.started[cell.folder] = time.time()
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
        for reference in ready:
            cell = waiting.pop(reference)
            try:
                yield cell, ray.get(reference)
            except Exception as error:  # noqa: BLE001 - a task that died too often
                yield cell, (None, f"Ray gave up on it ({type(error).__name__})")


def epochs_done(folder: Path) -> int:
    """How far a run has come."""
    try:
        with (folder / "history.csv").open() as file:
            return sum(1 for _ in csv.reader(file)) - 1
    except OSError:
        return 0
