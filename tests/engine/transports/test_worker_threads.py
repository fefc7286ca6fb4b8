"""Threads that stay from one call to the next, and how they end."""

import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from pipekit.engine.transports import worker_threads
from pipekit.engine.transports.worker_threads import Notify, WorkerThreads
from tests.engine.examples import data, pipeline

LONG_S = 600.0  # only ends a hang


def here(number: int, notify: Notify) -> threading.Thread:
    return threading.current_thread()


def stop() -> None:
    """Nobody waits."""


def joined(threads: list[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(LONG_S)
    return not any(thread.is_alive() for thread in threads)


def test_a_call_goes_on_in_the_threads_of_the_last_one() -> None:
    workers = WorkerThreads()
    three = workers.run(here, 3, stop)
    assert len({*three}) == 3
    assert {thread.name for thread in three} == {worker_threads.IDLE}
    at_work = workers.run(lambda *_: threading.current_thread().name, 3, stop)
    assert at_work == [f"pipekit worker {n}" for n in range(3)]
    assert workers.run(here, 2, stop) == three[:2]
    four = workers.run(here, 4, stop)
    assert four[:3] == three
    workers.close()
    assert not any(thread.is_alive() for thread in four)
    (other,) = workers.run(here, 1, stop)
    assert other not in four


def test_they_end_with_who_has_them() -> None:
    workers = WorkerThreads()
    threads = workers.run(here, 2, stop)
    assert all(thread.is_alive() for thread in threads)
    del workers
    gc.collect()
    assert joined(threads)


def test_a_pipelines_end_with_it_or_by_its_close() -> None:
    seen = set[threading.Thread]()

    class Notes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if "pipekit worker" in threading.current_thread().name:
                seen.add(threading.current_thread())
            return x

        def __deepcopy__(self, memo: Any) -> "Notes":
            return self

    pipe = pipeline(nn.Sequential(Notes(), nn.Linear(6, 3), Notes()), "flush", [1, 2])
    for _ in range(3):
        pipe.train(data(1))
    pipe.evaluate(data(1))
    assert len(seen) == 2
    pipe.close()
    assert not any(thread.is_alive() for thread in seen)
    pipe.train(data(1))
    assert len(seen) == 4
    del pipe
    gc.collect()
    assert joined([*seen])


def test_an_error_ends_all_of_them() -> None:
    workers, over = WorkerThreads(), threading.Event()
    threads = workers.run(here, 2, stop)

    def fails(number: int, notify: Notify) -> None:
        if number == 0:
            raise OSError("no more")
        over.wait(LONG_S)

    with pytest.raises(OSError, match="no more"):
        workers.run(fails, 2, over.set)
    assert not any(thread.is_alive() for thread in threads)
    assert not {*workers.run(here, 2, stop)} & {*threads}


def test_who_does_not_return_is_left_behind_and_ends_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_threads, "GRACE_S", 0.01)
    workers, over = WorkerThreads(), threading.Event()
    threads = workers.run(here, 2, stop)

    def interrupted(event: Any) -> None:
        raise KeyboardInterrupt

    def hangs(number: int, notify: Notify) -> None:
        if number == 1:
            notify("here")
            over.wait(LONG_S)

    with pytest.raises(KeyboardInterrupt) as caught:
        workers.run(hangs, 2, stop, interrupted)
    assert caught.value.__notes__ == [
        "(pipekit worker 1: still in a layer or the data, and left behind)"
    ]
    others = workers.run(here, 2, stop)
    assert not {*others} & {*threads}
    over.set()
    assert joined(threads)


def test_a_call_within_a_call_has_threads_of_its_own() -> None:
    workers = WorkerThreads()

    def outer(number: int, notify: Notify) -> list[threading.Thread]:
        return [threading.current_thread(), *workers.run(here, 1, stop)]

    ((one, other),) = workers.run(outer, 1, stop)
    assert one is not other
    assert {*workers.run(here, 2, stop)} == {one, other}


def test_while_they_wait_they_keep_nothing_of_a_call() -> None:
    class Thing:
        """Something large."""

    thing = Thing()
    left = weakref.ref(thing)

    def uses(used: Thing, number: int, notify: Notify) -> None:
        """Have it for a while."""

    workers = WorkerThreads()
    workers.run(partial(uses, thing), 1, stop)
    del thing
    assert left() is None


def test_a_fork_has_threads_of_its_own() -> None:
    workers = WorkerThreads()
    workers.run(here, 1, stop)
    child = os.fork()
    if not child:
        # Whatever happens, not the rest of the tests.
        found: Callable[[], int] = lambda: len(workers.run(here, 1, stop)) - 1  # noqa: E731
        status = 1
        try:
            status = found()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_calls_beside_one_another_leave_the_interpreter_as_it_was() -> None:
    before, callers = sys.getswitchinterval(), []
    for _ in range(2):
        begun, over = threading.Event(), threading.Event()

        def waits(number: int, notify: Notify, begun: Any = begun, over: Any = over) -> None:
            begun.set()
            over.wait(LONG_S)

        caller = threading.Thread(target=WorkerThreads().run, args=(waits, 1, stop))
        caller.start()
        begun.wait(LONG_S)
        callers.append((caller, over))
    for caller, over in callers:  # the first one ends while the second runs
        over.set()
        caller.join()
    assert sys.getswitchinterval() == before
