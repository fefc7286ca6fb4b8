"""Threads that end together: the first error stops all of them, and is the caller's."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch

from pipekit.engine.interrupts import deferred_interrupts
from pipekit.engine.transports.watchdog import LOOK_S
from pipekit.host.openmp import release_threads
from pipekit.host.operator_threads import SWITCH_INTERVAL_S, share_cores, share_of_cores

Event = Any
Notify = Callable[[Event], None]
"""Called in one of the threads; hands an event to the thread that started them."""

T = TypeVar("T")

GRACE_S = 1.0  # for threads to end after an error or an interrupt


def run_threads(
    functions: Sequence[Callable[[Notify], T]],
    stop: Callable[[], None],
    on_event: Callable[[Event], None] | None = None,
    on_wait: Callable[[], None] = lambda: None,
) -> list[T]:
    """Run functions in a thread each, which share the cores, and return what they return.

    Args:
        functions: each is called with a function that hands an event to ``on_event``.
        stop: makes all of them return soon; called when one has failed or this thread is
            interrupted.
        on_event: called in this thread with each event.
        on_wait: called in this thread now and then while there are none; it may raise.

    Raises:
        BaseException: the first that any of them raised, with its traceback, once all have ended.
            Those that do not end within GRACE_S, because a layer does not return, are left behind:
            a note says so.
    """
    news: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    results: dict[int, T] = {}
    started = threading.Event()

    def run(index: int) -> None:
        try:
            started.wait()  # else the first ones keep the cores from those that follow
            share_cores(len(functions))
            result = functions[index](lambda event: news.put(("event", event)))
            news.put(("done", (index, result)))
        except BaseException as error:
            news.put(("failed", error))

    threads = [
        threading.Thread(target=run, args=(index,), name=f"pipekit worker {index}", daemon=True)
        for index in range(len(functions))
    ]
    if share_of_cores(len(functions)) > 1:
        release_threads()
    cores, interval = torch.get_num_threads(), sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with deferred_interrupts():  # one in its start may end a thread before it has begun
            for thread in threads:
                thread.start()
        started.set()
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
    except BaseException as error:
        stop()
        started.set()
        end = time.monotonic() + GRACE_S
        begun = [thread for thread in threads if thread.ident is not None]
        for thread in begun:
            thread.join(max(0.0, end - time.monotonic()))
        if left := [thread.name for thread in begun if thread.is_alive()]:
            error.add_note(f"({', '.join(left)}: still in a layer or the data, and left behind)")
        raise
    else:
        for thread in threads:
            thread.join()
    finally:
        torch.set_num_threads(cores)
        sys.setswitchinterval(interval)
    return [results[index] for index in range(len(threads))]
