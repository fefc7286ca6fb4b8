"""Sums over the workers of a stage: the ordered sum to the bit, and as few bytes as there can be."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipekit.engine.transport import SCATTER, Aborted, Exchange, FlatBucket, PartKey, Parts
from pipekit.engine.transports.mailbox import KeyedMailbox, MailboxTransport
from pipekit.engine.transports.processes.shared_mailbox import Endpoint, SharedMailboxes
from pipekit.engine.transports.threads import ThreadNetwork, ThreadWorker
from pipekit.engine.updates.all_reduce import AllReduce, ReduceKey

LIMIT_S = 100
TRANSPORTS = pytest.mark.parametrize("transport", ["queues", "shared memory"])


@contextmanager
def exchanges(transport: str, members: Sequence[int]) -> Iterator[list[Exchange]]:
    """The members' ways to one another, all in this process, of which none ever fails."""
    workers = range(max(members) + 1)
    if transport == "queues":
        network = ThreadNetwork(workers, [ThreadWorker(torch.device("cpu"))] * len(workers))
        yield [network.transport(worker).exchange_among(members) for worker in members]
        return
    endpoints = [Endpoint.new() for _ in workers]
    boxes = [SharedMailboxes(index, endpoints) for index in members]
    mailboxes = [KeyedMailbox(each.put, each.get) for each in boxes]
    yield [MailboxTransport(0, [], each, each).exchange_among(members) for each in mailboxes]
    for endpoint in endpoints:
        endpoint.close()


