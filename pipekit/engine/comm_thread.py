"""A thread beside a worker, or beside the program that feeds them."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from pipekit.devices import new_stream, on_stream
from pipekit.host.operator_threads import share_cores

T = TypeVar("T")


class CommThread:
    """Runs functions in turn, in a thread for which no program waits: its peer may be gone."""

    def __init__(self, name: str, device: torch.device, workers: int) -> None:
        self._device, self._workers = device, workers
        self._work: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, function: Callable[[], T]) -> "Future[T]":
        """Do this after all that was submitted before."""
        future: Future[T] = Future()
        self._work.put((function, future))
        return future

    def close(self) -> None:
        self._work.put(None)

    def _run(self) -> None:
        share_cores(self._workers)
        with on_stream(new_stream(self._device)):
            while (work := self._work.get()) is not None:
                function, future = work
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
                del work, function, future  # nobody needs their gradients till the next one comes
