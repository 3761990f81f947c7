"""How processes of our own, commands and workers of a study, use the cores and the memory of a machine."""

import ctypes
import sys
from typing import Final

#: Environment variables that make waiting threads sleep instead of spin, if set before torch is imported. On a shared
#: machine, spinning takes time from the threads that are waited for.
WAITING: Final = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0"}
#: Parameters of glibc's ``mallopt``, and their values: no block is mapped by itself, and nothing is given back.
KEEPING: Final = {-4: 0, -1: 2**31 - 1}  # M_MMAP_MAX, M_TRIM_THRESHOLD


def keep_freed_memory() -> bool:
    """Keep freed memory for later, where the C library can do that (glibc); return whether it can.

    A training step frees its activations, and the next step needs as many. By default, glibc returns large blocks to the
    system and gets them back page by page, which takes 5 to 10% of a step of a small network on a CPU. A process that keeps
    them does not shrink until it ends, so this is for processes of our own only.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and all(mallopt(name, value) for name, value in KEEPING.items())
