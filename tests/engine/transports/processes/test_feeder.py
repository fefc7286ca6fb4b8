"""Batches on their way to worker processes."""

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from pipekit.engine.batches import Batch
from pipekit.engine.feed import Needs
from pipekit.engine.transports.mailbox import KeyedMailbox
from pipekit.engine.transports.processes.feeder import READ_AHEAD, received_batches, send_batches
from pipekit.engine.transports.processes.shared_mailbox import Endpoint, SharedMailboxes
from pipekit.schedules import Schedule, flush, pipedream
from tests.engine.examples import Midst, data, mlp, pipeline, twins
from tests.engine.transports.test_message_layout import described


def batch(number: int) -> Batch:
    x = torch.full((6, 2), float(number))
    return Batch({"x": x, "y": (x.long(),)}, [x], 6, ((2,), (2,)), [2, 2, 2])


def test_everybody_gets_what_it_wants_and_no_more_is_read_than_needed() -> None:
    endpoints = [Endpoint.new() for _ in range(3)]
    mailboxes = [SharedMailboxes(index, endpoints) for index in range(3)]
    one, two = (KeyedMailbox(each.put, each.get) for each in mailboxes[:2])
    read = []

    def batches() -> Iterator[Batch]:
        for number in range(10):
            read.append(number)
            yield batch(number)

    everything, nothing = frozenset(range(30)), frozenset[int]()
    needs = {0: Needs(everything, nothing), 1: Needs(nothing, everything)}
    feeder = threading.Thread(target=send_batches, args=(batches(), needs, mailboxes[2], print, 0))
    feeder.start()
    first = received_batches(one, feeder=2, run=0)
    last = received_batches(two, feeder=None, run=0)
    for number in range(10):
        got = next(first)
        assert described(got.input) == described(batch(number).input)
        assert (got.target, *got[2:]) == (None, 6, ((2,), (2,)), [2, 2, 2], None, (), 1)
        assert len(read) <= number + READ_AHEAD + 2
    for number in range(10):
        got = next(last)
        assert got.input is None
        assert got.target[0].eq(number).all()
    feeder.join()
    for endpoint in endpoints:
        endpoint.close()


@pytest.mark.long
def test_more_batches_than_a_pipe_takes() -> None:
    """A note of 49 bytes for each to the worker in the middle, and 64 KiB hold 1,337 of them."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Identity(), nn.Linear(6, 3))
    threads, processes = twins(model, "pipedream", [1, 1, 1])
    assert threads.train(data(1700)).losses == processes.train(data(1700)).losses


def test_evaluation_when_the_first_worker_gets_no_batches() -> None:
    """Only those who take inputs or targets know how many rows there are."""
    one, two, three = flush(3, 2).take(1).workers
    turned = Schedule((two, three, one), "turned").repeat()
    threads, processes = twins(mlp(6, 6, 6, 3), turned, [1, 1, 1])
    assert threads.evaluate(data(rows=[8, 5])) == processes.evaluate(data(rows=[8, 5]))


def test_an_error_of_the_disk_surfaces_where_the_run_may_not_end() -> None:
    """It was taken for the end of a worker, for which everybody else then waited."""

    def read() -> None:
        raise OSError("damaged")

    pipe = pipeline(mlp(6, 6, 3), pipedream([2, 1]), [1, 1], transport="distributed")
    with pytest.raises(OSError, match="damaged"):
        pipe.train(Midst(data(9), 5, read))
