"""Processes that end with the one that started them, and those below one."""

import ctypes
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have Linux kill this process, even a stopped one, at the end of the thread that started it.

    Elsewhere this does nothing.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def started_by(pid: int) -> Iterator[int]:
    """Yield the processes below one, as Linux lists them."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # of a thread that has ended
            for child in map(int, children.read_text().split()):
                yield child
                yield from started_by(child)
