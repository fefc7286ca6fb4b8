"""The threads that OpenMP keeps for a thread whose operators have used several cores.

They wait for the next operator.  GNU's OpenMP, which comes with PyTorch for Linux, lets threads
wait actively only while there are no more of them than cores: those that a notebook's own thread
has are too many beside those of the workers, and then every operator wakes its threads through the
system.  On two cores a convolutional network took twice as long.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_HARD = 2  # omp_pause_hard: end the threads


def release_threads() -> None:
    """End those of the calling thread; its next operator gets new ones.

    With another OpenMP, or elsewhere than on Linux, it does nothing.
    """
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
