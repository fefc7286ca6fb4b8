"""What a process does about memory: it keeps freed pages, and its garbage collector pauses.

GNU's allocator gives the free top of its heap back to the system, from a threshold on that grows
with the largest tensor freed.  A stage's tensors come and go with every microbatch: in a fresh
process a backward of a small convolutional network met 700 pages that were not there.
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 10**9  # at the top of the heap
_LARGEST_BYTES = 2**25  # of a tensor on the heap; the most that the allocator takes


def keep_freed_memory() -> None:
    """Let this process keep up to 1 GB of freed memory; elsewhere than on Linux, do nothing."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


@contextmanager
def not_collected() -> Iterator[None]:
    """Make many objects that are in no circle: the tables of long runs are made twice as fast."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
