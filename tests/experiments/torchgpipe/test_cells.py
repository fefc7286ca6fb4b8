"""torchgpipe's speed: cells by hand, and what of the emulation and the training can be known."""

import pytest

from experiments.torchgpipe import cells
from experiments.torchgpipe.cells import (
    TABLE2,
    TABLE3,
    TABLE4,
    Benchmark,
    printed_cell,
    unet_balance,
)
from pipekit.models import PUBLISHED
from pipekit.profiling import Profile

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
