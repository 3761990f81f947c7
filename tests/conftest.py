import gc
import importlib
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec

# Some machines announce AMX but cannot run it, and bfloat16 products die there; it has to be said before torch is loaded.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run in parallel processes, some of which start others

import pytest
import torch
from hypothesis import HealthCheck, settings

# The same examples each time, however slow the machine; --hypothesis-profile default draws others.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
# A forked process does not have the threads of its parent, and would wait for them.
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _few_resamples() -> None:
    """Most of the time of a small run goes into its intervals, which have tests of their own."""
    if find_spec("lightning"):
        importlib.import_module("calibrant.train.fit").RESAMPLES = 20


@pytest.fixture
def _forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a study need not import everything again; for tests that are not about how they start."""
    monkeypatch.setattr("calibrant.study.launchers.START", "fork")


@pytest.fixture(autouse=True)
def _no_figures_left() -> Iterator[None]:
    """Figures that a test leaves open do not reach the next one."""
    yield
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close("all")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come first, so that no process is left with one at the end; the site is looked at when it is built."""
    marks = ("builds", "slow", None, "built")

    def turn(item: pytest.Item) -> int:
        return marks.index(next((mark for mark in ("builds", "built", "slow") if item.get_closest_marker(mark)), None))

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    """What has been imported stays: looking for garbage in it took a tenth of the time."""
    gc.collect()
    gc.freeze()
