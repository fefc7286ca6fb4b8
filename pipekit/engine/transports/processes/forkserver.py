"""How processes are started quickly.

A fork server that has imported torch starts a process in a tenth of a second, where a fresh
interpreter takes seconds and a plain fork may deadlock after a multi-threaded operator.
"""

import multiprocessing
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext

# torch imports the second one, for 1.5 s, when it makes its first optimizer.
PRELOAD = ["pipekit.engine.transports.processes.worker_process", "torch._dynamo"]


def forkserver() -> ForkServerContext:
    """Return what starts processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


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
