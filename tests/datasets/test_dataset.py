"""A data set cut into batches, and the sizes that none can have."""

from collections.abc import Callable
from functools import cache

import pytest
import torch

from pipekit import datasets
from pipekit.datasets import Dataset


def numbered(rows: int) -> Dataset:
    """A data set whose row r is the number r, with target -r."""
    inputs = torch.arange(rows)
    return Dataset("numbers", "this test", inputs, -inputs, inputs + 100, -inputs - 100)


def test_an_epoch_has_every_row_once_with_its_own_target() -> None:
    batches = numbered(10).batches(4, drop_last=False)
    assert [len(inputs) for inputs, _ in batches] == [4, 4, 2]
    inputs = torch.cat([inputs for inputs, _ in batches])
    assert sorted(inputs.tolist()) == list(range(10))
    assert all(torch.equal(targets, -inputs) for inputs, targets in batches)


def test_drop_last_keeps_full_batches_only() -> None:
    assert [len(inputs) for inputs, _ in numbered(10).batches(4)] == [4, 4]
    assert [len(inputs) for inputs, _ in numbered(8).batches(4)] == [4, 4]


def test_shuffling_is_a_function_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        ((inputs, _),) = numbered(50).batches(50, seed, epoch)
        return inputs.tolist()

    assert order(3, 5) == order(3, 5)
    assert order(3, 5) != list(range(50))
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_test_batches_keep_their_order_and_the_last_rows() -> None:
    batches = numbered(5).test_batches(2)
    assert [inputs.tolist() for inputs, _ in batches] == [[100, 101], [102, 103], [104]]
    assert [targets.tolist() for _, targets in batches] == [[-100, -101], [-102, -103], [-104]]


@cache
def text() -> Dataset:
    return datasets.python_source(sequence=40, rows=30, test_rows=10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: numbered(10).batches(11), r"batch_rows must be 1 to 10 .*not 11"),
        (lambda: numbered(10).batches(0), r"batch_rows must be 1 to 10 .*not 0"),
        (lambda: numbered(10).test_batches(0), "batch_rows must be at least 1, not 0"),
        (lambda: datasets.mnist(rows=5001), r"rows must be 1 to 5000 .*not 5001"),
        (lambda: datasets.mnist(rows=10, test_rows=10), r"test_rows must be 1 to 9 .*not 10"),
        (lambda: datasets.digits(rows=0), r"rows must be 1 to 1797 .*not 0"),
        (lambda: datasets.handwriting(pixels=0), "pixels must be 1 to 1024"),
        (lambda: datasets.python_source(sequence=0), "sequence must be at least 1, not 0"),
        (lambda: datasets.python_source(16, 10**7), r"rows must be 1 to \d+ .*besides 400"),
        (lambda: datasets.python_source(16, 10, 10), r"rows must be 1 to .*not 0"),
        (lambda: datasets.python_source(10**7), r"test_rows must be 1 to 0 .*not 400"),
        (lambda: datasets.masked(text(), 0.0), "choose one that leaves 1 to 40 to guess"),
        (lambda: datasets.masked(text(), 1.1), "choose one that leaves 1 to 40 to guess"),
    ],
)
def test_impossible_sizes_are_refused_with_the_possible_ones(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call()
