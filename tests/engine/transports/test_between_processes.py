"""Checksums of the batches that each process under torchrun reads itself."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pipekit.engine.batches import Batch
from pipekit.engine.feed import End
from pipekit.engine.transports import between_processes
from pipekit.engine.transports.between_processes import EVERY, Noticeboard, checksum


def batch(target: Any, rows: int = 4) -> Batch:
    return Batch(torch.ones(rows, 2), target, rows, ((2,),), [1, rows - 1])


def numbered(count: int, differs: int = 1000) -> list[Batch]:
    """Batches, of which one and those after it are others."""
    return [
        batch(torch.full((4,), float(number if number < differs else -1)))
        for number in range(count)
    ]


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> list[Noticeboard]:
    """Those of two workers."""
    store = dist.HashStore()  # type: ignore[attr-defined]  # as PyTorch has it
    monkeypatch.setattr(between_processes, "_get_default_store", lambda: store)
    return [Noticeboard(0, worker, 2) for worker in range(2)]


def read(board: Noticeboard, batches: list[Any]) -> Iterator[Any]:
    return board.compared(batches, nullcontext)


@pytest.mark.parametrize("differs", [0, 1, 3, EVERY])
@pytest.mark.parametrize("later", [0, 1])
def test_the_first_batch_that_differs_is_named(
    differs: int, later: int, boards: list[Noticeboard]
) -> None:
    """The first batch is compared at once, and then those of every few."""
    assert len([*read(boards[1 - later], numbered(EVERY + 1))]) == EVERY + 1
    other = read(boards[later], numbered(EVERY + 1, differs))
    for _ in range(0 if differs == 0 else EVERY):
        next(other)
    with pytest.raises(ValueError, match=f"batch {differs} of worker 1 differs from .* worker 0"):
        next(other)


@pytest.mark.parametrize(("mine", "theirs"), [(3, 5), (EVERY + 1, 2), (1, 3 * EVERY)])
def test_the_last_batches_are_compared_as_far_as_both_have_read(
    mine: int, theirs: int, boards: list[Noticeboard]
) -> None:
    for board, count in zip(boards, (mine, theirs), strict=True):
        assert len([*read(board, numbered(count))]) == count
    boards[0].require_same(1, boards[1].latest)


def test_a_difference_after_the_last_comparison_is_found_in_the_end(
    boards: list[Noticeboard],
) -> None:
    for board, differs in zip(boards, (1000, 4), strict=True):
        assert len([*read(board, numbered(6, differs))]) == 6
    with pytest.raises(ValueError, match="batch 4 of worker 1 differs"):
        boards[0].require_same(1, boards[1].latest)


def test_who_ends_before_a_batch_that_was_read_here_is_named(boards: list[Noticeboard]) -> None:
    shorter, longer = boards
    assert len([*read(shorter, [*numbered(3), End()])]) == 4
    assert len([*read(longer, numbered(3))]) == 3
    longer.look(["worker 1 waits"])  # its next batch may be the end
    assert shorter.others() == ["worker 1 waits"]
    longer.look(None)
    assert shorter.others() == []
    assert len([*read(longer, numbered(1))]) == 1
    longer.look(None)
    with pytest.raises(ValueError, match="worker 0 has 3 and worker 1 has 4 or more"):
        longer.look(["worker 1 waits"])


def test_old_checksums_do_not_stay_in_the_store(boards: list[Noticeboard]) -> None:
    assert len([*read(boards[0], numbered(10 * EVERY))]) == 10 * EVERY
    assert boards[0]._store.num_keys() <= 4


DIFFERENT = [
    (torch.arange(4), torch.arange(4).flip(0)),
    (torch.zeros(4, 3, dtype=torch.bfloat16), torch.ones(4, 3, dtype=torch.bfloat16)),
    (np.arange(4), np.arange(4)[::-1]),
    (["a", "b", "c", "d"], ["a", "b", "d", "c"]),
    (torch.ones(4, 1000), torch.ones(4, 1000).index_fill(0, torch.tensor([2]), 2.0)),
    (torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).t(), torch.zeros(3, 4)),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_other_targets_have_other_checksums(one: Any, other: Any) -> None:
    assert checksum(batch(one)) == checksum(batch(one))
    assert checksum(batch(one)) != checksum(batch(other))


class Odd:
    """Says where it lies, which is elsewhere in each process."""


@pytest.mark.parametrize(
    "target",
    [None, (), torch.zeros(0, 3), torch.tensor(1.0), torch.eye(4).to_sparse(), Odd(), {"a": Odd()}],
)
def test_what_cannot_be_compared_is_let_through(target: Any) -> None:
    assert checksum(batch(target)) == checksum(batch(target))


def test_the_rows_count_though_there_is_no_target() -> None:
    assert checksum(batch(None, rows=4)) != checksum(batch(None, rows=5))


def test_the_models_input_counts_only_where_there_is_nothing_else() -> None:
    x, y = torch.randn(4, 2), torch.randn(4, 2)

    def of(target: Any, taken: Tensor) -> int:
        return checksum(Batch(taken, target, 4, ((2,),), [2, 2]))

    assert of({"x": x, "label": [1, 2, 3, 4]}, x) == of({"x": y, "label": [1, 2, 3, 4]}, y)
    assert of({"x": x}, x) != of({"x": y}, y)
    assert of(x, x) != of(y, y)
    assert between_processes.LOOKED_AT < 1000
