"""Where no messages meet, the longest path gives what the events give; and workers of one host."""

import math
from dataclasses import replace
from itertools import combinations
from typing import get_args

import pandas as pd
import pytest
from hypothesis import event, given, reject
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from pandas.testing import assert_frame_equal

from pipekit import schedules, simulate
from pipekit.clusters import Cluster, Device, Level
from pipekit.plans import Plan, Recompute
from pipekit.profiling import LayerProfile, Profile, SkipProfile, TieProfile
from pipekit.schedules import OPS, Schedule
from pipekit.simulation import Costs, Host, alone, events
from pipekit.simulation.costs import stage_costs
from pipekit.simulation.loads import loads
from pipekit.traces import TRANSFERS
from tests.schedules.strategies import training_methods
from tests.simulation.test_long_run import profile_of

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
    ends = st.lists(st.integers(0, schedule.stages - 1), min_size=2, max_size=2, unique=True).map(
        sorted
    )
    skips = data.draw(st.lists(ends, max_size=3)) if schedule.stages > 1 else []
    profile = replace(
        profile_of(data, schedule.stages, seconds),
        skips=tuple(SkipProfile(str(n), a, b, 10.0) for n, (a, b) in enumerate(skips)),
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


some_seconds = st.floats(0.125, 9, allow_subnormal=False)


@given(training_methods, st.sampled_from(["never", "always"]), st.data())
def test_a_host_that_takes_nothing_changes_nothing(
    schedule: Schedule, recompute: Recompute, data: st.DataObject
) -> None:
    if any(len(workers) > 1 for workers in schedule.stage_workers):
        reject()
    plan = Plan.by_hand([1] * schedule.stages, recompute=recompute)
    profile = profile_of(data, schedule.stages, some_seconds)
    costs = stage_costs(schedule, profile, plan)
    load = loads(schedule, costs, Costs(profile))
    found = alone.run_on_host(schedule, costs, load, Host())
    judge = alone.run(schedule, costs, load)
    assert judge is not None
    for ours, theirs in zip(found[:3], judge[:3], strict=True):
        assert ours == pytest.approx(theirs, nan_ok=True)
    assert len(found.transfers) == len(judge.transfers)


def test_one_microbatch_takes_all_parts_one_after_the_other() -> None:
    """F0 -> F1 -> B1 -> B0, two messages, of 10 bytes each; each worker then updates."""
    costs = Profile(tuple(LayerProfile(n, 1, 2, output_bytes=10, update_s=4) for n in "ab"))
    host = Host(
        task_s=0.5,
        batch_s=0.25,
        send_s=0.125,
        send_byte_s=0.1,
        receive_s=0.0625,
        receive_byte_s=0.2,
        wake_s=8,
        pass_s=16,
    )
    message = 0.125 + 1 + 8 + 0.0625 + 2
    trace = simulate(schedules.gpipe(2, 1).take(1), costs, host=host)
    forward, backward, update = 1 + 16 + 0.5 + 0.25, 2 + 16 + 0.5, 4 + 0.5
    before_first_pass = 0.5 + 0.25
    end = 2 * forward + 2 * backward + update + 2 * message - before_first_pass
    assert trace.makespan_s == pytest.approx(end)
    assert trace.transfers is not None
    assert (trace.transfers["end_s"] - trace.transfers["start_s"]).tolist() == [1.125, 1.125]


def test_nobody_is_waked_for_what_is_there() -> None:
    """The second stage takes ten times as long: it waits for the first microbatch alone."""
    costs = Profile((LayerProfile("a", 1, 1), LayerProfile("b", 10, 10)))
    trace = simulate(schedules.gpipe(2, 3).take(1), costs, host=Host(wake_s=0.5))
    last = trace.frame[trace.frame["stage"] == 1]
    assert last["start_s"].tolist() == [1.5, 11.5, 21.5, 31.5, 41.5, 51.5, 61.5]


def test_what_was_not_measured_is_refused() -> None:
    costs = Profile.uniform(2)
    replicated = schedules.pipedream([2, 1]).take(4)
    plan = Plan.by_hand([1, 1], replicas=[2, 1])
    with_weights = Profile.uniform(2, parameter_bytes=4)
    with pytest.raises(ValueError, match="without replicas and ties"):
        simulate(replicated, with_weights, plan, host=Host())
    tied = Profile(costs.layers, ties=(TieProfile((0, 1), 4),))
    with pytest.raises(ValueError, match="without replicas and ties"):
        simulate(schedules.gpipe(2, 2).take(1), tied, host=Host())
    with pytest.raises(ValueError, match="leave cluster and validate out"):
        simulate(schedules.gpipe(2, 2).take(1), costs, validate="first", host=Host())
    with pytest.raises(ValueError, match="task_s must be 0 or a positive number"):
        Host(task_s=-1)
    with pytest.raises(ValueError, match="wake_s must be 0 or a positive number"):
        Host(wake_s=float("nan"))
