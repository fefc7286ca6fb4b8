"""Memory that processes share, and that is gone with the last of them, whatever ended it."""

import mmap
import os
import tempfile
import weakref
from multiprocessing.reduction import DupFd
from typing import Any

FIRST_BYTES = 1 << 20


class SharedBuffer:
    """A growing buffer that one process writes to and others read, each through its own map.

    It is a file without a name, which can be handed to a process that is being started.  What
    nobody has touched takes no memory.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._hold(os.memfd_create("pipekit"))
        else:
            with tempfile.TemporaryFile() as file:
                self._hold(os.dup(file.fileno()))
        os.ftruncate(self._fd, FIRST_BYTES)

    def __getstate__(self) -> object:
        return DupFd(self._fd)

    def __setstate__(self, fd: Any) -> None:
        self._hold(fd.detach())

    def _hold(self, fd: int) -> None:
        """Let go of the file with this object at the latest: an interrupt may keep it from more."""
        self._fd, self._used = fd, 0
        self._map: mmap.mmap | None = None
        self._close = weakref.finalize(self, os.close, fd)

    def allocate(self, size: int) -> int:
        """Return where ``size`` more bytes begin; for the one process that writes."""
        start, end = self._used, os.fstat(self._fd).st_size
        if start + size > end:
            start = end  # so that nothing lies across the end of what others have mapped
            os.ftruncate(self._fd, end + max(end, size))
        self._used = start + size
        return start

    def map(self, start: int) -> mmap.mmap:
        """Return a map of the whole buffer in which what was allocated at ``start`` lies."""
        mapped = self._map  # another thread may be at it, too, and come to a smaller one
        if mapped is None or start >= len(mapped):
            mapped = self._map = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        return mapped

    def close(self) -> None:
        """Let go of the file here; maps in use, and other processes, keep it."""
        self._close()
        self._fd, self._map = -1, None
