"""One worker process as its parent has it: its pipes, its start, and how it ended."""

import signal
from collections.abc import Sequence
from multiprocessing.connection import Pipe
from multiprocessing.process import BaseProcess

from pipekit.engine.interrupts import deferred_interrupts
from pipekit.engine.transports.processes.forkserver import forkserver, without_main_module
from pipekit.engine.transports.processes.shared_mailbox import Endpoint
from pipekit.engine.transports.processes.shared_memory import SharedBuffer
from pipekit.engine.transports.processes.worker_process import Connections, main

UNKNOWN_CODE = 255  # multiprocessing's, of a process whose fork server has ended


class WorkerDied(RuntimeError):
    """A worker process ended without a word, killed from outside or by its own native code."""


class WorkerHandle:
    """One worker process, and this process's ends of the pipes to it."""

    def __init__(
        self,
        index: int,
        endpoints: Sequence[Endpoint],
        states: SharedBuffer,
    ) -> None:
        for_worker, self.tasks = Pipe(duplex=False)
        self.reports, from_worker = Pipe(duplex=False)
        watched, self._lifeline = Pipe(duplex=False)
        self._others = for_worker, from_worker, watched
        connections = Connections(index, *self._others, endpoints, states)
        self.process: BaseProcess = forkserver().Process(
            target=main, args=(connections,), name=f"pipekit worker {index}", daemon=True
        )

    def start(self) -> None:
        """Start the process.

        Raises:
            WorkerDied: the fork server was killed while it did so.
        """
        try:
            with deferred_interrupts(), without_main_module():
                self.process.start()
        except (ConnectionError, EOFError) as error:
            raise WorkerDied(
                f"{self.process.name}'s process could not be started: the fork server, which "
                f"starts them, was killed: if nobody did it by hand, for want of memory"
            ) from error
        for end in self._others:
            end.close()

    def why(self) -> str:
        """Return how the process ended, and the likely cause."""
        self.process.join()
        code = self.process.exitcode
        said = f"with exit code {code}"
        if code == UNKNOWN_CODE:
            return (
                f"{said} (or the fork server, which knows it, was killed: if nobody did it by "
                f"hand, for want of memory)"
            )
        if code is None or code >= 0:
            return said
        name = signal.Signals(-code).name
        if name == "SIGKILL":
            return f"{said} ({name}, killed: if nobody did it by hand, for want of memory)"
        return f"{said} ({name})"

    def let_go(self) -> None:
        """Close the pipes: without its lifeline the process ends, even one that just starts."""
        self._lifeline.close()
        for end in (*self._others, self.tasks, self.reports):
            end.close()

    def end(self) -> None:
        """End the process at once, if it was started."""
        if self.process.pid is not None:
            self.process.kill()
            self.process.join()
            self.process.close()
