"""Messages between processes through shared memory."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipekit.engine.transport import Aborted
from pipekit.engine.transports.processes.shared_mailbox import (
    FIRST_BYTES,
    Endpoint,
    SharedBuffer,
    SharedMailboxes,
    close_others,
    endpoints_for,
)
from tests.engine.transports.test_message_layout import MESSAGES, described

KEY = (0, 1, 2, 3)

# --- The memory


def test_every_map_shows_the_same() -> None:
    buffer, other = SharedBuffer(), SharedBuffer.__new__(SharedBuffer)
    other._hold(os.dup(buffer._fd))
    starts = [buffer.allocate(size) for size in (100, FIRST_BYTES // 2, FIRST_BYTES, 10)]
    maps = []
    for number, start in enumerate(starts):
        buffer.map(start)[start] = number
        maps.append(other.map(start))
        assert maps[-1][start] == number
    buffer.map(0)[0] = 77
    assert [memory[0] for memory in maps] == [77] * 4
    buffer.close()
    other.close()


def test_pieces_do_not_overlap_nor_lie_across_what_was_mapped() -> None:
    buffer, end = SharedBuffer(), 0
    for size in (4096, 1 << 19, 1 << 20, 64, 1 << 23, 1 << 22):
        start = buffer.allocate(size)
        assert start >= end
        end = start + size
        assert end <= len(buffer.map(start))
    buffer.close()


def test_the_file_ends_with_the_object_at_the_latest() -> None:
    """An interrupt may come before whoever made it knows it."""
    buffer = SharedBuffer()
    fd, buffer = buffer._fd, SharedBuffer()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    buffer.close()


# --- The mailboxes


class Pair:
    """Two processes' views, here of one process."""

    def __init__(self) -> None:
        self.endpoints = [Endpoint.new(), Endpoint.new()]
        self.one, self.two = (
            SharedMailboxes(i, endpoints_for([i], self.endpoints)) for i in range(2)
        )

    def close(self) -> None:
        for endpoint in self.endpoints:
            endpoint.close()

    def bytes(self) -> int:
        """The size of the first one's buffer."""
        return os.fstat(self.endpoints[0].buffer._fd).st_size


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.mark.parametrize("name", MESSAGES)
def test_structures_types_and_strides(name: str, pair: Pair) -> None:
    message = MESSAGES[name]
    for number in range(3):  # the first describes its slot, the others use it again
        pair.one.put(1, (0, 1, 2, number), message)
        key, got = pair.two.get()
        assert key == (0, 1, 2, number)
        assert described(got) == described(message)
        if isinstance(message, Tensor) and name != "expanded":
            assert got.stride() == message.stride()


DTYPES = [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.int64, torch.bool]
DTYPES += [torch.complex64, torch.uint16]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any type and shape, the axes in any order, with gaps or without."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    raw = torch.randint(0, 2, [*shape, 2]).to(dtype)
    tensor = raw[..., 0] if draw(st.booleans()) else raw[..., 0].contiguous()
    return tensor.permute(draw(st.permutations(range(len(shape)))))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(tensors(), max_size=4), max_size=6))
def test_any_tensors(messages: list[list[Tensor]]) -> None:
    pair = Pair()
    for number, message in enumerate(messages):
        pair.one.put(1, (0, 0, 0, number), message)
    for number, message in enumerate(messages):
        key, got = pair.two.get()
        assert key == (0, 0, 0, number)
        for mine, sent in zip(got, message, strict=True):
            assert (mine.dtype, mine.shape, mine.stride()) == (
                sent.dtype,
                sent.shape,
                sent.stride(),
            )
            assert torch.equal(mine.to(torch.complex128), sent.to(torch.complex128))
    pair.close()


def test_what_was_sent_may_be_edited_and_what_arrived_too(pair: Pair) -> None:
    sent = torch.ones(3)
    pair.one.put(1, KEY, sent)
    sent.zero_()
    _, first = pair.two.get()
    assert first.tolist() == [1, 1, 1]
    first.zero_()
    pair.one.put(1, KEY, torch.full((3,), 2.0))
    assert pair.two.get()[1].tolist() == [2, 2, 2]
    assert first.tolist() == [0, 0, 0]


def test_slots_are_used_again(pair: Pair) -> None:
    """A thousand messages, up to three at once, of changing sizes: no growth."""
    for number in range(1000):
        rows = 1 + number % 100
        for message in (torch.ones(rows, 100), {0: torch.ones(rows)}, [torch.ones(5)] * 2):
            pair.one.put(1, KEY, message)
        for _ in range(3):
            pair.two.get()
    assert pair.bytes() == FIRST_BYTES
    # Sizes are powers of two from 4 to 64 KiB, and there are three messages at once.
    assert sum(map(len, pair.one._slots.values())) <= 8
    assert len(pair.two._known) <= 8


def test_a_slot_that_served_another_worker_is_described_again() -> None:
    endpoints = [Endpoint.new() for _ in range(3)]
    one, two, three = (SharedMailboxes(i, endpoints) for i in range(3))
    for number in range(6):
        receiver = (two, three)[number % 2]
        one.put(1 + number % 2, KEY, torch.full((2,), float(number)))
        assert receiver.get()[1].tolist() == [number, number]
    assert sum(map(len, one._slots.values())) == 1
    for endpoint in endpoints:
        endpoint.close()


def test_nothing_is_overwritten_before_it_is_taken(pair: Pair) -> None:
    """Nobody waits for the receiver: the buffer grows, also under slots that are in use."""
    for number in range(200):
        pair.one.put(1, (0, 0, 0, number), torch.full((10_000,), float(number)))
    assert pair.bytes() >= 200 * 40_000
    for number in range(200):
        key, got = pair.two.get()
        assert key == (0, 0, 0, number)
        assert got.eq(number).all()


def test_full_pipes_do_not_lock() -> None:
    """Both send more than a pipe takes, 1,337 notes in 64 KiB, before either receives."""
    pair, count, outcome = Pair(), 2000, []

    def run(mailboxes: SharedMailboxes, other: int) -> None:
        for number in range(count):
            mailboxes.put(other, (0, 0, 0, number), torch.tensor(number))
        outcome.append([mailboxes.get()[1].item() for _ in range(count)] == list(range(count)))

    threads = [
        threading.Thread(target=run, args=arguments, daemon=True)
        for arguments in ((pair.one, 1), (pair.two, 0))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert outcome == [True, True]
    pair.close()


def test_who_sends_to_a_worker_that_is_gone_is_told(pair: Pair) -> None:
    endpoints: Any = pair.endpoints
    endpoints[1].reader.close()
    with pytest.raises(Aborted):
        pair.one.put(1, KEY, torch.ones(1))


def test_a_mailbox_ends_with_those_who_could_send(pair: Pair) -> None:
    close_others(0, pair.endpoints)
    with pytest.raises(Aborted):
        pair.one.get()
