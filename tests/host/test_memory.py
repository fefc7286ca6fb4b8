"""What a process keeps of freed memory, as the allocator itself tells."""

import subprocess
import sys

import pytest

FREED = """
import ctypes
from pipekit.host.memory import keep_freed_memory

if {keeps}:
    keep_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]


class Info(ctypes.Structure):  # struct mallinfo2
    _fields_ = [(f"other {{n}}", ctypes.c_size_t) for n in range(9)] + [("kept", ctypes.c_size_t)]


library.mallinfo2.restype = Info
places = [0] * 1000
for number in range(1000):
    places[number] = library.malloc(100_000)
for place in reversed(places):
    library.free(place)
print(library.mallinfo2().kept)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's allocator")
def test_what_is_freed_stays() -> None:
    """100 MB lie at the top of the heap; of its own accord, the allocator keeps 64 MiB at most."""
    kept, given_back = (
        int(subprocess.check_output([sys.executable, "-c", FREED.format(keeps=keeps)]))
        for keeps in (True, False)
    )
    assert kept > 100e6 > 2**26 > given_back
