"""A forward and a backward that run together: simulated in seconds as in slots, and over links."""

from collections.abc import Callable

import pytest

from pipekit.clusters import flat
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Op, Schedule, dualpipe, dualpipe_v, parse, slots
from pipekit.simulation import simulate

SECONDS = {Op.FORWARD: 3, Op.BACKWARD: 5, Op.BACKWARD_INPUT: 3, Op.BACKWARD_WEIGHT: 2, Op.UPDATE: 0}
LAYER = LayerProfile(
    "layer",
    forward_s=3,
    backward_s=5,
    backward_input_s=3,
    backward_weight_s=2,
    output_bytes=8,
)


def profile(layers: int) -> Profile:
    return Profile((LAYER,) * layers, input_bytes=8)


@pytest.mark.parametrize("overlap", [None, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("schedule", [dualpipe(4, 8).take(2), dualpipe_v(6, 7).take(2)], ids=str)
def test_simulated_it_takes_its_slots(
    schedule: Schedule, free: bool, overlap: float | None
) -> None:
    workers = len(schedule.workers)
    cluster = None if free else flat(workers, float("inf"))
    trace = simulate(schedule, profile(schedule.stages), cluster=cluster, overlap=overlap)
    for worker, times in enumerate(slots(schedule, SECONDS, overlap)):
        own = trace.frame[trace.frame["worker"] == worker]
        assert own[["start_s", "end_s"]].to_numpy() == pytest.approx(times)


def test_they_wait_for_the_data_of_both_and_give_theirs_at_their_end() -> None:
    schedule = parse("""
        worker 0 | F0 F1 . . . . B0 . . B1^
        worker 1 | . F0 F1& B0 . . B1^
        """)
    trace = simulate(schedule, profile(2), cluster=flat(2, 8.0), overlap=0.5)
    times = trace.frame.set_index(["worker", "op", "microbatch"])
    starts, ends = times["start_s"], times["end_s"]
    assert starts[1, "FORWARD", 0] == 3 + 1  # a message takes a second
    assert starts[1, "FORWARD", 1] == 7
    assert ends[1, "FORWARD", 1] == starts[1, "BACKWARD", 0] == 7 + 1.5
    assert ends[1, "BACKWARD", 0] == 7 + 4
    assert starts[0, "BACKWARD", 0] == 11 + 1
    assert trace.transfers is not None
    assert trace.transfers.query("source == 1")["start_s"].min() == 11


@pytest.mark.parametrize("make", [dualpipe, dualpipe_v])
def test_without_overlaps_the_share_is_of_nothing(make: Callable[[int, int], Schedule]) -> None:
    whole = make(2, 6).take(1)
    apart = Schedule(whole.workers)
    costs = profile(2)
    assert simulate(apart, costs, overlap=0.5).makespan_s == simulate(whole, costs).makespan_s
    assert simulate(whole, costs, overlap=0.5).makespan_s < simulate(whole, costs).makespan_s
