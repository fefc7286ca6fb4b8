"""Arguments that are checked before any worker starts; other refusals are in test_failures."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

import pipekit as pk
from pipekit import ScheduleError
from pipekit.engine import arguments
from pipekit.schedules import DISCARD, GATHER, Op, Schedule, check
from tests.engine.examples import mlp, nesterov
from tests.engine.execution.moving_tables import fill_and_drain

F, B = Op.FORWARD, Op.BACKWARD
GATHERED = Schedule.one_batch(
    "gathered", [[(GATHER, 0, 0), (F, 0, 0), (DISCARD, 0, 0), (GATHER, 0, 0), (B, 0, 0)]]
)
CHUNKED = replace(
    Schedule.one_batch("cut", [[(F, 0, 0), (F, 0, 1), (B, 0, 1), (B, 0, 0)]]), chunks=2
)


def test_batches_with_a_length_are_left_unread() -> None:
    class Loud:
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("read")

    loud = Loud()
    assert arguments.counted(loud) == (loud, 2, 2)


def test_a_generator_is_read() -> None:
    assert arguments.counted(n for n in range(3)) == ([0, 1, 2], 3, 3)


def test_no_batches() -> None:
    nothing: list[Any] = []
    for empty in (nothing, iter(nothing)):
        with pytest.raises(ValueError, match="no batches"):
            arguments.counted(empty)


def test_a_gather_is_refused_when_the_pipeline_is_built() -> None:
    check(GATHERED)
    said = (
        r"^worker 0 has G0 of stage 0 \(UNSHARD\), which Pipeline cannot run: draw, check and "
        r"simulate the schedule, or leave its G out$"
    )
    with pytest.raises(ScheduleError, match=said):
        pk.Pipeline(mlp(6, 3), GATHERED, optimizer=nesterov, loss=nn.MSELoss())


def test_emulation_moves_nothing_and_says_so() -> None:
    profile = pk.Profile.uniform(2)
    with pytest.raises(ScheduleError, match=r"O0 of stage 0 .* which emulate cannot run"):
        pk.emulate(fill_and_drain(2, 2, [0]), profile)
    with pytest.raises(ScheduleError, match="2 chunks of its sequence, which emulate cannot run"):
        pk.emulate(CHUNKED, pk.Profile.uniform(1))
