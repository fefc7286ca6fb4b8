"""torchgpipe's speed: cells by hand, and what of the emulation and the training can be known."""

import pytest

from experiments.torchgpipe.settings import TABLE2, TABLE4, Benchmark
from experiments.torchgpipe.speed import rates
from pipekit.clusters import flat
from pipekit.profiling import Profile
from tests.emulation.own_time import own_time

# Two stages of 10 and 20 ms a row of forward, twice that of backward.
COSTS = Profile.uniform(3, 0.010, 0.020, parameter_bytes=1e6)


def cell(microbatches: int, recompute: str) -> Benchmark:
    return Benchmark("by hand", "none", microbatches, 2 * microbatches, (1, 2), recompute)  # type: ignore[arg-type]


def test_a_cell_takes_what_one_computes_by_hand() -> None:
    # Rows of 2 in a microbatch: stage 0 has 20 and 40 ms, stage 1 40 and 80 ms; m = 1 and always:
    # forwards, stage 1 again, backwards; stage 0's second forward hides in the wait.
    trace = rates.simulated(cell(1, "always"), COSTS, None)
    assert trace.makespan_s == pytest.approx(0.020 + 0.040 + 0.040 + 0.080 + 0.040)
    # m = 2: stage 1 is busy throughout, and recomputes the first microbatch only.
    trace = rates.simulated(cell(2, "except_last"), COSTS, None)
    assert trace.makespan_s == pytest.approx(0.020 + 2 * 0.040 + 0.040 + 2 * 0.080 + 0.040)


def test_recomputed_late_one_microbatch_gains_nothing_by_stages() -> None:
    one = Benchmark("by hand", "none", 1, 2, (3,), "always")
    two = cell(1, "always")
    assert rates.recomputed_late_speedup(two, one, COSTS) == pytest.approx(1)
    early = (
        rates.simulated(one, COSTS, None).makespan_s / rates.simulated(two, COSTS, None).makespan_s
    )
    assert early == pytest.approx(0.24 / 0.22)


def test_emulated_and_simulated_rates_agree() -> None:
    with own_time():
        found, _ = rates.throughput(cell(2, "except_last"), COSTS, faster=2, emulations=2)
    assert found.simulated == found.emulated == pytest.approx(4 / 0.340)
    # By time the cut is after the first layer or the second: both take as long.
    assert found.blocks == pytest.approx(4 / 0.340)
    assert found.peak_bytes == 4 * 1e6  # weights and gradients of two layers


def test_slower_links_make_a_batch_longer() -> None:
    costs = Profile.uniform(3, 0.010, 0.020, output_bytes=1e6)
    free = rates.simulated(cell(4, "never"), costs, None).makespan_s
    assert rates.simulated(cell(4, "never"), costs, flat(2, 1e8)).makespan_s > free + 0.02


def test_the_smallest_microbatch_is_profiled() -> None:
    assert rates.least_rows([*TABLE2.values(), *TABLE4]) == {
        "amoebanet-d-18-256": 36,
        "unet-5-64": 16,
    }


def test_slots_are_alike_where_speedups_are_those_of_equal_slots() -> None:
    ideal = {key: 2 * c.microbatches / (sum(key) - 1) for key, c in TABLE2.items()}
    assert {round(rates.slot(TABLE2[key], ideal[key]), 9) for key in TABLE2} == {0.5}


def test_growth_is_looked_for_in_both_directions() -> None:
    good = {(m, n): m * n for m in (1, 4, 32) for n in (2, 4, 8)}
    assert rates.grows(good)
    assert rates.grows(good | {(1, 8): 2.0})  # at m = 1 nothing is promised of n
    assert not rates.grows(good | {(4, 8): 15.0})
    assert not rates.grows(good | {(4, 2): 64.0})


def test_block_partitions_keep_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rates.within_the_costliest_layer(50)
    front_heavy = lambda costs, stages, by: [len(costs) - stages + 1] + [1] * (stages - 1)  # noqa: E731
    monkeypatch.setattr(rates, "balance", front_heavy)
    assert not rates.within_the_costliest_layer(50)


@pytest.mark.parametrize(("m", "expected"), [(1, 1), (2, 6 / 7), (4, 12 / 15)])
def test_closed_form(m: int, expected: float) -> None:
    assert rates.closed_form(m) == pytest.approx(expected)
