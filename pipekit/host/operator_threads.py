"""The cores of a machine, shared out among workers, and the threads that OpenMP keeps on them.

OpenMP's threads wait for the next operator.  GNU's OpenMP, which comes with PyTorch for Linux, lets
them wait actively only while there are no more of them than cores: beside the workers' threads, a
notebook's are too many, and then every operator wakes its threads through the system.  On two cores
a convolutional network took twice as long.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from pipekit.host.provenance import available_cores

SWITCH_INTERVAL_S = 1e-4
"""How long a worker's thread may keep Python's interpreter.  Operators hold it for microseconds;
with Python's own 5 ms small stages are 15 % slower."""


def share_of_cores(workers: int, most: int | None = None) -> int:
    """Return how many threads a worker's operators may use; at most OMP_NUM_THREADS, if set.

    ``most`` is what the user has given to ``torch.set_num_threads``, or torch's own choice.
    """
    cores = available_cores()
    allowed = int(os.environ.get("OMP_NUM_THREADS") or cores)
    return max(1, min(allowed, most or cores, cores // workers))


def share_cores(workers: int, most: int | None = None) -> None:
    """Let this thread's operators use one worker's share of the cores.

    Over how many threads a sum is split decides how it is rounded: all transports share alike.
    """
    torch.set_num_threads(share_of_cores(workers, most))


_MAPS = Path("/proc/self/maps")
_HARD = 2  # omp_pause_hard: end the threads


def release_threads() -> None:
    """End those of the calling thread (GNU's, on Linux); its next operator gets new ones."""
    for pause in _pauses():
        pause(_HARD)


@cache
def _pauses() -> tuple[Callable[[int], int], ...]:
    """Return ``omp_pause_resource_all`` of each of GNU's OpenMPs that is loaded."""
    if not _MAPS.exists():
        return ()
    lines = (line.split(maxsplit=5) for line in _MAPS.read_text().splitlines())
    paths = {parts[5] for parts in lines if len(parts) == 6}
    loaded = [ctypes.CDLL(path) for path in sorted(paths) if Path(path).name.startswith("libgomp")]
    return tuple(
        library.omp_pause_resource_all
        for library in loaded
        if hasattr(library, "omp_pause_resource_all")
    )
