"""Worker processes as their parent has them: their start, their pipes and their end.

A fork server that has imported torch starts a process in a tenth of a second, where a fresh
interpreter takes seconds and a plain fork may deadlock after a multi-threaded operator.
"""

import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Pipe
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pipekit.engine.calls import deferred_interrupts
from pipekit.engine.transports.processes.shared_mailbox import Endpoint, SharedBuffer
from pipekit.engine.transports.processes.worker_process import Connections, main

PRELOAD = ["pipekit.engine.transports.processes.in_forkserver"]
UNKNOWN_CODE = 255  # multiprocessing's, of a process whose fork server has ended
_MAIN_MODULE = threading.Lock()
_KILLED = "if nobody did it by hand, for want of memory"


def forkserver() -> ForkServerContext:
    """Return a context whose fork server runs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with deferred_interrupts():
        multiprocessing.resource_tracker.ensure_running()  # which would unblock the signal below
        # Python's fork server ignores interrupts only once it has imported everything, and a
        # terminal or a notebook interrupts all processes: it inherits a mask, and never gets one.
        # Here another thread takes it, or this one afterwards.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            multiprocessing.forkserver.ensure_running()
        except OSError as error:  # a long name of the folder of its socket, for one
            raise OSError(
                f"the fork server, which starts worker processes, has no socket in "
                f"{tempfile.gettempdir()} ({error}): let TMPDIR name a short path on a local disk, "
                f"say /tmp, or use transport='threads'"
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


@contextmanager
def without_main_module() -> Iterator[None]:
    """Keep multiprocessing from running the user's script again in the child.

    What the child needs of it comes by value, so that no script needs ``if __name__ == ...``.
    """
    with _MAIN_MODULE:  # else one of two threads would put back what the other has put there
        main_module = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main_module


def _forget_server() -> None:
    """Let a fork of this process start a server of its own: it cannot wait for its parent's."""
    server: Any = multiprocessing.forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
    server.__init__()


os.register_at_fork(after_in_child=_forget_server)


class WorkerDied(RuntimeError):
    """A worker process ended without a word, killed from outside or by its own native code."""


class WorkerHandle:
    """One worker process, and this process's ends of the pipes to it."""

    def __init__(
        self, index: int, workers: int, endpoints: Sequence[Endpoint], states: SharedBuffer
    ) -> None:
        for_worker, self.tasks = Pipe(duplex=False)
        self.reports, from_worker = Pipe(duplex=False)
        watched, self._lifeline = Pipe(duplex=False)
        self._others = for_worker, from_worker, watched
        connections = Connections(index, workers, *self._others, endpoints, states)
        self.process: BaseProcess = forkserver().Process(
            target=main, args=(connections,), name=f"pipekit worker {index}", daemon=True
        )

    def start(self) -> None:
        """Start the process, or raise WorkerDied if the fork server was killed meanwhile."""
        try:
            with deferred_interrupts(), without_main_module():
                self.process.start()
        except (ConnectionError, EOFError) as error:
            raise WorkerDied(
                f"{self.process.name}'s process could not be started: the fork server, which "
                f"starts them, was killed: {_KILLED}"
            ) from error
        for end in self._others:
            end.close()

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped the process (SIGSTOP, a debugger), as far as Linux tells."""
        try:
            about = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        return about.rpartition(")")[2].split()[0] in "Tt"

    def why(self) -> str:
        """Return how the process ended, and the likely cause."""
        self.process.join()
        code = self.process.exitcode
        said = f"with exit code {code}"
        if code == UNKNOWN_CODE:
            return f"{said} (or the fork server, which knows it, was killed: {_KILLED})"
        if code is None or code >= 0:
            return said
        name = signal.Signals(-code).name
        return f"{said} ({name}, killed: {_KILLED})" if name == "SIGKILL" else f"{said} ({name})"

    def let_go(self) -> None:
        """Close the pipes: without its lifeline the process ends, even one that just starts."""
        for end in (self._lifeline, *self._others, self.tasks, self.reports):
            end.close()

    def end(self) -> None:
        if self.process.pid is not None:
            self.process.kill()
            self.process.join()
            self.process.close()
