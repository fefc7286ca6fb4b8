"""When tasks run, against a clock that ticks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import Op, Schedule, ScheduleError, gpipe, parse, slots
from pipekit.schedules.ops import PASSES
from tests.schedules.reference import halves, needs
from tests.schedules.strategies import methods


@given(methods, st.tuples(*[st.floats(0.1, 9)] * 4), st.floats(0, 9))
def test_every_task_starts_as_soon_as_worker_and_data_are_there_and_not_before(
    schedule: Schedule, lengths: tuple[float, float, float, float], update: float
) -> None:
    durations = {**dict(zip(PASSES, lengths, strict=True)), Op.UPDATE: update}
    times = slots(schedule, durations)
    ends = {
        task[:3]: end
        for tasks, spans in zip(schedule.workers, times, strict=True)
        for task, (_, end) in zip(tasks, spans.tolist(), strict=True)
        if task.op is not Op.UPDATE
    }
    for tasks, spans in zip(schedule.workers, times, strict=True):
        free = 0.0
        for task, (start, end) in zip(tasks, spans.tolist(), strict=True):
            ready = max(
                [0.0, *(ends[need] for need in needs(task, schedule.stages, halves(schedule)))]
            )
            assert start == max(free, ready)
            assert end == start + durations[task.op]
            free = end


def test_an_update_that_takes_time_delays_what_follows_it() -> None:
    times = slots(
        parse("worker 0 | F0 B0^ F1 B1^"), {Op.FORWARD: 1, Op.BACKWARD: 2, Op.UPDATE: 0.5}
    )
    assert times[0].tolist() == [[0, 1], [1, 3], [3, 3.5], [3.5, 4.5], [4.5, 6.5], [6.5, 7]]


def test_by_default_a_backward_takes_two_slots_and_an_update_none() -> None:
    assert slots(gpipe(1, 1).take(1))[0].tolist() == [[0, 1], [1, 3], [3, 3]]
    assert slots(parse("worker 0 | F0 I0 W0^"))[0].tolist() == [[0, 1], [1, 2], [2, 3], [3, 3]]


def test_one_array_of_starts_and_ends_a_worker() -> None:
    times = slots(Schedule((gpipe(1, 2).take(1).workers[0], ())))
    assert [array.shape for array in times] == [(5, 2), (0, 2)]
    assert all(array.dtype == np.float64 for array in times)
    assert slots(Schedule(())) == []


def test_what_can_never_finish_has_no_slots() -> None:
    with pytest.raises(ScheduleError, match="can never finish"):
        slots(parse("worker 0 | B0 F0"))
