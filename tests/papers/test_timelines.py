"""What the papers' timelines share."""

import pytest

from pipekit import schedules, simulate
from pipekit.papers.timelines import (
    EQUAL_SLOTS,
    as_drawn,
    busy_s,
    memory_of,
    most_active,
    starts,
)
from pipekit.profiling import Profile
from pipekit.traces import Trace


def test_backwards_as_drawn_are_the_forwards_reversed_and_can_be_executed() -> None:
    picture = """
    worker 0 | F0 F1 .  .  B1 B0^ F2 F3 .  .  B3 B2^
    worker 1 | .  F0 F1 B1 B0^ .  .  F2 F3 B3 B2^
    """
    table = as_drawn(2, 2, batches=2)
    assert table.workers == schedules.parse(picture).workers
    schedules.check(table)


def test_starts_and_active_workers_are_those_of_the_picture() -> None:
    trace = Trace.from_schedule(as_drawn(2, 2), EQUAL_SLOTS)
    assert starts(trace)["BACKWARD", 0, 1] == 4
    assert most_active(trace) == 2
    assert most_active(Trace.from_schedule(schedules.model_parallel(3, 2), EQUAL_SLOTS)) == 1


def test_time_within_a_window_is_counted_and_memory_must_have_been_followed() -> None:
    trace = Trace.from_schedule(as_drawn(2, 2), EQUAL_SLOTS)
    first = trace.frame[trace.frame["worker"] == 0]
    assert busy_s(first, 1.5, 4.5) == 1.0
    with pytest.raises(ValueError, match="memory=True"):
        memory_of(trace)
    assert memory_of(simulate(as_drawn(2, 2), Profile.uniform(2))).peak_bytes == (0, 0)
