"""Schedules found: never longer than a named method's under the same cap, proved and trained."""

import math
import random
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pytest

import pipekit as pk
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import OFFLOAD, ScheduleError, check
from pipekit.schedules.methods.by_name import named_schedules
from pipekit.simulation import Costs
from tests.engine.examples import dropping
from tests.engine.methods.test_methods import both


def unequal(stages: int, seed: int) -> Profile:
    """Layers of a bit more or less than the same costs."""
    chance = random.Random(seed)
    layers = []
    for number in range(stages):
        forward, inputs, weights = (chance.uniform(1, 1.6) for _ in range(3))
        layers.append(
            LayerProfile(
                f"layer {number}",
                forward_s=forward,
                backward_s=(inputs + weights) * 0.95,
                backward_input_s=inputs,
                backward_weight_s=weights,
                output_bytes=10,
                saved_bytes=chance.uniform(50, 100),
            )
        )
    return Profile(tuple(layers), input_bytes=10)


@pytest.mark.parametrize(("stages", "workers", "m"), [(3, 3, 6), (4, 2, 4), (4, 4, 4)])
def test_no_named_method_that_fits_is_shorter(stages: int, workers: int, m: int) -> None:
    profile, plan = unequal(stages, 1), Plan.by_hand([1] * stages)
    cap = 500.0
    how = {"microbatches": m, "workers": workers, "seconds": 0.1}
    found = pk.search(profile, plan, None, cap, **how).schedule  # type: ignore[arg-type]
    check(found, joint_updates=True)
    trace = pk.simulate(
        found, profile, plan.with_replicas([len(homes) for homes in found.stage_workers])
    )
    assert trace.memory is not None
    assert max(trace.memory.peak_bytes) <= cap
    better = 0
    for method in named_schedules(stages, workers, m):
        other = pk.simulate(
            method, profile, plan.with_replicas([len(homes) for homes in method.stage_workers])
        )
        assert other.memory is not None
        if max(other.memory.peak_bytes) <= cap:
            better += 1
            assert trace.makespan_s <= other.makespan_s + 1e-9
    assert better >= 3


def test_it_is_trained_like_any_other() -> None:
    found = pk.search(
        unequal(4, 2), Plan.by_hand([1] * 4), None, microbatches=4, workers=2, seconds=0.2
    )
    both(found.schedule.repeat().take(3), dropping(4), [1] * 4, "threads")


def test_what_does_not_fit_may_be_offloaded() -> None:
    """Two stages a worker in 60 bytes, of which each microbatch keeps 11 on a stage."""
    layer = LayerProfile(
        "layer", 1.0, 2.0, output_bytes=1, saved_bytes=10, saves_output=True, parameter_bytes=3
    )
    profile, plan = Profile((layer,) * 8, input_bytes=1), Plan.by_hand([1] * 8)
    search = partial(pk.search, profile, plan, microbatches=8, workers=4, seconds=0.0)
    cap: Any = np.int64(60)  # as of a table's column
    stays, leaves = search(memory_cap=cap), search(memory_cap=cap, host_bytes_per_s=11)
    assert not any(task.op is OFFLOAD for task in chain(*stays.schedule.workers))
    assert any(task.op is OFFLOAD for task in chain(*leaves.schedule.workers))
    assert leaves.makespan_s < 0.9 * stays.makespan_s
    check(leaves.schedule)
    trace = pk.simulate(leaves.schedule, Costs(profile, host_bytes_per_s=11), plan)
    assert trace.memory is not None
    assert trace.makespan_s == leaves.makespan_s
    assert max(trace.memory.peak_bytes) <= 60
    roomy = search(host_bytes_per_s=11)
    assert not any(task.op is OFFLOAD for task in chain(*roomy.schedule.workers))


def test_what_fits_nowhere_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"the most frugal method needs .* on a worker"):
        pk.search(unequal(2, 3), Plan.by_hand([1, 1]), None, 1.0, microbatches=2, seconds=0.1)


def test_workers_share_the_stages() -> None:
    with pytest.raises(ValueError, match="use at most as many workers as stages"):
        pk.search(unequal(3, 3), Plan.by_hand([1, 1, 1]), microbatches=2, workers=4)
    with pytest.raises(ValueError, match="workers must be a whole number of at least 1, not 0"):
        pk.search(unequal(3, 3), Plan.by_hand([1, 1, 1]), microbatches=2, workers=0)
    with pytest.raises(ValueError, match="memory_cap is a number of bytes"):
        pk.search(unequal(3, 3), Plan.by_hand([1, 1, 1]), memory_cap=math.nan, microbatches=2)
    with pytest.raises(ValueError, match="placement names a worker for each of 3 stages"):
        pk.search(unequal(3, 3), Plan.by_hand([1, 1, 1]), placement=[0, 1, 1], microbatches=2)


def test_stages_are_shared_out_as_their_costs_are() -> None:
    """The first stage takes as long as the three others: no named placement has it alone."""
    layers = [LayerProfile(f"layer {n}", f, 2 * f) for n, f in enumerate((3.0, 1.0, 1.0, 1.0))]
    profile, plan = Profile(tuple(layers)), Plan.by_hand([1] * 4)
    found = pk.search(profile, plan, microbatches=8, workers=2, seconds=0.5)
    assert found.schedule.stage_workers == ((0,), (1,), (1,), (1,))
    given = pk.search(profile, plan, microbatches=8, workers=2, seconds=0.3, placement=[0, 0, 1, 1])
    assert given.schedule.stage_workers == ((0,), (0,), (1,), (1,))
    assert found.makespan_s < 0.8 * given.makespan_s
