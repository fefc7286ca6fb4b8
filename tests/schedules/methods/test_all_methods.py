"""What holds for every method that flushes: brute force, order of sums, and several batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.names import TABLES as ENTRIES
from pipekit.schedules import Op, Schedule, ScheduleError, check, parse, read_csv, replicate, slots
from pipekit.schedules.methods import by_name
from pipekit.schedules.methods.by_name import PER_MINIBATCH, TABLES
from tests.schedules.reference import finishes, in_flight, ticking

p = st.integers(1, 4)
m = st.integers(1, 10)
n = st.integers(1, 3)


METHODS: dict[str, Callable[[int, int], Schedule]] = {
    "gpipe": schedules.gpipe,
    "flush": schedules.flush,
    "eager": schedules.eager,
    "zb_h1": schedules.zb_h1,
    "zb_h2": schedules.zb_h2,
    "interleaved": lambda p, m: schedules.interleaved(2 * p, m, workers=p),
    "gis": lambda p, m: schedules.gis(2 * p, m, workers=p),
    "gis_h": lambda p, m: schedules.gis_h(3 * p, m, workers=p),
    "interleaved_zero_bubble": lambda p, m: schedules.interleaved_zero_bubble(3 * p, m, workers=p),
    "looped_bfs": lambda p, m: schedules.looped_bfs(2 * p, m, workers=p),
    "hanayo, 1 wave": lambda p, m: schedules.hanayo(2 * p, m, workers=p),
    "hanayo, 2 waves": lambda p, m: schedules.hanayo(4 * p, m, workers=p),
    "zb_v": lambda p, m: schedules.zb_v(2 * p, m),
    "v_half": lambda p, m: schedules.v_half(2 * p, m),
    "v_min": lambda p, m: schedules.v_min(2 * p, m),
    "dualpipe_v": lambda p, m: schedules.dualpipe_v(2 * p, 2 * p + m - 1),
    "chimera": lambda p, m: schedules.chimera(2 * p, m),
    "dualpipe": lambda p, m: schedules.dualpipe(2 * p, 4 * p + 2 * (m - 1)),
}

drawn = given(st.sampled_from(sorted(METHODS)), p, m, n)


@drawn
def test_it_is_executable_one_batch_after_another_and_updates_together(
    name: str, p: int, m: int, n: int
) -> None:
    schedule = METHODS[name](p, m).take(n)
    report = check(schedule, joint_updates=True)
    assert finishes(schedule)
    assert len(schedule.batches) == n == len(schedule.updates[0])
    assert len(set(schedule.updates)) == 1
    assert report.peak_versions == tuple(
        len({t.stage for t in tasks}) for tasks in schedule.workers
    )
    for tasks, flying in zip(schedule.workers, report.in_flight, strict=True):
        assert flying.tolist() == in_flight(tasks)


@drawn
def test_times_are_those_of_a_ticking_clock(name: str, p: int, m: int, n: int) -> None:
    schedule = METHODS[name](p, m).take(n)
    ticks = ticking(schedule)
    for tasks, times in zip(schedule.workers, slots(schedule), strict=True):
        for task, (start, end) in zip(tasks, times.tolist(), strict=True):
            if task.op is not Op.UPDATE:
                assert (start, end) == ticks[task[:3]]


@drawn
def test_gradients_are_summed_in_microbatch_order(name: str, p: int, m: int, n: int) -> None:
    """So that its sum is, to the bit, that of training its microbatches one after the other."""
    for tasks in METHODS[name](p, m).take(n).workers:
        for stage in {task.stage for task in tasks}:
            added = [t.microbatch for t in tasks if t.op.adds_gradient and t.stage == stage]
            assert added == sorted(added)


@drawn
def test_picture_and_csv_hold_all_of_it(name: str, p: int, m: int, n: int) -> None:
    schedule = METHODS[name](p, m).take(n)
    assert parse(str(schedule)) == schedule
    assert read_csv(schedule.to_csv()) == schedule


@given(st.sampled_from(sorted(METHODS)), p, st.integers(1, 4), st.integers(1, 2))
def test_replicated_it_is_executable(name: str, p: int, m: int, n: int) -> None:
    schedule = replicate(METHODS[name](p, m), 2).take(n)
    check(schedule, joint_updates=True)
    assert {len(workers) for workers in schedule.stage_workers} <= {2, 4}


OTHERS: dict[str, Callable[[int, int], Schedule]] = {
    "model_parallel": lambda p, m: schedules.model_parallel(min(p, m)),
    "inference": lambda p, m: schedules.inference(min(p, m)),
    "pipedream": lambda p, m: schedules.pipedream(min(p, m)),
    "asp": lambda p, m: schedules.asp(min(p, m)),
    "paci": schedules.paci,
    "two_bw": schedules.two_bw,
}
"""Methods that do not flush, or have no batches of several microbatches."""


@pytest.mark.parametrize("method", [*METHODS.values(), *OTHERS.values()])
def test_every_count_is_a_whole_number_of_at_least_1(
    method: Callable[[int, int], Schedule],
) -> None:
    p, m, n = np.array([2, 4, 1])
    made = method(p, m).take(n)
    assert (made, repr(made)) == (method(2, 4).take(1), repr(method(2, 4).take(1)))
    for p, m, n in ((2, 2, 0), (2, -7, 1), (0, 4, 1)):
        with pytest.raises(schedules.ScheduleError, match="whole number of at least 1"):
            method(p, m).take(n)


@pytest.mark.parametrize("name", TABLES)
def test_every_method_is_had_on_so_many_workers(name: str) -> None:
    schedule = TABLES[name](workers=4, microbatches=8)
    assert schedule.worker_count == 4
    assert schedule.stages == 4 * ENTRIES[name].stages_a_worker
    assert (
        schedule == TABLES[name](schedule.stages, 8) == TABLES[name](schedule.stages, 8, workers=4)
    )
    check(schedule)
    if name not in PER_MINIBATCH and ENTRIES[name].replicas == "pipelines":
        both = TABLES[name]([2] * schedule.stages, 8)
        assert both == TABLES[name]([2] * schedule.stages, 8, workers=both.worker_count)


@pytest.mark.parametrize(
    ("name", "counts", "says"),
    [
        ("flush", {"stages": 8, "workers": 4}, "puts 8 stages on 8 workers, not 4: leave out"),
        ("zb-v", {"stages": 12, "workers": 4}, "puts 12 stages on 6 workers, not 4"),
        ("pipedream", {"stages": [2, 1], "workers": 2}, "puts 2 stages on 3 workers, not 2"),
        ("gis", {"stages": 6, "workers": 4}, "use a multiple of 4 from 8"),
        ("gis", {"stages": 5}, "use an even number of stages, not 5, or say how many workers"),
        ("flush", {"workers": 0}, "workers must be a whole number of at least 1"),
    ],
)
def test_what_a_method_has_not_is_refused(name: str, counts: Any, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        by_name.METHODS[name](microbatches=4, **counts)
