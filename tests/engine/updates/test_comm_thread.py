"""A thread beside a worker: one thing after another."""

import threading

import pytest
import torch

from pipekit.engine.comm_thread import CommThread
from pipekit.host.operator_threads import share_of_cores

LIMIT_S = 100
NAME = "pipekit thread of a test"


def made(workers: int = 1) -> tuple[CommThread, threading.Thread]:
    thread = CommThread(NAME, torch.device("cpu"), workers)
    return thread, next(each for each in threading.enumerate() if each.name == NAME)


def test_it_does_everything_in_order_in_one_thread_while_nobody_waits() -> None:
    log = list[int]()
    (beside, thread), go = made(), threading.Event()
    first = beside.submit(lambda: go.wait(LIMIT_S))
    futures = [beside.submit(lambda n=n: log.append(n)) for n in range(100)]  # type: ignore[misc]
    where = beside.submit(threading.current_thread)
    beside.close()
    assert not first.done()
    assert log == []
    assert thread.daemon  # at exit it may be waiting for a worker that has failed
    go.set()
    assert where.result(LIMIT_S) is thread
    assert all(future.done() for future in futures)
    assert log == list(range(100))
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_what_fails_fails_for_whoever_asks_and_the_rest_is_done() -> None:
    beside, _ = made()
    bad, good = beside.submit(lambda: 1 // 0), beside.submit(lambda: "done")
    assert good.result(LIMIT_S) == "done"
    with pytest.raises(ZeroDivisionError):
        bad.result(LIMIT_S)
    beside.close()


def test_it_shares_the_cores_as_its_worker_does() -> None:
    beside, _ = made(workers=2)
    assert beside.submit(torch.get_num_threads).result(LIMIT_S) == share_of_cores(2)
    beside.close()
