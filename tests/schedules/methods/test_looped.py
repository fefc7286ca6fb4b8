"""Several stages a worker: Megatron-LM's order (SC '21, Figure 4), split backwards, breadth first, waves."""

from collections.abc import Callable, Sequence
from inspect import cleandoc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import (
    Op,
    Schedule,
    ScheduleError,
    Task,
    check,
    flush,
    gis,
    gis_h,
    hanayo,
    interleaved,
    interleaved_zero_bubble,
    looped_bfs,
    parse,
    replicate,
)
from tests.schedules.strategies import microbatches, small
from tests.schedules.timing import Costs, every_costs, makespan, peaks

workers = st.integers(1, 5)
chunks = st.integers(2, 4)  # stages a worker


def test_two_workers_with_two_stages_each() -> None:
    assert str(interleaved(4, 4, workers=2).take(1)) == cleandoc("""
        # interleaved 1F1B
        time     | 1     2     3     4     5     6     7     8     9     10    11    12    13    14    15    16    17    18    19    20    21    22    23    24    25    26    27
        worker 0 | F0    F1    F0@2  F1@2  F2    .     B0@2  -     F3    B1@2  -     F2@2  B0    -     F3@2  B1    -     .     B2@2  -     .     B3@2  -     B2    -     B3    -^@2^
        worker 1 | .     F0    F1    F0@3  B0@3  -     F1@3  B1@3  -     F2    B0    -     F3    B1    -     F2@3  B2@3  -     F3@3  B3@3  -     B2    -     B3    -^@3^
        """)


@given(workers, chunks, st.integers(1, 4), small)
def test_the_order_is_megatrons_where_workers_divide_the_microbatches(
    p: int, v: int, rounds: int, batches: int
) -> None:
    """The i-th pass of a batch by the paper's indices; the warm-up is 2 (p - w - 1) + (v - 1) p."""
    m = p * rounds
    schedule = interleaved(p * v, m, workers=p).take(batches)
    for worker, tasks in enumerate(schedule.workers):
        for batch in range(batches):
            part = tasks[batch * (2 * m + 1) * v : (batch + 1) * (2 * m + 1) * v]
            warm_up = min(2 * (p - worker - 1) + (v - 1) * p, m * v)
            ahead = [0, *accumulated(part[: 2 * m * v])]
            assert ahead[warm_up] == warm_up
            assert max(ahead) == min(warm_up + 1, m * v)
            for op in Op.FORWARD, Op.BACKWARD:
                for i, task in enumerate(t for t in part if t.op is op):
                    chunk = i % (p * v) // p
                    chunk = chunk if op is Op.FORWARD else v - 1 - chunk
                    k = batch * m + i // (p * v) * p + i % p
                    assert task == Task(op, chunk * p + worker, k, batch)


def accumulated(tasks: Sequence[Task]) -> list[int]:
    """Forwards less backwards after each task."""
    ahead, counts = 0, []
    for task in tasks:
        ahead += 1 if task.op is Op.FORWARD else -1
        counts.append(ahead)
    return counts


@given(workers, chunks, microbatches, st.integers(1, 3), st.integers(1, 4))
def test_the_bubble_is_a_vth_of_flushs(p: int, v: int, more: int, f: int, b: int) -> None:
    m = p + more - 1
    work = m * v * (f + b)
    bubble = makespan(interleaved(p * v, m, workers=p).take(1), Costs(f, b, 0)) - work
    assert bubble == (p - 1) * (f + b)
    assert makespan(flush(p, m).take(1), Costs(v * f, v * b, 0)) - work == v * bubble


@given(workers, chunks, microbatches, small, st.integers(2, 3))
def test_replicated_its_updates_wait_for_their_stages_next_forward(
    p: int, v: int, m: int, batches: int, width: int
) -> None:
    schedule = replicate(interleaved(p * v, m, workers=p).take(batches), width)
    check(schedule, joint_updates=True)
    for tasks in schedule.workers:
        for update, following in pairwise([*tasks, None]):
            if update and update.op is Op.UPDATE and following and following.op is not Op.UPDATE:
                assert following[:2] == (Op.FORWARD, update.stage)


def test_two_workers_with_two_stages_each_and_split_backwards() -> None:
    assert interleaved_zero_bubble(4, 2, workers=2).take(1) == parse("""
        worker 0 | F0 F1 F0@2 F1@2 . I0@2 W0@2 I1@2 W1@2 I0 W0 I1 W1^@2^
        worker 1 | . F0 F1 F0@3 I0@3 F1@3 I1@3 W0@3 I0 W1@3 I1 W0 W1^@3^
        """)


@pytest.mark.parametrize("p", range(1, 5))
@pytest.mark.parametrize("v", [2, 3])
def test_the_makespan_with_split_backwards(p: int, v: int) -> None:
    """As ZB-H1's, in passes of a v-th of the length, so that the bubble is a v-th."""
    for m in range(p, p + 5):
        schedule = interleaved_zero_bubble(p * v, m, workers=p).take(1)
        if m % p == 0:
            assert peaks(schedule) == (p * v,) * p
        for costs in every_costs():
            f, i, w = costs
            if w <= min(f, i):
                assert makespan(schedule, costs) == m * v * costs.work + (p - 1) * (f + i - w)


