"""Checksums of the batches that each process under torchrun reads itself."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pipekit.engine.batches import Batch
from pipekit.engine.feed import End
from pipekit.engine.transports import between_processes
from pipekit.engine.transports.between_processes import EVERY, OwnData, checksum, require_as_many
from pipekit.schedules import Message, Payload
from pipekit.schedules.lowering.steps import MAIN


def batch(target: Any, rows: int = 4) -> Batch:
    return Batch(torch.ones(rows, 2), target, rows, ((2,),), 2)


def read(*batches: Batch | End) -> tuple[OwnData, list[int]]:
    ends: list[int] = []
    data = OwnData(batches, nullcontext, ends.append)
    assert len([*data]) == len(batches)
    return data, ends


def sent(data: OwnData, microbatch: int, payload: Payload = Payload.ACTIVATION) -> Tensor | None:
    message = Message(payload, 1, microbatch, MAIN)
    if not data.begins_batch(message, 1, sent=True):
        return None
    return data.checksums_before(message, 1, sent=True)


def numbered(count: int) -> list[Batch]:
    return [batch(torch.full((4,), float(number))) for number in range(count)]


def test_the_first_batch_is_compared_at_once_and_then_every_few() -> None:
    """Nothing else is sent, and nothing before gradients."""
    data, _ = read(*numbered(2 * EVERY + 2))
    found = {k: sent(data, k) for k in range(2 * (2 * EVERY + 2))}
    compared = {k: sums for k, sums in found.items() if sums is not None}
    assert [*compared] == [0, 2 * EVERY, 4 * EVERY]
    assert compared[0].tolist() == [0, checksum(numbered(1)[0])]
    every = [checksum(each) for each in numbered(EVERY + 1)]
    assert compared[2 * EVERY].tolist() == [1, *every[1:]]
    other, _ = read(*numbered(1))
    assert sent(other, 0, Payload.GRADIENT) is None


@pytest.mark.parametrize("differs", [1, 3, EVERY])
def test_the_first_batch_that_differs_is_named(differs: int) -> None:
    ours, theirs = numbered(EVERY + 1), numbered(EVERY + 1)
    for number in range(differs, EVERY + 1):
        theirs[number] = batch(torch.full((4,), -1.0))
    mine, other = (read(*each)[0].latest for each in (ours, theirs))
    with pytest.raises(ValueError, match=f"batch {differs} of worker 1 differs from .* worker 0"):
        OwnData.require_same(mine, other, 1, 0)
    OwnData.require_same(mine, mine.clone(), 1, 0)


def test_who_needs_no_more_has_not_read_the_last_batches() -> None:
    mine, theirs = (read(*numbered(count))[0].latest for count in (3, 5))
    OwnData.require_same(mine, theirs, 1, 0)


def test_an_end_is_told_with_the_batches_before_it() -> None:
    data, ends = read(*numbered(3), End())
    assert (data.count, ends) == (3, [3])


def test_equally_many_batches_are_required() -> None:
    require_as_many([3, 3])
    with pytest.raises(ValueError, match="worker 0 has 3 and worker 2 has 4"):
        require_as_many([3, 3, 4])


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
        return checksum(Batch(taken, target, 4, ((2,),), 2))

    assert of({"x": x, "label": [1, 2, 3, 4]}, x) == of({"x": y, "label": [1, 2, 3, 4]}, y)
    assert of({"x": x}, x) != of({"x": y}, y)
    assert of(x, x) != of(y, y)
    assert between_processes.LOOKED_AT < 1000
