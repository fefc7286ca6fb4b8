"""Skip connections, simulated: their messages by hand, and their bytes against the engine's."""

from typing import Any

import pytest

from pipekit.clusters import flat
from pipekit.plans import Plan
from pipekit.profiling import Profile, SkipProfile
from pipekit.schedules import gpipe, parse
from pipekit.simulation import simulate
from pipekit.traces import Trace

MAIN, SKIP = 100.0, 300.0


def chain(layers: int, *skips: SkipProfile) -> Profile:
    """Layers of 1 s forward and 2 s backward, which pass on and save MAIN bytes."""
    return Profile(Profile.uniform(layers, output_bytes=MAIN).layers, 1, MAIN, {}, skips)


def sent(trace: Trace) -> dict[Any, float]:
    assert trace.transfers is not None
    links = trace.transfers.groupby(["source", "destination", "purpose"])
    return dict(links["bytes"].sum().items())


def starts(trace: Trace, stage: int, op: str) -> list[float]:
    frame = trace.frame.query("stage == @stage and op == @op")
    return [float(start) for start in frame["start_s"]]


def test_a_skip_goes_straight_and_its_gradient_comes_straight_back() -> None:
    trace = simulate(
        gpipe(4, 2).take(1), chain(4, SkipProfile("a", 0, 2, SKIP)), cluster=flat(4, 1.0)
    )
    assert sent(trace) == {
        (0, 1, "activation"): 2 * MAIN,
        (1, 2, "activation"): 2 * MAIN,
        (2, 3, "activation"): 2 * MAIN,
        (0, 2, "activation"): 2 * SKIP,
        (1, 0, "gradient"): 2 * MAIN,
        (2, 1, "gradient"): 2 * MAIN,
        (3, 2, "gradient"): 2 * MAIN,
        (2, 0, "gradient"): 2 * SKIP,
    }
    assert trace.transfers is not None
    assert trace.frame["bytes"].sum() == trace.transfers["bytes"].sum()
    back = trace.transfers.query("source == 2 and destination == 0")
    assert back["stage"].eq(2).all()


def test_tasks_wait_for_their_skips_which_share_links_with_the_main_tensors() -> None:
    """A main tensor takes 1 s alone, a skip 3 s.

    Both leave stage 0 at 1 s: the main one is there at 3, and 200 bytes of the skip are left.
    What leaves stage 1 at 4 shares stage 2's way in with its last 100, and both are there at 6.
    Likewise on the way back, from 9 on: there at 11 and 13, when stage 1 sends its own.
    """
    trace = simulate(
        gpipe(3, 1).take(1), chain(3, SkipProfile("a", 0, 2, SKIP)), cluster=flat(3, 100.0)
    )
    assert starts(trace, 1, "FORWARD") == [3]
    assert starts(trace, 2, "FORWARD") == [6]
    assert starts(trace, 2, "BACKWARD") == [7]
    assert starts(trace, 1, "BACKWARD") == [11]
    assert starts(trace, 0, "BACKWARD") == [14]


def test_a_skip_within_a_stage_or_a_worker_is_not_sent() -> None:
    skip = SkipProfile("a", 0, 1, SKIP)
    inside = simulate(gpipe(2, 1).take(1), chain(3, skip), Plan.by_hand([2, 1]), flat(2, 1.0))
    assert sent(inside) == {(0, 1, "activation"): MAIN, (1, 0, "gradient"): MAIN}
    schedule = parse("worker 0 | F0 F0@1 B0@1^@1 B0^")
    assert simulate(schedule, chain(2, skip), cluster=flat(1, 1.0)).makespan_s == 6


@pytest.mark.parametrize(("saved", "at_source"), [(True, 0.0), (False, SKIP)])
def test_a_skip_takes_memory_at_both_ends_and_not_between(saved: bool, at_source: float) -> None:
    """What the source's backward needs anyway is counted there already."""
    profile = chain(3, SkipProfile("a", 0, 2, SKIP, saved))
    memory = simulate(gpipe(3, 2).take(1), profile).memory
    assert memory is not None
    own = 2 * MAIN  # an input, and an output that is saved
    peaks = memory.frame.groupby("worker")["activations"].max().tolist()
    assert peaks == [2 * (own + at_source), 2 * own, 2 * (own + SKIP)]
    assert memory.frame.groupby("worker")["activations"].last().tolist() == [0, 0, 0]


def test_recomputing_keeps_what_came_in_and_nothing_of_what_goes_out() -> None:
    profile = chain(2, SkipProfile("a", 0, 1, SKIP, saved=False))
    memory = simulate(gpipe(2, 3).take(1), profile, Plan.by_hand([1, 1], recompute="always")).memory
    assert memory is not None
    parts = memory.frame.groupby("worker")[["activations", "recompute"]].max()
    assert parts["activations"].tolist() == [3 * MAIN, 3 * (MAIN + SKIP)]
    assert parts["recompute"].tolist() == [MAIN + SKIP, MAIN]
