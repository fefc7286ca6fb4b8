"""A thread beside a worker that does what it is given, in order, while the worker goes on.

Not a ThreadPoolExecutor: Python waits for its threads at exit, and this one may be waiting for a
worker that has failed.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

import torch

from pipekit.devices import new_stream, on_stream
from pipekit.host.operator_threads import share_cores

Result = TypeVar("Result")
_Work = tuple[Callable[[], object], "Future[object]"]


class CommThread:
    """Runs functions one after another, in a thread of its own."""

    def __init__(self, name: str, device: torch.device, workers: int) -> None:
        self._device, self._workers = device, workers
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, function: Callable[[], Result]) -> "Future[Result]":
        """Do this after all that was submitted before."""
        future: Future[Result] = Future()
        self._work.put((function, future))  # type: ignore[arg-type]  # a future is invariant
        return future

    def close(self) -> None:
        """End once everything submitted is done."""
        self._work.put(None)

    def _run(self) -> None:
        share_cores(self._workers)
        with on_stream(new_stream(self._device)):
            while (work := self._work.get()) is not None:
                _do(*work)
                del work  # while it waits for the next, nobody needs this one's gradients


def _do(function: Callable[[], object], future: "Future[object]") -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
