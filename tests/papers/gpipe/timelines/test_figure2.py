from dataclasses import replace

import pytest

from pipekit import Profile, emulate, schedules, simulate
from pipekit.papers.gpipe.timelines import figure2 as tl
from pipekit.papers.gpipe.timelines.bubble import bubble
from pipekit.papers.timelines import EQUAL_SLOTS, as_drawn, starts
from pipekit.schedules import Schedule
from pipekit.traces import Trace


def test_figure_2c_is_the_picture_in_the_paper() -> None:
    picture = """
    worker 0 | F0 F1 F2 F3 .  .  .  .  .  .  B3 B2 B1 B0^
    worker 1 | .  F0 F1 F2 F3 .  .  .  .  B3 B2 B1 B0^
    worker 2 | .  .  F0 F1 F2 F3 .  .  B3 B2 B1 B0^
    worker 3 | .  .  .  F0 F1 F2 F3 B3 B2 B1 B0^
    """
    drawn = as_drawn(4, 4)
    assert drawn.workers == schedules.parse(picture).workers
    slots = Trace.from_schedule(drawn, EQUAL_SLOTS)
    assert starts(slots) == tl.figure_2c(4, 4)
    assert slots.bubble == pytest.approx(bubble(4, 4)) == pytest.approx(3 / 7)
    assert starts(Trace.from_schedule(schedules.gpipe(4, 4).take(1), EQUAL_SLOTS)) != tl.figure_2c(
        4, 4
    )


def test_figure_2a_has_an_edge_for_everything_that_waits() -> None:
    assert tl.figure_2a(2) == {("F1", "F2"), ("B2", "B1"), ("F1", "B1"), ("F2", "B2")}
    for stages in (1, 2, 4):
        assert tl.dependencies(schedules.gpipe(stages, 1).take(1)) == tl.figure_2a(stages)


def test_forwards_wait_for_the_worker_and_the_stage_before() -> None:
    gpipe = schedules.gpipe(3, 4).take(2)
    slots = Trace.from_schedule(gpipe)
    assert set(tl.forward_waits(slots)) == {0}
    assert len(tl.forward_waits(slots)) == 3 * 4 - 1 + 3 * 3  # all but each batch's first
    for trace in (
        simulate(gpipe, Profile.uniform(3)),
        emulate(gpipe, Profile.uniform(3, 0.001, 0.001)).trace,
    ):
        assert min(tl.forward_waits(trace)) >= -1e-9
    frame = slots.frame.copy()
    first = (frame["op"] == "FORWARD") & (frame["stage"] == 1) & (frame["microbatch"] == 0)
    frame.loc[first, "start_s"] -= 0.5
    assert min(tl.forward_waits(replace(slots, frame=frame))) == -0.5


def test_versions_and_updates_are_counted_a_minibatch() -> None:
    gpipe = Trace.from_schedule(schedules.gpipe(3, 4).take(2))
    assert tl.versions_a_minibatch(gpipe, 4) == {1}
    assert tl.updates_a_minibatch(gpipe, 4, minibatches=2) == {1}
    assert tl.updates_a_minibatch(gpipe, 4, minibatches=3) == {0, 1}
    each = Trace.from_schedule(schedules.pipedream(3).take(8))
    assert tl.updates_a_minibatch(each, 4, minibatches=2) == {4}
    assert max(tl.versions_a_minibatch(each, 4)) > 1


def test_an_exchange_that_breaks_nothing_is_no_dependency() -> None:
    F0, F1, *rest = schedules.gpipe(1, 2).take(1).workers[0]
    assert not tl._refused(Schedule(((F0, F1, *rest),)), 0, F0, F1)
    assert tl._refused(Schedule(((F0, F1, *rest),)), 0, F1, rest[1])


def test_a_minibatch_is_cut_out_of_a_run() -> None:
    run = Trace.from_schedule(schedules.gpipe(2, 2).take(3), EQUAL_SLOTS)
    second = tl.minibatch(run, 1, 2)
    assert starts(second)["FORWARD", 0, 2] == 0
    assert second.makespan_s == 6
    assert second.bubble == pytest.approx(bubble(2, 2))