def together(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Call every function in a thread of its own; return what they return."""
    results: dict[int, Any] = {}

    def call(number: int) -> None:
        results[number] = functions[number]()

    threads = [
        threading.Thread(target=call, args=(number,), daemon=True)
        for number in range(len(functions))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert len(results) == len(functions), "some wait for ever"
    return [results[number] for number in range(len(functions))]


class Summed(NamedTuple):
    """What the members have after some rounds: ``totals[member][round]``, and what each sent."""

    totals: list[list[FlatBucket]]
    sent: list[Counter[int]]


def summed(
    transport: str,
    members: Sequence[int],
    contributors: Sequence[Sequence[int]],
    contents: Sequence[Sequence[FlatBucket]],
) -> Summed:
    """Sum ``contents[member][round]`` over the round's contributors, by every member."""
    with exchanges(transport, members) as ways:
        sums = [AllReduce(members, *each) for each in zip(members, ways, strict=True)]

        def run(one: AllReduce, own: Sequence[FlatBucket]) -> list[FlatBucket]:
            return [
                one.sum(ReduceKey(0, number, who), content)
                for number, (who, content) in enumerate(zip(contributors, own, strict=True))
            ]

        totals = together([partial(run, *each) for each in zip(sums, contents, strict=True)])
    return Summed(totals, [each.sent_bytes for each in sums])


def content(numbers: Tensor, present: int = 1) -> FlatBucket:
    return FlatBucket(numbers, torch.full((1,), present, dtype=torch.uint8))


def copied(contents: Sequence[Sequence[FlatBucket]]) -> list[list[FlatBucket]]:
    return [[FlatBucket(*map(torch.clone, flat)) for flat in own] for own in contents]


def random_content(generator: torch.Generator, size: int, dtype: torch.dtype) -> FlatBucket:
    """Numbers of many magnitudes, so that another order of adding them gives other bits."""
    numbers = torch.randn(size, generator=generator, dtype=torch.float64)
    magnitudes = torch.randn(size, generator=generator, dtype=torch.float64) * 3
    return content((numbers * magnitudes.exp()).to(dtype))


def in_order(contents: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, contents)


# --- The sum -------------------------------------------------------------------------------------


@TRANSPORTS
@settings(max_examples=12)
@given(st.data())
def test_it_is_the_sum_in_the_order_of_the_workers_to_the_bit(
    transport: str, data: st.DataObject
) -> None:
    """Whoever contributes, whoever the members are, and if there are fewer numbers than members."""
    members = sorted(data.draw(st.sets(st.integers(0, 6), min_size=2, max_size=5)))
    subsets = st.lists(st.sampled_from(members), min_size=1, unique=True).map(sorted)
    contributors = data.draw(st.lists(subsets, min_size=1, max_size=4))
    size = data.draw(st.integers(0, 23))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    contents = [
        [
            random_content(generator, size, dtype)
            if worker in who
            else content(torch.zeros(size, dtype=dtype), present=0)
            for who in contributors
        ]
        for worker in members
    ]
    found = summed(transport, members, contributors, copied(contents))
    for number, who in enumerate(contributors):
        expected = in_order([contents[members.index(worker)][number].numbers for worker in who])
        for totals in found.totals:
            assert torch.equal(totals[number].numbers, expected)
            assert totals[number].present.tolist() == [1]


@TRANSPORTS
def test_a_sum_of_one_may_be_edited_before_another_has_read_it(transport: str) -> None:
    edited = threading.Event()
    with exchanges(transport, [0, 1]) as (one, other):

        def late(key: PartKey, sends: Parts, receives: Parts, microbatch: int) -> list[FlatBucket]:
            if key.phase == SCATTER:
                return other(key, sends, receives, microbatch)
            other(key, sends, {}, microbatch)
            edited.wait(LIMIT_S)
            return other(key, {}, receives, microbatch)

        first, second = AllReduce([0, 1], 0, one), AllReduce([0, 1], 1, late)

        def edit() -> None:
            first.sum(ReduceKey(0, 0, [0]), content(torch.ones(4))).numbers.zero_()
            edited.set()

        def read() -> Tensor:
            return second.sum(ReduceKey(0, 0, [0]), content(torch.zeros(4), present=0)).numbers

        assert together([edit, read])[1].tolist() == [1] * 4


# --- Bytes ---------------------------------------------------------------------------------------


@TRANSPORTS
@pytest.mark.parametrize("members", [2, 5])
def test_each_sends_2_m_minus_1_of_m_of_the_bytes(members: int, transport: str) -> None:
    """PipeDream, section 3.2: 4 (m - 1) |w| / m sent and received by each."""
    size, rounds = 12 * members, 3
    contents = [[content(torch.ones(size)) for _ in range(rounds)] for _ in range(members)]
    found = summed(transport, range(members), [range(members)] * rounds, contents)
    bytes_of_content = 4 * size
    for worker, sent in enumerate(found.sent):
        assert sent.total() == rounds * 2 * (members - 1) * bytes_of_content / members
        assert set(sent) == set(range(members)) - {worker}
        assert len(set(sent.values())) == 1, "every link carries as much"
        received = sum(other[worker] for other in found.sent)
        assert sent.total() + received == rounds * 4 * (members - 1) * bytes_of_content / members


# --- How the messages go -------------------------------------------------------------------------


Named = list[tuple[int, PartKey]]


def noted(
    sent: Named, received: Named, key: PartKey, sends: Parts, receives: Parts, _: int
) -> list[FlatBucket]:
    """Note what passes, and answer with zeros."""
    sent += [(worker, key) for worker in sends]
    received += [(worker, key._replace(sender=worker)) for worker in receives]
    return [FlatBucket(*map(torch.zeros_like, part)) for part in receives.values()]


def test_messages_have_names_of_their_own_and_everybody_begins_with_another() -> None:
    firsts, named = [], []
    for worker in (2, 4, 5):
        sent: Named = []
        received: Named = []

        all_reduce = AllReduce((2, 4, 5), worker, partial(noted, sent, received))
        for stage, number in ((0, 0), (0, 1), (1, 0)):
            all_reduce.sum(ReduceKey(stage, number, (2, 4, 5)), content(torch.ones(6)))
        firsts.append(sent[0][0])
        named += sent
        assert len(set(received)) == len(received) == 3 * 4
    assert sorted(firsts) == [2, 4, 5]
    assert len(set(named)) == len(named) == 3 * 3 * 4


# --- When another worker fails -------------------------------------------------------------------


def test_after_a_failure_nobody_waits_again() -> None:
    """A communication thread may have several sums before it, and is woken once."""
    queue: SimpleQueue[Any] = SimpleQueue()

    def failed() -> None:
        raise Aborted

    mailbox = KeyedMailbox(lambda *_: None, queue.get, failed)
    queue.put((None, None))
    aborted: list[int] = []

    def wait() -> None:
        for number in range(2):
            with pytest.raises(Aborted):
                mailbox.wait((0, 0, 0, number))
            aborted.append(number)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert aborted == [0, 1]
