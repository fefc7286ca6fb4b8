"""Threads that end together, and stay for the next call unless one has failed.

A new thread has none of the memory in which the last one has computed: where each call started its
own, one with a batch took 2,500 page faults and a third more processor time.
"""

import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch

from pipekit.engine.calls import deferred_interrupts
from pipekit.engine.transports.watchdog import LOOK_S
from pipekit.host.operator_threads import SWITCH_INTERVAL_S, release_threads, share_of_cores

Event = Any
Notify = Callable[[Event], None]
"""Called in one of the threads; hands an event to the thread that started them."""

T = TypeVar("T")

GRACE_S = 1.0  # for threads to end after an error or an interrupt
IDLE = "pipekit, idle"  # the name of a thread between two calls


def as_here() -> Callable[..., Any]:
    """Return what calls a function in another thread with what is this thread's own.

    That is its context variables, and its kind of default device, of which each worker has one.
    """
    context, kind = copy_context(), torch.get_default_device().type

    def call(function: Callable[..., Any], *args: Any) -> Any:
        # A default device slows each call of torch.
        with nullcontext() if kind == "cpu" else torch.device(kind):
            return context.copy().run(function, *args)

    return call


class WorkerThreads:
    """Threads that are started when a call needs them, and stay for the next one.

    They end with this object, by :meth:`close`, with this process, or when anything fails.
    """

    def __init__(self) -> None:
        self._waiting: list[_Thread] = []  # those of a call that runs are not here

    def run(
        self,
        function: Callable[[int, Notify], T],
        count: int,
        stop: Callable[[], None],
        on_event: Callable[[Event], None] | None = None,
        on_wait: Callable[[], None] = lambda: None,
        call: Callable[..., Any] | None = None,
    ) -> list[T]:
        """Run a function in so many threads, which share the cores; return what it returns in each.

        It gets the thread's number, from 0, and what hands an event to ``on_event`` in this thread;
        between events ``on_wait`` is called, and may raise.  It is called by ``call``, by default
        that of :func:`as_here`; what it sets stays its own.  ``stop`` makes all return soon.

        Raises:
            BaseException: the first that any of them raised, once all have ended; those that do not
                within GRACE_S, because a layer does not return, are left behind, as a note says.
        """
        news: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        results: dict[int, T] = {}
        begun = threading.Event()
        share, call = share_of_cores(count), call or as_here()

        def run(index: int) -> None:
            try:
                begun.wait()  # else the first ones keep the cores from those that follow
                torch.set_num_threads(share)
                result = function(index, lambda event: news.put(("event", event)))
                news.put(("done", (index, result)))
            except BaseException as error:
                news.put(("failed", error))
            finally:
                if share > 1:
                    release_threads()

        if share > 1:
            release_threads()
        cores, interval = torch.get_num_threads(), sys.getswitchinterval()
        sys.setswitchinterval(min(interval, SWITCH_INTERVAL_S))
        threads: list[_Thread] = []
        try:
            with deferred_interrupts():  # one in its start may end a thread before it has begun
                # Those that wait for work; in a fork of a process there are none.
                waiting, self._waiting = self._waiting, []
                waiting = [each for each in waiting if each.thread.is_alive()]
                self._waiting = waiting[count:]
                threads = waiting[:count] + [_Thread() for _ in range(count - len(waiting))]
                for index, thread in enumerate(threads):
                    thread.begin(partial(call, run, index), f"pipekit worker {index}")
            begun.set()
            while len(results) < len(threads):
                try:
                    kind, value = news.get(timeout=LOOK_S)
                except Empty:
                    on_wait()
                    continue
                if kind == "failed":
                    raise value
                if kind == "done":
                    results[value[0]] = value[1]
                elif on_event is not None:
                    on_event(value)
            for thread in threads:
                thread.wait()
        except BaseException as error:
            stop()
            begun.set()
            if left := ", ".join(_end(threads)):
                error.add_note(f"({left}: still in a layer or the data, and left behind)")
            raise
        finally:
            torch.set_num_threads(cores)
            if interval > SWITCH_INTERVAL_S:  # and not another call's, which puts it back itself
                sys.setswitchinterval(interval)
        self._waiting = [*threads, *self._waiting]
        return [results[index] for index in range(len(threads))]

    def close(self) -> None:
        threads, self._waiting = self._waiting, []
        _end(threads)


class _Thread:
    """A thread that does one piece of work after another, and ends once nobody has this object."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._over: SimpleQueue[None] = SimpleQueue()
        given = self._tasks, self._over
        self.thread = threading.Thread(target=_loop, args=given, name=IDLE, daemon=True)
        self.end = weakref.finalize(self, self._tasks.put, None)
        self.thread.start()

    def begin(self, function: Callable[[], None], name: str) -> None:
        """Have a function done under a name; it raises nothing."""
        self.thread.name = name
        self._tasks.put(function)

    def wait(self) -> None:
        """Wait until the function has returned, and nothing of it is kept here."""
        self._over.get()


def _loop(tasks: "SimpleQueue[Callable[[], None] | None]", over: "SimpleQueue[None]") -> None:
    """Run each function that comes; between two, keep nothing of a run alive."""
    while function := tasks.get():
        function()
        threading.current_thread().name = IDLE
        del function
        over.put(None)


def _end(threads: Sequence[_Thread]) -> list[str]:
    """End threads, and return the names of those that still run after GRACE_S."""
    for thread in threads:
        thread.end()
    end = time.monotonic() + GRACE_S
    for each in threads:
        each.thread.join(max(0.0, end - time.monotonic()))
    return [each.thread.name for each in threads if each.thread.is_alive()]
