"""A lane: one thing after another, beside the worker."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pipekit.engine.comm_thread import CommThread
from pipekit.host.operator_threads import share_cores

LIMIT_S = 100
NAME = "pipekit lane of a test"


def lane(workers: int = 1) -> CommThread:
    return CommThread(NAME, torch.device("cpu"), workers)


def lanes() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def number_it(log: list[int], number: int) -> Callable[[], None]:
    return lambda: log.append(number)


def test_it_does_everything_in_order_in_one_thread_of_its_name() -> None:
    log: list[int] = []
    made = lane()
    (thread,) = lanes()
    threads = made.submit(threading.current_thread)
    futures = [made.submit(number_it(log, number)) for number in range(100)]
    futures[-1].result(LIMIT_S)
    assert log == list(range(100))
    assert threads.result(LIMIT_S) is thread is not threading.current_thread()
    made.close()
    join([thread])


def test_submitting_does_not_wait() -> None:
    made, go = lane(), threading.Event()
    first = made.submit(lambda: go.wait(LIMIT_S))
    second = made.submit(lambda: 2)
    assert not first.done()
    assert not second.done()
    go.set()
    assert (first.result(LIMIT_S), second.result(LIMIT_S)) == (True, 2)
    made.close()


def test_what_fails_fails_for_whoever_asks_and_the_rest_is_done() -> None:
    made = lane()
    bad, good = made.submit(lambda: 1 // 0), made.submit(lambda: "done")
    assert good.result(LIMIT_S) == "done"
    with pytest.raises(ZeroDivisionError):
        bad.result(LIMIT_S)
    made.close()


def test_it_ends_once_everything_is_done() -> None:
    log: list[int] = []
    made, go = lane(), threading.Event()
    threads = lanes()
    made.submit(lambda: go.wait(LIMIT_S))
    made.submit(number_it(log, 1))
    made.close()
    assert threads[0].is_alive()
    go.set()
    join(threads)
    assert log == [1]


def test_nobody_waits_for_it_at_exit() -> None:
    """It may be waiting for a worker that has failed."""
    made = lane()
    assert all(thread.daemon for thread in lanes())
    made.close()


def test_it_shares_the_cores_as_its_worker_does() -> None:
    def of_a_worker() -> int:
        share_cores(2)
        return torch.get_num_threads()

    expected: list[Any] = []
    worker = threading.Thread(target=lambda: expected.append(of_a_worker()))
    worker.start()
    worker.join()
    made = lane(workers=2)
    assert made.submit(torch.get_num_threads).result(LIMIT_S) == expected[0]
    made.close()
