"""The transport between threads."""

import os
import sys

import pytest
import torch

from pipekit.engine.transport import Aborted
from pipekit.engine.transports.mailbox import MailboxTransport
from pipekit.engine.transports.threads import ThreadNetwork, ThreadWorker
from pipekit.host.operator_threads import share_cores
from pipekit.names import TRANSPORTS
from pipekit.schedules import Message, Payload

CPU = torch.device("cpu")


def transports(workers: int) -> tuple[list[MailboxTransport], ThreadNetwork]:
    network = ThreadNetwork(range(workers), [ThreadWorker(CPU)] * workers)
    return [network.transport(w) for w in range(workers)], network


def test_messages_are_taken_by_name_not_by_order() -> None:
    (one, two), _ = transports(2)
    tensors = [torch.tensor(k) for k in range(3)]
    for k in (2, 0, 1):
        one.send(Message(Payload.ACTIVATION, 1, k), 1, tensors[k])
    for k in range(3):
        got = two.receive(Message(Payload.ACTIVATION, 1, k), 0)
        assert got is tensors[k], "handed over by reference"


def test_an_abort_wakes_who_waits() -> None:
    (one, two), network = transports(2)
    network.abort()
    with pytest.raises(Aborted):
        one.receive(Message(Payload.ACTIVATION, 1, 0), 1)
    with pytest.raises(Aborted):
        two.require_peers()


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    cases = [(8, 2, "", 4), (8, 3, "", 2), (2, 4, "", 1), (8, 2, "3", 3), (8, 4, "3", 2)]
    try:
        for cores, workers, allowed, expected in cases:
            monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
            monkeypatch.setenv("OMP_NUM_THREADS", allowed)
            share_cores(workers)
            assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


def test_what_an_optimizer_loads_is_there_before_the_first_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's compiler: whichever method trained first would take 1.5 s longer for it."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # so that loading it fails
    with pytest.raises(ModuleNotFoundError, match=r"torch\._dynamo"):
        TRANSPORTS.load("threads")([])
