"""Deletes the folder of the fork server's socket when its starter could not, because it was killed.

Python makes such a folder, ``pymp-...``, and deletes it at the end of the process that has started
the server; SIGKILL and SIGTERM leave no time for it.  The server outlives that process by a moment.
It imports this file before it starts anything, and deletes the folder at its own end.
"""

import atexit
import os
import re
import socket
import sys
from contextlib import suppress
from pathlib import Path

_COMMAND = re.compile(r"from multiprocessing\.forkserver import main; main\((\d+),")


def _delete(path: Path, process: int) -> None:
    if os.getpid() == process:  # and not a process that the server has started
        with suppress(OSError):
            path.unlink(missing_ok=True)
            path.parent.rmdir()


def _listens_at(command: str) -> Path | None:
    """Return where this process listens, if it is a fork server."""
    if not (found := _COMMAND.search(command)):
        return None
    with socket.socket(fileno=os.dup(int(found[1]))) as listener:
        address = listener.getsockname()
    path = Path(os.fsdecode(address))
    return path if path.is_absolute() and path.parent.name.startswith("pymp-") else None


for _argument in sys.orig_argv:
    if _path := _listens_at(_argument):
        atexit.register(_delete, _path, os.getpid())
