"""Table 1's rows: by hand, and against the simulator of workers."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from experiments.torchgpipe import cells, host
from experiments.torchgpipe.cells import Benchmark
from experiments.torchgpipe.host import ROWS, Components
from pipekit.clusters import flat
from pipekit.profiling import LayerProfile, Profile
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


@given(st.lists(st.tuples(quarters, quarters), min_size=1, max_size=4), st.integers(1, 5), quarters)
def test_with_order_and_streams_it_is_what_workers_do(
    seconds: list[tuple[float, float]], m: int, size: float
) -> None:
    profile, one = costs(*seconds, output_bytes=size), cell(len(seconds), m)
    expected = cells.simulated(one, profile, LINKS).makespan_s
    assert host.simulated(one, profile, LINKS, ALL).makespan_s == expected


def test_without_order_devices_go_backward_one_after_the_other() -> None:
    trace = row(3, 3, ROWS["baseline"])
    assert events(trace, 2) == ["F0", "F1", "F2", "R1", "R0", "B2", "B1", "B0"]
    assert events(trace, 1) == ["F0", "F1", "F2", "B2", "R1", "R0", "B1", "B0"]
    assert not host.in_order(trace, 3)
    last = trace.frame.query("op == 'BACKWARD' and microbatch == 0").set_index("worker")
    recomputed = trace.frame.query("op == 'BACKWARD' and microbatch == 1").set_index("worker")
    assert recomputed["start_s"][1] >= last["end_s"][2]
