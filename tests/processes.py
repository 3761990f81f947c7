"""Several processes for a test, forked so that they need not import everything again."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from calibrant.cli import main

#: For programs: megabytes that they have taken at most. ``ru_maxrss`` starts from that of the process that started them.
PEAK = """
import re, resource
from pathlib import Path
def peak():
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search("VmHWM:(.*) kB", status.read_text())[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
"""


def run_as_ranks(code: str, folder: Path, world: int = 2) -> list[int]:
    """Run a program once per rank, with the rank and a folder as arguments; exit codes."""
    children = []
    for rank in range(world):
        child = os.fork()
        if not child:
            status = 1
            try:
                sys.argv = ["-c", str(rank), str(folder)]
                exec(compile(code, "process", "exec"), {"__name__": "__main__"})  # noqa: S102
                status = 0
            except BaseException:  # noqa: BLE001 - what went wrong is shown, and told by the exit code
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def started(*command: str) -> int:
    """A process that runs a command, forked so that it need not import everything again; what it says goes to a file."""
    child = os.fork()
    if not child:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background of a shell
        sys.stderr = Path("said").open("w", buffering=1)  # noqa: SIM115
        os.dup2(sys.stderr.fileno(), 2)
        code = 1
        try:
            code = main(list(command))
        finally:
            os._exit(code)
    return child


@contextmanager
def waiting_after_an_epoch(*names: str) -> Iterator[None]:
    """Processes forked meanwhile stop in runs of these names when an epoch is written.

    One that is to be killed in the middle of a run is then found there, however late the test comes.
    """
    from calibrant.train.engine import Keeper  # not all tests need Lightning

    write = Keeper.write

    def stopping(self: Keeper) -> None:
        write(self)
        if self.folder.name in names:
            time.sleep(280)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Keeper, "write", stopping)
        yield


def run_script(path: Path) -> tuple[int, str]:
    """Run a script as Python would, in its folder; its exit code, and what it and the processes it starts say on stderr."""
    said = path.with_suffix(".stderr")
    child = os.fork()
    if not child:
        status = 1
        try:
            os.chdir(path.parent)
            sys.stderr = said.open("w", buffering=1)
            os.dup2(sys.stderr.fileno(), 2)
            script = sys.modules["__main__"] = ModuleType("__main__")
            script.__file__ = str(path)
            exec(compile(path.read_text(), str(path), "exec"), vars(script))  # noqa: S102
            status = 0
        except BaseException:  # noqa: BLE001 - as above
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.read_text()
