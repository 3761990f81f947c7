"""Freed memory is kept by processes that train, and by no others."""

import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = """
import ctypes, resource, sys
import torch
from calibrant.processes import keep_freed_memory

def faults():
    counts = []
    for _ in range(4):  # at first the heap grows, once more if a small block lies in a gap
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(4):
            torch.ones(4096, 4096) + torch.ones(4096, 4096)  # 64 MB each
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(counts)

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # no huge pages, with which a machine may count a fault for 2 MB
torch.set_num_threads(1)
usual = faults()
print(keep_freed_memory(), usual, faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt belongs to glibc")
def test_memory_that_was_freed_is_used_again() -> None:
    result = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    can, usual, kept = result.stdout.split()
    if can == "True":  # musl cannot
        assert int(usual) > 1000
        assert int(kept) < int(usual) / 100


WHO = """
import sys
import calibrant.cli as cli
kept = []
cli.keep_freed_memory = lambda: kept.append(True)
cli._main = lambda given: 0
sys.argv = ["calibrant", "{command}"]
cli.main({arguments})
print(len(kept))
"""


@pytest.mark.parametrize(
    ("command", "arguments", "kept"),
    [("train", "", 1), ("compare", "", 1), ("tune", "", 1), ("evaluate", "", 0), ("train", '["train"]', 0)],
)
def test_only_commands_that_train_keep_it(command: str, arguments: str, kept: int, tmp_path: Path) -> None:
    code = WHO.format(command=command, arguments=arguments)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert int(result.stdout) == kept
