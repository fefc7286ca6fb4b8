"""Table 1's rows: by hand, and against the simulator of workers."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.torchgpipe import cells, host
from experiments.torchgpipe.host import ROWS, Components
from experiments.torchgpipe.settings import Benchmark
from pipekit.clusters import flat
from pipekit.profiling import LayerProfile, Profile, SkipProfile
from pipekit.traces import Trace

ALL = ROWS["dep-streams-portals"]
LINKS = flat(4, 1.0)


def cell(stages: int, microbatches: int) -> Benchmark:
    return Benchmark("by hand", "none", microbatches, microbatches, (1,) * stages, "except_last")


def costs(*seconds: tuple[float, float], output_bytes: float = 0.5) -> Profile:
    layers = (LayerProfile(f"{n}", f, b, output_bytes) for n, (f, b) in enumerate(seconds))
    return Profile(tuple(layers))


def row(stages: int, m: int, has: Components, **more: Any) -> Trace:
    return host.simulated(cell(stages, m), costs(*[(1, 2)] * stages, **more), LINKS, has)


def events(trace: Trace, device: int) -> list[str]:
    own = trace.frame[trace.frame["worker"] == device]
    return [f"{op[0]}{k}" for op, k in zip(own["op"], own["microbatch"], strict=True)]


quarters = st.integers(1, 8).map(lambda n: n / 4)


@settings(max_examples=30)
@given(st.lists(st.tuples(quarters, quarters), min_size=1, max_size=4), st.integers(1, 5), quarters)
def test_with_order_and_streams_it_is_what_workers_do(
    seconds: list[tuple[float, float]], m: int, size: float
) -> None:
    profile, one = costs(*seconds, output_bytes=size), cell(len(seconds), m)
    expected = cells.simulated(one, profile, LINKS).makespan_s
    assert host.simulated(one, profile, LINKS, ALL).makespan_s == expected


def test_copies_in_computing_streams_hold_up_both_devices() -> None:
    # Forwards of 1 s and copies of 0.5 s take turns; device 0 has nothing beside them.  Device 1
    # goes backward (2 s), sends (0.5 s), recomputes (1 s), goes backward, sends; device 0 likewise.
    trace = row(2, 2, ROWS["dep"])
    forward = 1 + 0.5 + 1 + 0.5 + 1
    assert trace.makespan_s == forward + 2 + 0.5 + (1 + 2) + 0.5 + (1 + 2)
    assert host.in_order(trace, 2)
    assert row(2, 2, ROWS["dep-streams"]).makespan_s < trace.makespan_s


def test_without_order_devices_go_backward_one_after_the_other() -> None:
    trace = row(3, 3, ROWS["baseline"])
    assert events(trace, 2) == ["F0", "F1", "F2", "R1", "R0", "B2", "B1", "B0"]
    assert events(trace, 1) == ["F0", "F1", "F2", "B2", "R1", "R0", "B1", "B0"]
    assert not host.in_order(trace, 3)
    last = trace.frame.query("op == 'BACKWARD' and microbatch == 0").set_index("worker")
    recomputed = trace.frame.query("op == 'BACKWARD' and microbatch == 1").set_index("worker")
    assert recomputed["start_s"][1] >= last["end_s"][2]


def test_a_skip_without_portal_is_copied_over_every_boundary() -> None:
    profile = replace(costs(*[(1, 2)] * 3), skips=(SkipProfile("skip", 0, 2, 2.0, True),))
    assert [layer.output_bytes for layer in host.carried(profile, ROWS["baseline"]).layers] == [
        2.5,
        2.5,
        0.5,
    ]
    sizes = {}
    for name in "dep-streams", "dep-streams-portals":
        found = host.simulated(cell(3, 1), profile, LINKS, ROWS[name]).transfers
        assert found is not None
        forward = found[found["purpose"] == "activation"]
        sizes[name] = forward.set_index(["source", "destination"])["bytes"].to_dict()
    assert sizes["dep-streams"] == {(0, 1): 2.5, (1, 2): 2.5}
    assert sizes["dep-streams-portals"] == {(0, 1): 0.5, (1, 2): 0.5, (0, 2): 2.0}
