"""A process that ends with the one that started it."""

import ctypes
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have Linux kill this process, even a stopped one, at the end of the thread that started it.

    Elsewhere this does nothing.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
