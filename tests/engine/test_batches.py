"""Batches cut into microbatches, and who takes which."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pipekit as pk
from pipekit.engine.batches import Batch, split
from pipekit.engine.feed import BeyondStop, End, Feed, Needs
from pipekit.engine.runs.batch_reader import BatchReader
from pipekit.schedules import Schedule, gpipe, lower, pipedream
from tests.engine.examples import data, mixed, pipeline

LOSS = nn.MSELoss()
read_batch = BatchReader(nn.Sequential(nn.Identity())).read


@given(st.integers(1, 9), st.integers(0, 9))
def test_rows_differ_by_at_most_one_and_none_is_lost(parts: int, more: int) -> None:
    x = torch.arange(parts + more)
    batch = read_batch((x, x * 10), parts, 0)
    counts = batch.sizes
    assert len(counts) == parts
    assert sum(counts) == batch.rows == parts + more
    assert counts == sorted(counts, reverse=True)
    assert counts[0] - counts[-1] <= 1
    pieces = split(x, counts)
    assert [len(piece) for piece in pieces] == counts
    assert torch.equal(torch.cat(pieces), x)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.zeros(8), "type Tensor, is not a pair.* a batch alone into a list"),
        ((), "not a pair"),
        ((torch.zeros(0, 3), torch.zeros(0)), "empty"),
        ((torch.zeros(2), torch.zeros(2)), "2 rows for 4"),
        (((torch.zeros(8), torch.zeros(7)), torch.zeros(8)), "first dimension"),
        ((torch.zeros(8), torch.zeros(7)), "first dimension"),
        ((torch.tensor(1.0), torch.tensor(1.0)), "first dimension"),
    ],
)
def test_batches_that_cannot_be_cut(batch: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_batch(batch, 4, 7)
    assert "batch 7" in str(caught.value)


def batches(read: list[int]) -> Iterator[Batch]:
    for number in range(3):
        read.append(number)
        x = torch.full((4, 1), float(number))
        yield read_batch((x, x + 10), 2, number)


@pytest.mark.parametrize(
    ("schedule", "inputs", "targets"),
    [
        (gpipe(3, 2).take(2), [{0, 1, 2, 3}, set(), set()], [set(), set(), {0, 1, 2, 3}]),
        (gpipe(3, 2), [{*range(7)}, set(), set()], [set(), set(), {*range(7)}]),
        (gpipe(1, 2).take(1), [{0, 1}], [{0, 1}]),
        (pipedream([2, 1]).take(3), [{0, 2}, {1}, set()], [set(), set(), {0, 1, 2}]),
        (pipedream([2, 1]), [{0, 2, 4, 6}, {1, 3, 5}, set()], [set(), set(), {*range(7)}]),
    ],
)
def test_who_takes_inputs_and_targets(
    schedule: Schedule, inputs: list[set[int]], targets: list[set[int]]
) -> None:
    needs = [Needs.of(steps) for steps in lower(schedule)]
    assert [{k for k in range(7) if k in needed.inputs} for needed in needs] == inputs
    assert [{k for k in range(7) if k in needed.targets} for needed in needs] == targets


def test_whoever_comes_first_reads() -> None:
    read: list[int] = []
    feed = Feed(batches(read), LOSS)
    assert read == []
    assert feed.input(0)[0].item() == 0
    assert feed.target(2)[0][0].item() == 11
    assert read == [0, 1]
    assert feed.input(3)[0].item() == 1
    feed.read_to(3)
    assert read == [0, 1]
    assert feed.target(5)[1] == 0.5
    assert feed.rows() == [2] * 6
    assert [feed.shapes(k) for k in range(6)] == [((2, 1),)] * 6


def test_weights_are_shares_of_the_rows() -> None:
    x = torch.zeros(10, 1)
    feed = Feed(iter([read_batch((x, x), 4, 0)]), LOSS)
    assert [feed.target(k)[1] for k in range(4)] == [3 / 10, 3 / 10, 2 / 10, 2 / 10]
    assert [feed.shapes(k) for k in range(4)] == [((3, 1),), ((3, 1),), ((2, 1),), ((2, 1),)]


def test_nothing_is_kept_for_those_who_do_not_want_it() -> None:
    feed = Feed(batches([]), LOSS, Needs(frozenset(), frozenset({1})))
    feed.target(1)
    with pytest.raises(KeyError):
        feed.input(1)
    with pytest.raises(KeyError):
        feed.target(0)


def test_who_waits_while_another_reads_to_the_end_gets_what_is_before_it() -> None:
    x = torch.zeros(2, 1)
    read: list[Batch | End] = [read_batch((x, x), 1, 0), End()]
    feed = Feed(iter(read), LOSS)
    own = feed._lock

    class HeldByAnother:
        """A lock that its first caller gets once another thread has read everything."""

        def __enter__(self) -> None:
            feed._lock = own
            with pytest.raises(BeyondStop):
                feed.read_to(1)
            own.acquire()

        def __exit__(self, *_: object) -> None:
            own.release()

    feed._lock = HeldByAnother()  # type: ignore[assignment]  # it is a lock to those who use it
    assert feed.input(0).shape == (2, 1)


def test_what_reading_has_raised_is_raised_to_all_who_want_more() -> None:
    """A generator that has failed is at its end, of which the others would hear instead."""

    def broken() -> Iterator[Batch]:
        yield read_batch((torch.zeros(2, 1), torch.zeros(2, 1)), 1, 0)
        raise OSError("the disk is gone")

    feed = Feed(broken(), LOSS)
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            feed.read_to(1)
    assert feed.input(0).shape == (2, 1)


def test_a_loader_may_use_another_pipeline() -> None:
    """Say, of the teacher whose outputs are the targets; its layers draw random numbers, too."""

    def epoch(teacher: pk.Pipeline) -> Iterator[Any]:
        for x, y in data(3):
            teacher.train([(x, y)])
            yield x, y * teacher.evaluate([(x, y)])

    class Taught(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            return epoch(pipeline(mixed(), "flush", [4, 4]))

    student = pipeline(mixed(), "flush", [4, 4])
    losses = student.train(Taught(data(3))).losses
    expected = list(epoch(pipeline(mixed(), "flush", [4, 4])))
    assert losses == pipeline(mixed(), "flush", [4, 4]).train(expected).losses
