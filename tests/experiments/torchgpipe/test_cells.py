"""torchgpipe's speed and Table 1's rows: cells by hand, and against the simulator of workers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.torchgpipe import cells, host
from experiments.torchgpipe.cells import (
    TABLE2,
    TABLE3,
    TABLE4,
    Benchmark,
    printed_cell,
    unet_balance,
)
from experiments.torchgpipe.host import ROWS, Components
from pipekit.clusters import flat
from pipekit.models import PUBLISHED
from pipekit.profiling import LayerProfile, Profile
from pipekit.traces import Trace

# Two stages of 10 and 20 ms a row of forward, twice that of backward.
COSTS = Profile.uniform(3, 0.010, 0.020, parameter_bytes=1e6)


def cell(microbatches: int, recompute: str) -> Benchmark:
    return Benchmark("by hand", "none", microbatches, 2 * microbatches, (1, 2), recompute)  # type: ignore[arg-type]


def test_a_cell_takes_what_one_computes_by_hand() -> None:
    # Rows of 2 in a microbatch: stage 0 has 20 and 40 ms, stage 1 40 and 80 ms; m = 1 and always:
    # forwards, stage 1 again, backwards; stage 0's second forward hides in the wait.
    trace = cells.simulated(cell(1, "always"), COSTS, None)
    assert trace.makespan_s == pytest.approx(0.020 + 0.040 + 0.040 + 0.080 + 0.040)
    # m = 2: stage 1 is busy throughout, and recomputes the first microbatch only.
    trace = cells.simulated(cell(2, "except_last"), COSTS, None)
    assert trace.makespan_s == pytest.approx(0.020 + 2 * 0.040 + 0.040 + 2 * 0.080 + 0.040)


def test_recomputed_late_one_microbatch_gains_nothing_by_stages() -> None:
    one = Benchmark("by hand", "none", 1, 2, (3,), "always")
    two = cell(1, "always")
    assert cells.recomputed_late_speedup(two, one, COSTS) == pytest.approx(1)
    early = (
        cells.simulated(one, COSTS, None).makespan_s / cells.simulated(two, COSTS, None).makespan_s
    )
    assert early == pytest.approx(0.24 / 0.22)


def test_a_partition_has_all_layers_and_a_batch_whole_microbatches() -> None:
    cells = [*TABLE2.values(), *TABLE3, *TABLE4]
    networks = {cell.network for cell in cells}
    layers = {name: len(PUBLISHED[name].build(device="meta")) for name in networks}
    for cell in cells:
        assert sum(cell.balance) == layers[cell.network], cell.name
        assert cell.rows * cell.microbatches == cell.batch, cell.name
        assert cell.plan().balance == list(cell.balance), cell.name


def test_a_cut_within_a_convolution_goes_to_its_nearer_end() -> None:
    # A cell of one convolution and its pooling: 4 + 2 of their layers.
    whole = 5 * 6 + 4 + 5 * 6 + 1
    assert unet_balance([4, whole - 4], 1) == (1, 21)
    assert unet_balance([5 + 2, whole - 7], 1) == (2, 20)
    assert unet_balance([9, whole - 9], 1) == (3, 19)
    with pytest.raises(ValueError, match="has 65 layers there, not 64"):
        unet_balance([whole - 1], 1)


def test_a_printed_cell_is_the_ledgers() -> None:
    assert printed_cell(4, "pipeline-8-speedup") == 3.105
    assert printed_cell(2, "ours-m1-n2") is None


ALL = ROWS["dep-streams-portals"]
LINKS = flat(4, 1.0)


def equal(stages: int, microbatches: int) -> Benchmark:
    return Benchmark("by hand", "none", microbatches, microbatches, (1,) * stages, "except_last")


def costs(*seconds: tuple[float, float], output_bytes: float = 0.5) -> Profile:
    layers = (LayerProfile(f"{n}", f, b, output_bytes) for n, (f, b) in enumerate(seconds))
    return Profile(tuple(layers))


def traced(stages: int, m: int, has: Components, **more: Any) -> Trace:
    return host.simulated(equal(stages, m), costs(*[(1, 2)] * stages, **more), LINKS, has)


def events(trace: Trace, device: int) -> list[str]:
    own = trace.frame[trace.frame["worker"] == device]
    return [f"{op[0]}{k}" for op, k in zip(own["op"], own["microbatch"], strict=True)]


quarters = st.integers(1, 8).map(lambda n: n / 4)


@given(st.lists(st.tuples(quarters, quarters), min_size=1, max_size=4), st.integers(1, 5), quarters)
def test_with_order_and_streams_it_is_what_workers_do(
    seconds: list[tuple[float, float]], m: int, size: float
) -> None:
    profile, one = costs(*seconds, output_bytes=size), equal(len(seconds), m)
    expected = cells.simulated(one, profile, LINKS).makespan_s
    assert host.simulated(one, profile, LINKS, ALL).makespan_s == expected


def test_without_order_devices_go_backward_one_after_the_other() -> None:
    trace = traced(3, 3, ROWS["baseline"])
    assert events(trace, 2) == ["F0", "F1", "F2", "R1", "R0", "B2", "B1", "B0"]
    assert events(trace, 1) == ["F0", "F1", "F2", "B2", "R1", "R0", "B1", "B0"]
    last = trace.frame.query("op == 'BACKWARD' and microbatch == 0").set_index("worker")
    recomputed = trace.frame.query("op == 'BACKWARD' and microbatch == 1").set_index("worker")
    assert recomputed["start_s"][1] >= last["end_s"][2]
