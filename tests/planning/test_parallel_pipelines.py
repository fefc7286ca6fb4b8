"""PipeDream-2BW's planner against the equations, written out for one configuration at a time."""

import math

import pytest

from pipekit import simulate
from pipekit.clusters import flat
from pipekit.planning import parallel_pipelines, sweep
from pipekit.planning.sweep import block_balance
from pipekit.plans import Plan, Recompute
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import replicate, two_bw

GB = 1e9


def gpt(blocks: int) -> Profile:
    """Return a GPT of the paper's proportions: 3 ms a block and row, parameters of 2 bytes."""
    block = LayerProfile("block", 1e-3, 2e-3, 2e6, 100e6, 30e6, True)
    embedding = LayerProfile("embedding", 1e-4, 1e-4, 2e6, 200e6, 0.0)
    norm = LayerProfile("norm", 1e-5, 1e-5, 2e6, 1e4, 2e6, True)
    head = LayerProfile("head", 1e-3, 2e-3, 50e6, 200e6, 50e6, True)
    return Profile((embedding, *[block] * blocks, norm, head), input_bytes=4e3)


def test_blocks_are_shared_out_equally() -> None:
    profile = gpt(24)
    assert block_balance(profile, 4) == [1 + 6, 6, 6, 6 + 2]
    assert block_balance(profile, 1) == [27]


def test_of_equal_throughput_the_largest_microbatch_that_fits() -> None:
    """PipeDream-2BW, section 4.1."""
    profile = Profile.uniform(2, output_bytes=1.0)
    free = parallel_pipelines(profile, flat(1, math.inf), max_batch=20)
    tight = parallel_pipelines(profile, flat(1, math.inf, memory=12.0), max_batch=20)
    assert (free.microbatch_rows, free.microbatches) == (16, 1)
    assert (tight.microbatch_rows, tight.microbatches) == (4, 5)
    assert free.stages[0].recompute == "never"


@pytest.mark.parametrize(("width", "depth"), [(1, 4), (2, 2), (3, 1)])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_a_plan_takes_in_simulation_what_was_predicted(
    width: int, depth: int, recompute: Recompute
) -> None:
    """Seconds a microbatch where links are free, and bytes of every worker."""
    layers = [LayerProfile(str(i), 1.0, 2.0, 2.0, 4.0 + i % 2, 7.0, i % 2 == 0) for i in range(4)]
    profile = Profile(tuple(layers), input_bytes=3.0)
    whole = sweep(profile, flat(width * depth, math.inf), max_batch=8 * width)
    row = whole[
        (whole["width"] == width)
        & (whole["depth"] == depth)
        & (whole["microbatch_rows"] == 1)
        & (whole["recompute"] == (recompute == "always"))
    ].iloc[0]
    plan = Plan.by_hand(
        block_balance(profile, depth), replicas=[width] * depth, recompute=recompute
    )
    schedule = replicate(two_bw(depth, int(row["microbatches"])), width).take(4)
    trace = simulate(schedule, profile, plan, optimizer_states=2)
    frame = trace.frame
    ends = frame[(frame["op"] == "BACKWARD") & (frame["worker"] == 0)]["end_s"].to_numpy()
    m = int(row["microbatches"])
    assert (ends[3 * m - 1] - ends[m - 1]) / (2 * m) == pytest.approx(row["seconds"])
    assert trace.memory is not None
    assert max(trace.memory.peak_bytes) == row["memory_bytes"]


def test_the_memory_that_the_error_asks_for_is_enough() -> None:
    profile = gpt(8)
    with pytest.raises(ValueError, match="give each at least") as caught:
        parallel_pipelines(profile, flat(4, GB, memory=1e9), max_batch=16)
    least = int(str(caught.value).partition("at least ")[2].partition(" bytes")[0].replace(",", ""))
    assert parallel_pipelines(profile, flat(4, GB, memory=least), max_batch=16).workers == 4
    with pytest.raises(ValueError, match="no plan fits"):
        parallel_pipelines(profile, flat(4, GB, memory=least - 1), max_batch=16)


def test_a_batch_smaller_than_every_microbatch() -> None:
    with pytest.raises(ValueError, match="max_batch 2 holds no microbatch of 4 rows: use at least"):
        parallel_pipelines({4: Profile.uniform(2).scaled(4)}, flat(2, GB), max_batch=2)
    with pytest.raises(ValueError, match="use at least 1"):
        parallel_pipelines(Profile.uniform(2), flat(2, GB), max_batch=0)
