"""How processes are started quickly.

A fork server that has imported torch starts a process in a tenth of a second, where a fresh
interpreter takes seconds and a plain fork may deadlock after a multi-threaded operator.
"""

import multiprocessing.forkserver
import multiprocessing.resource_tracker
import signal
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext

from pipekit.engine.interrupts import deferred_interrupts

# torch imports the last one, for 1.5 s, when it makes its first optimizer.
PRELOAD = [
    "pipekit.engine.transports.processes.socket_folder",
    "pipekit.engine.transports.processes.worker_process",
    "torch._dynamo",
]


def forkserver() -> ForkServerContext:
    """Return what starts processes, which runs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with deferred_interrupts():
        multiprocessing.resource_tracker.ensure_running()  # which would end the block below
        with _blocked(signal.SIGINT):
            multiprocessing.forkserver.ensure_running()
    return context


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """Let processes that are started in the block never get a signal.

    Python's fork server ignores interrupts only once it has imported everything, and a terminal or
    a notebook interrupts all processes.  Here another thread takes it, or this one afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def without_main_module() -> Iterator[None]:
    """Keep multiprocessing from running the user's script again in the child.

    What the child needs of it comes by value, through cloudpickle; so a script needs no
    ``if __name__ == "__main__"``.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
