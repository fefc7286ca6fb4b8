"""Tables without end are the beginnings of all tables with one."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.schedules import Schedule, ScheduleError, Step, lower
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
    workers, _ = endless(method)
    for batches in (1, 2, 5, 3 * stages, 40):
        tasks = [[step.task for step in until(each, batches * size)] for each in workers]
        assert tasks == [list(each) for each in method(batches).workers]
    # Messages, slots and all, as long as nothing knows of the end:
    long = lower(method(60))
    for own, expected in zip(workers, long, strict=True):
        assert until(own, 40 * size) == [s for s in expected if s.task.microbatch < 40 * size]


@settings(deadline=None)
@given(st.integers(0, 30), st.sampled_from(["pipedream", "2bw", "flush"]))
def test_it_begins_anywhere(begin: int, name: str) -> None:

    method = METHODS[name]
    size = len(method(1).batches[0])
    for own in endless(method)[0]:
        rest = replace(own, begin=begin * size)
        expected = [s for s in until(own, (begin + 4) * size) if s.task.microbatch >= begin * size]
        assert until(rest, (begin + 4) * size) == expected


@pytest.mark.parametrize(
    "method",
    [
        partial(schedules.pipedream, [2, 1]),  # its last update averages what is left
        lambda n: schedules.flush(2, 2, n) if n < 4 else schedules.gpipe(2, 2, n),
        lambda n: schedules.replicate(schedules.two_bw(2, 2, n), 2),
    ],
    ids=["replicas", "another one for more", "parallel pipelines"],
)
def test_tables_that_need_to_know_how_many_batches_there_are(
    method: Callable[[int], Schedule],
) -> None:
    with pytest.raises(ScheduleError, match="has to know how many batches there are"):
        endless(method)
