"""Calls of a pipeline: what they refuse, one at a time, and what an interrupt does to them."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from inspect import signature
from types import FrameType
from typing import Any, ParamSpec, TypeVar, cast

from pipekit.engine.options import Checkpoints, Execution, Updates, Watch
from pipekit.host.user_frames import hide_frames

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])

VALUES = {"updates": Updates, "execution": Execution, "watch": Watch}
MOVED: dict[str, str] = {
    field.name: (
        f"{field.name} is a field of {value.__name__}: pass "
        f"{argument}={value.__name__}({first}{field.name}=...) to {calls}"
    )
    for value, argument, first, calls in (
        (Updates, "updates", "", "Pipeline()"),
        (Execution, "execution", "", "Pipeline()"),
        (Watch, "watch", "", "train() or PipelinedModule()"),
        (Checkpoints, "checkpoints", "folder, ", "train()"),
    )
    for field in fields(value)
    if field.name != "folder"
}
"""What is said of each field that is given to a call by its name alone."""


def refusing_fields(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function so that a field of a value among its arguments raises the new call.

    So does something else in place of a value.
    """
    fields_alone = MOVED.keys() - signature(function).parameters.keys()

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            if moved := fields_alone & kwargs.keys():
                raise TypeError(MOVED[min(moved)])
            for name in VALUES.keys() & kwargs.keys():
                if not isinstance(given := kwargs[name], kind := VALUES[name]):
                    raise TypeError(
                        f"{name} must be a pipekit.{kind.__name__}, not {type(given).__name__}: "
                        f"pass {name}={kind.__name__}(...)"
                    )
            return function(*args, **kwargs)
        except BaseException:
            hide_frames()
            raise

    return called


class CallLock:
    """Gives one call after another its turn, and refuses one that would have to wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: int | None = None  # of the first turn, whose workers others do not have

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have a turn, or raise RuntimeError: another call has it, or a process forked of this."""
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


def one_at_a_time(method: M) -> M:
    """Return a method that takes the turn of its object's ``_calls``; raises as :meth:`taken`."""

    @wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            with self._calls.taken():
                return method(self, *args, **kwargs)
        except BaseException:
            hide_frames()
            raise

    return cast(M, called)


@contextmanager
def interrupts(stop: Callable[[], None] | None) -> Iterator[list[KeyboardInterrupt]]:
    """Let the first interrupt within the block end a run where its updates are whole.

    The second one ends it at once, as does the first where none can be caught, or without ``stop``.
    Yields the error that is to be raised once the run has ended, if there is one.
    """
    came: list[KeyboardInterrupt] = []
    in_main = threading.current_thread() is threading.main_thread()
    if not (stop and in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
        yield came
        return

    def interrupted(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        came.append(KeyboardInterrupt())
        stop()
        print(
            "pipekit: interrupted: the batches on their way are finished (a second interrupt ends "
            "the run at once, and its weights are lost)",
            file=sys.stderr,
            flush=True,
        )

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Let an interrupt wait for the end of the block, say until a process that starts is known."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # interrupts come to the main thread only, or to nobody
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        handler(*came[0])
