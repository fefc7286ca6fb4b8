"""The fork server imports this file before it starts a process, and so makes all of them quicker.

It also deletes the folder of its socket at its own end, ``pymp-...``, when its starter could not:
Python does so at the end of the process that has started the server, to which SIGKILL and SIGTERM
leave no time.  The server outlives that process by a moment.
"""

import atexit
import os
import re
import socket
import sys
from contextlib import suppress
from importlib import import_module
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

import_module("pipekit.engine.transports.processes.worker_process")
import_module("torch._dynamo")  # torch does, for 1.5 s, when it makes its first optimizer
with suppress(RuntimeError):  # this torch cannot: the caller says so
    import_module("pipekit.layers.random_operators").prepare()  # 0.1 s, for each by itself
