"""Tables without end are the beginnings of all tables with one."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.schedules import OPS, Schedule, ScheduleError, Step, lower, sum_order
from pipekit.schedules.lowering.endless import endless

METHODS: dict[str, Callable[[int], Schedule]] = {
    "pipedream": partial(schedules.pipedream, 3),
    "vertical sync": partial(schedules.pipedream, 4, vertical_sync=True),
    "more in flight": partial(schedules.pipedream, 3, in_flight=[5, 3, 1]),
    "2bw": partial(schedules.two_bw, 3, 4),
    "flush": partial(schedules.flush, 3, 4),
    "gpipe": partial(schedules.gpipe, 2, 3),
    "interleaved": partial(schedules.interleaved, 4, 4, workers=2),
    "zero bubble": partial(schedules.zb_h1, 3, 4),
}


def until(steps: Iterable[Step], end: int) -> list[Step]:
    """The steps before a microbatch: once only later ones come for long, nothing is left."""
    found: list[Step] = []
    late = 0
    for step in steps:
        late = 0 if step.task.microbatch < end else late + 1
        if not late:
            found.append(step)
        if late > 1000:
            break
    return found


@pytest.mark.parametrize("name", METHODS)
def test_its_first_batches_are_the_table_for_so_many(name: str) -> None:
    method = METHODS[name]
    size, stages = len(method(1).batches[0]), method(1).stages
    workers = endless(method).steps
    for batches in (1, 2, 5, 3 * stages, 40):
        tasks = [[step.task for step in until(each, batches * size)] for each in workers]
        assert tasks == [list(each) for each in method(batches).workers]
    # Messages, slots and all, as long as nothing knows of the end:
    long = lower(method(60))
    for own, expected in zip(workers, long, strict=True):
        assert until(own, 40 * size) == [s for s in expected if s.task.microbatch < 40 * size]


SHARED: dict[str, tuple[Callable[[int], Schedule], int]] = {
    "pipedream 2-1": (partial(schedules.pipedream, [2, 1]), 2),
    "pipedream 2-3": (partial(schedules.pipedream, [2, 3]), 6),
    "two pipelines of 2bw": (lambda n: schedules.replicate(schedules.two_bw(2, 2, n), 2), 1),
    "three of flush": (lambda n: schedules.replicate(schedules.flush(2, 2, n), 3), 1),
    "chimera": (lambda n: schedules.chimera(2, 4, n), 1),
}
"""Stages on several workers, and after how many batches all of their updates come round."""


@pytest.mark.parametrize("name", SHARED)
def test_of_stages_on_several_workers_its_first_rounds_are_the_table_for_so_many(name: str) -> None:
    """But for where an update stands among passes that do not read what it makes."""
    method, batches = SHARED[name]
    found = endless(method, goes_on=True)
    assert found.round == batches
    size = len(found.whole.batches[0]) * batches
    for rounds in (1, 2, 5, 14):
        for is_pass in (True, False):
            tasks = (
                [[step.task for step in until(own, rounds * size)] for own in found.steps],
                method(rounds * batches).workers,
            )
            ours, theirs = (
                [[task for task in own if OPS[task.op].is_pass is is_pass] for own in each]
                for each in tasks
            )
            assert ours == theirs
    long = method(20 * batches)
    for own, expected in zip(found.steps, lower(long, cut_every=size), strict=True):
        assert until(own, 12 * size) == [s for s in expected if s.task.microbatch < 12 * size]
    every = sum_order(long)
    assert [*islice(found.turns, len(every) // 2)] == [*every[: len(every) // 2]]
    for skip in (1, 7, 40):
        first = [skip * updates for updates in found.turns.updates]
        later = islice(replace(found.turns, skip=skip), 4 * len(every))
        wanted = (turn for turn in found.turns if turn[1] > first[turn[0]])
        some = [turn for turn in later if turn[1] > first[turn[0]]]
        assert len(some) > 3
        assert some == [*islice(wanted, len(some))]


@pytest.mark.parametrize("name", [*METHODS, *SHARED])
def test_a_run_may_end_after_any_round_and_leaves_what_is_read_later(name: str) -> None:
    """Gone through by hand: every pass finds its version in its slot, wherever runs are cut."""
    method = SHARED[name][0] if name in SHARED else METHODS[name]
    found = endless(method, goes_on=True)
    size = len(found.whole.batches[0]) * found.round
    for own in found.steps:
        held = {(stage, 0): 0 for stage in range(found.whole.stages)}
        for begin in range(0, 12, 2):
            steps = [s for s in until(own, (begin + 2) * size) if s.task.microbatch >= begin * size]
            for (op, stage, _, version), _, _, slot, *_ in steps:
                if OPS[op].is_pass:
                    assert held[stage, slot] == version
                else:
                    held[stage, slot] = version


@settings(deadline=None)
@given(st.integers(0, 30), st.sampled_from(["pipedream", "2bw", "flush"]))
def test_it_begins_anywhere(begin: int, name: str) -> None:

    method = METHODS[name]
    size = len(method(1).batches[0])
    for own in endless(method).steps:
        rest = replace(own, begin=begin * size)
        expected = [s for s in until(own, (begin + 4) * size) if s.task.microbatch >= begin * size]
        assert until(rest, (begin + 4) * size) == expected


@pytest.mark.parametrize(
    "method",
    [
        lambda n: schedules.flush(2, 2, n) if n < 4 else schedules.gpipe(2, 2, n),
        lambda n: schedules.two_bw(2, 2, n, flush_after=[n // 2]),
    ],
    ids=["another one for more", "a flush in the middle"],
)
def test_tables_that_need_to_know_how_many_batches_there_are(
    method: Callable[[int], Schedule],
) -> None:
    with pytest.raises(ScheduleError, match="has to know how many batches there are"):
        endless(method)
