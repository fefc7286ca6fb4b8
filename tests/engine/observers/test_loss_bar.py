"""The program that trains hears of each batch, in its own thread."""

import threading

import pytest

from pipekit.engine import BatchDone
from tests.engine.examples import data, mlp, pipeline


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_every_batch_is_told_of_once_in_order_here(transport: str) -> None:
    heard: list[BatchDone] = []
    threads = set()

    def listen(done: BatchDone) -> None:
        heard.append(done)
        threads.add(threading.current_thread())

    pipe = pipeline(mlp(6, 6, 3), "2bw", [1, 1], m=4, transport=transport)
    run = pipe.train(data(5, rows=8), on_batch=listen)
    assert [done.number for done in heard] == [0, 1, 2, 3, 4]
    assert [done.loss for done in heard] == run.losses
    assert [done.seconds for done in heard] == sorted(done.seconds for done in heard)
    assert threads == {threading.current_thread()}


def test_what_the_listener_raises_ends_the_run() -> None:
    def refuse(done: BatchDone) -> None:
        if done.number == 1:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        pipeline(mlp(6, 6, 3), "flush", [1, 1]).train(data(4), on_batch=refuse)
