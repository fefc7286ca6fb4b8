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
        weakref.finalize(self, _dismiss, self._waiting)

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
        share, call = share_of_cores(count, torch.get_num_threads()), call or as_here()

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
                alive = [thread for thread in self._waiting if thread.is_alive()]
                threads, self._waiting[:] = alive[:count], alive[count:]
                while len(threads) < count:
                    threads.append(_Thread())
                for index, thread in enumerate(threads):
                    thread.name = f"pipekit worker {index}"
                    thread.work.put(partial(call, run, index))
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
                thread.over.get()  # it has let go of all that is the run's
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
        self._waiting[:0] = threads
        return [results[index] for index in range(len(threads))]

    def close(self) -> None:
        _end(self._waiting)
        self._waiting.clear()


class _Thread(threading.Thread):
    """Does one piece of work after another, of which none raises, until it gets None."""

    def __init__(self) -> None:
        super().__init__(name=IDLE, daemon=True)
        self.work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.over: SimpleQueue[None] = SimpleQueue()  # as often as a piece of work is
        self.start()

    def run(self) -> None:
        while function := self.work.get():
            function()
            self.name = IDLE
            del function  # between two, nothing of a run is kept alive
            self.over.put(None)


def _dismiss(threads: Sequence[_Thread]) -> None:
    for thread in threads:
        thread.work.put(None)


def _end(threads: Sequence[_Thread]) -> list[str]:
    """End threads, and return the names of those that still run after GRACE_S."""
    _dismiss(threads)
    end = time.monotonic() + GRACE_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]