@pytest.mark.parametrize("p", range(2, 7))
@pytest.mark.parametrize("v", [2, 3])
def test_gis_is_as_long_as_interleaved_with_fewer_in_flight(p: int, v: int) -> None:
    """p v, where interleaved 1F1B has p - 1 more (PipeOffload)."""
    for rounds in (2, 3):
        one, other = (method(p * v, p * rounds, workers=p).take(1) for method in (gis, interleaved))
        assert peaks(one) == tuple(p * v - w for w in range(p))
        assert peaks(other)[0] == p * v + p - 1
        for costs in every_costs():
            assert makespan(one, costs) == makespan(other, costs)


@pytest.mark.parametrize("p", [2, 4, 6, 8])
@pytest.mark.parametrize("v", [2, 4])
def test_gis_h_tends_to_half_of_it_and_its_bubble_does_not_grow(p: int, v: int) -> None:
    bubbles = set()
    for rounds in (4, 6):
        schedule = gis_h(p * v, p * rounds // 2, workers=p).take(1)
        assert peaks(schedule) == tuple(p + (v - 1) * p // 2 - w for w in range(p))
        bubbles.add(makespan(schedule, Costs(1, 1, 1)) - 3 * v * p * rounds // 2)
    assert bubbles == {2 * (p - 1) + (v - 1) * p // 2}


def test_breadth_first_on_two_workers() -> None:
    assert looped_bfs(4, 3, workers=2).take(1) == parse("""
        worker 0 | F0 F1 F2 F0@2 F1@2 F2@2 . B0@2 - B1@2 - B2@2 - B0 - B1 - B2 -^@2^
        worker 1 | .  F0 F1 F2 F0@3 F1@3 F2@3 B0@3 - B1@3 - B2@3 - B0 - B1 - B2 -^@3^
        """)


@pytest.mark.parametrize("p", range(1, 5))
@pytest.mark.parametrize("v", [2, 3])
def test_the_bubble_is_interleaved_s_and_all_activations_are_kept(p: int, v: int) -> None:
    """(p - 1) / (v m) of the ideal time, m v passes; interleaved keeps p v (1 + (p-1) / (p v)),
    on the first worker, and two passes less on each one behind it."""
    for m in range(p, p + 5):
        loop, turns = (make(p * v, m, workers=p).take(1) for make in (looped_bfs, interleaved))
        assert peaks(loop) == (m * v,) * p
        if m >= p + 2 and m % p == 0:
            assert peaks(turns) == tuple(p * v + p - 1 - 2 * w for w in range(p))
        for costs in every_costs():
            ideal = m * v * costs.work
            for schedule in (loop, turns):
                assert makespan(schedule, costs) == ideal + (p - 1) * costs.work


def test_a_wave_over_two_workers() -> None:
    assert hanayo(4, 2, workers=2).take(1) == parse("""
        worker 0 | F0 F1 . F0@3 B0@3 - F1@3 B1@3 - B0 - B1 -^@3^
        worker 1 | . F0 F0@2 F1 F1@2 . B0@2 - B0 B1@2 - B1 -^@2^
        """)


def test_the_stages_go_down_and_back_once_a_wave() -> None:
    homes = [workers[0] for workers in hanayo(12, 3, workers=3).take(1).stage_workers]
    assert homes == [0, 1, 2, 2, 1, 0] * 2


@pytest.mark.parametrize("p", range(1, 6))
@pytest.mark.parametrize("waves", [1, 2, 3])
def test_the_bubble_of_as_many_microbatches_as_workers(p: int, waves: int) -> None:
    """2 (p - 1) times the longer pass of a stage, which W waves make 2 W times as short."""
    schedule = hanayo(2 * waves * p, p, workers=p).take(1)
    assert max(peaks(schedule)) == 2 * waves * p
    for costs in every_costs():
        longer = max(costs.forward, costs.inputs + costs.weights)
        assert makespan(schedule, costs) == 2 * waves * p * costs.work + 2 * (p - 1) * longer


@pytest.mark.parametrize("p", range(2, 6))
def test_more_microbatches_have_the_same_bubble_if_passes_take_equally_long(p: int) -> None:
    for count in (2, 3):
        schedule = hanayo(2 * p, count * p, workers=p).take(1)
        assert max(peaks(schedule)) == 2 * p
        assert makespan(schedule, Costs(1, 1, 0)) == 4 * count * p + 2 * (p - 1)
        assert makespan(schedule, Costs(1, 1, 1)) > 6 * count * p + 4 * (p - 1)


@pytest.mark.parametrize(
    ("method", "stages", "workers", "says"),
    [
        *(
            (interleaved, stages, workers, f"use a multiple of {workers} from {2 * workers}")
            for stages, workers in ((5, 2), (2, 4), (3, 3), (1, 1))
        ),
        (looped_bfs, 2, 2, r"cannot be looped on 2.*one stage a worker is gpipe"),
        (interleaved_zero_bubble, 5, 2, r"multiple of 2 from 4 \(one stage a worker is zb_h1"),
        (hanayo, 6, 2, "use a multiple of 4"),
    ],
)
def test_stages_that_cannot_be_shared_are_refused(
    method: Callable[..., Schedule], stages: int, workers: int, says: str
) -> None:
    with pytest.raises(ScheduleError, match=says):
        method(stages, 4, workers=workers)
