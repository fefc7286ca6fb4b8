"""One call at a time uses a pipeline's workers: no other thread, callback or forked child."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast


class CallLock:
    """Gives one call after another its turn, and refuses one that would have to wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: int | None = None  # of the first turn, whose workers others do not have

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have a turn.

        Raises:
            RuntimeError: another call has it, or had one in the process that this one is forked of.
        """
        if self._process not in (None, os.getpid()):
            raise RuntimeError(
                f"the pipeline's workers belong to process {self._process}, of which this one is a "
                f"fork: build a pipeline in the forked process"
            )
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "a run is under way, whose workers have the stages: call this after train(), "
                "evaluate() or predict() has returned, from one thread at a time; to do it every "
                "few batches, call train(batches, steps=...) again and again; to "
                "save weights on the way, pass train() checkpoints=..."
            )
        self._process = os.getpid()
        try:
            yield
        finally:
            self._lock.release()


M = TypeVar("M", bound=Callable[..., Any])


def one_at_a_time(method: M) -> M:
    """Return a method that takes the turn of its object's ``_calls``; raises as :meth:`taken`."""

    @wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._calls.taken():
            return method(self, *args, **kwargs)

    return cast(M, called)
