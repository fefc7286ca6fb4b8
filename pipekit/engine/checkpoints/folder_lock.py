"""One training at a time in a folder of checkpoints."""

import fcntl
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from pipekit.engine.interrupts import deferred_interrupts


class FolderLock:
    """A lock on a folder, which ends with the process that holds it, whatever ends that.

    Where a file system has no locks, there is none.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._path = Path()

    def take(self, folder: Path) -> str | None:
        """Take the lock of a folder; return who has it, if it is somebody else's.

        Raises:
            OSError: the lock's file cannot be opened; the message names it.
            ValueError: it is something else than a file.
        """
        with deferred_interrupts():  # whatever is open is known when one comes
            return self._take(folder / ".lock")

    def _take(self, path: Path) -> str | None:
        while self._file is None:
            # Not through a link, to a file whose beginning would be written over.
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
            if not stat.S_ISREG(os.fstat(file).st_mode):
                os.close(file)
                raise ValueError(f"{path} is not a file: delete it")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(file, 1000, 0).decode(errors="replace")
                os.close(file)
                return holder or "another process"
            except OSError:
                os.close(file)
                return None
            # Whoever had it before may have deleted the file that was opened here.
            with suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(file).st_ino:
                    self._file, self._path = file, path
                    continue
            os.close(file)
        os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        return None

    def give_back(self) -> None:
        """Let go of the lock, if it is held."""
        if self._file is not None:
            with deferred_interrupts():  # one between the lines would leave the file open
                self._path.unlink(missing_ok=True)
                os.close(self._file)
                self._file = None
