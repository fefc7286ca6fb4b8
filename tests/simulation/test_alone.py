"""Where no messages meet on a link, the longest path gives what following every event gives."""

import math
from itertools import combinations
from typing import get_args

import pandas as pd
from hypothesis import event, given, reject
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from pandas.testing import assert_frame_equal

from pipekit.clusters import Cluster, Device, Level
from pipekit.plans import Plan, Recompute
from pipekit.profiling import LayerProfile, Profile, SkipProfile
from pipekit.schedules import OPS, Schedule
from pipekit.simulation import Costs, alone, events
from pipekit.simulation.costs import stage_costs
from pipekit.simulation.loads import loads
from pipekit.traces import TRANSFERS
from tests.schedules.strategies import training_methods

seconds = st.floats(0, 9, allow_subnormal=False)


def slowed(profile: Profile) -> st.SearchStrategy[Costs]:
    """Some workers, microbatches and tasks take other times than the profile says."""
    number, factors = st.integers(0, 3), st.floats(0, 3)
    tasks = st.tuples(number, st.sampled_from(OPS[:5]), number, number)
    return st.builds(
        Costs,
        st.just(profile),
        st.dictionaries(number, factors, max_size=3),
        st.dictionaries(number, factors, max_size=3),
        st.dictionaries(tasks, seconds, max_size=3),
    )


@given(training_methods, st.data())
def test_it_is_what_the_events_give_to_the_bit(schedule: Schedule, data: st.DataObject) -> None:
    if any(len(workers) > 1 for workers in schedule.stage_workers):
        reject()  # their gradients are summed over links, which takes turns
    layers = tuple(
        LayerProfile(
            f"layer {stage}",
            data.draw(seconds),
            data.draw(seconds),
            output_bytes=stage,
            update_s=data.draw(seconds),
            copy_s=data.draw(st.sampled_from([0.0, 0.5])),
            backward_input_s=data.draw(seconds),
            backward_weight_s=data.draw(seconds),
        )
        for stage in range(schedule.stages)
    )
    ends = st.lists(st.integers(0, schedule.stages - 1), min_size=2, max_size=2, unique=True).map(
        sorted
    )
    skips = data.draw(st.lists(ends, max_size=3)) if schedule.stages > 1 else []
    profile = Profile(
        layers, skips=tuple(SkipProfile(str(n), a, b, 10.0) for n, (a, b) in enumerate(skips))
    )
    recompute = data.draw(st.sampled_from(get_args(Recompute)))
    plan = Plan.by_hand([1] * schedule.stages, recompute=recompute)
    costs = stage_costs(schedule, profile, plan)
    links = data.draw(st.none() | st.sampled_from([0.5, 2.0, 50.0, math.inf]))
    latency = data.draw(st.sampled_from([0.0, 0.25]))
    level = Level("link", len(schedule.workers), links or 1.0, latency_s=latency)
    device = Device("any", math.inf, {}, math.inf)
    cluster = None if links is None else Cluster("c", device, (level,))
    load = loads(schedule, costs, data.draw(slowed(profile)))
    followed = events.run(schedule, costs, load, cluster)
    fast = alone.run(schedule, costs, load, cluster)
    event("messages meet" if fast is None else "none meet")
    assert (fast is None) == (cluster is not None and meet(followed.transfers))
    if fast is not None:
        for ours, theirs in zip(fast[:3], followed[:3], strict=True):
            assert_array_equal(ours, theirs)
        in_order = [times.transfers.sort_values(TRANSFERS) for times in (fast, followed)]
        assert_frame_equal(*(frame.reset_index(drop=True) for frame in in_order), check_dtype=False)


def meet(transfers: pd.DataFrame) -> bool:
    """Return whether messages of two connections are at once on a worker's way out, or in."""
    sent = transfers[transfers["end_s"] > transfers["start_s"]].itertuples()
    return any(
        (one.source == other.source) != (one.destination == other.destination)
        and one.start_s <= other.end_s
        and other.start_s <= one.end_s
        for one, other in combinations(sent, 2)
    )
