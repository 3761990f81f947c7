"""Several processes for a test, forked so that they need not import everything again."""

import os
import sys
import traceback
from pathlib import Path


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
