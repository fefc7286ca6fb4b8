"""A forward and a backward that run together: simulated in seconds as in slots, and over links."""

from collections.abc import Callable

import pytest

from pipekit.clusters import flat
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, dualpipe, dualpipe_v, parse
from pipekit.simulation import simulate

LAYER = LayerProfile(
    "layer", forward_s=3, backward_s=5, backward_input_s=3, backward_weight_s=2, output_bytes=8
)


def profile(layers: int) -> Profile:
    return Profile((LAYER,) * layers, input_bytes=8)


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
