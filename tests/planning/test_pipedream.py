"""PipeDream's planner on profiles whose plan is known by hand and against every possible plan, tried
one by one; and one function for all planners."""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipekit import simulate
from pipekit.clusters import Cluster, Device, Level, flat
from pipekit.planning import balanced, parallel_pipelines, pipedream, plan
from pipekit.planning.objectives import Cost
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import pipedream as pipedream_schedule
from tests.planning.enumeration import Possible, bytes_of, chains, every_plan

GB = 1e9


def cluster_of(memory: float, *levels: Level) -> Cluster:
    return Cluster("any", Device("any", memory, {}, math.inf), levels)


# Two layers compute much and pass on much, the last has most parameters: VGG16 in small.
CONVOLUTIONS = Profile(
    (
        LayerProfile("conv1", 0.1, 0.2, 400e6, 1e6),
        LayerProfile("conv2", 0.1, 0.2, 20e6, 1e6),
        LayerProfile("linear", 0.1, 0.1, 1e6, 2000e6),
    ),
    rows=32,
)


def test_the_two_costs_by_hand() -> None:
    one = Profile((LayerProfile("layer", 1.0, 3.0, parameter_bytes=4.0),))
    sync = 4 * 1 / 2 * 4.0 / 2.0  # two workers, 2 bytes/s
    assert pipedream(one, flat(2, 2.0)).predicted_s == max(4.0, sync) / 2
    assert pipedream(one, flat(2, 2.0), cost="released").predicted_s == 4.0  # one worker is as fast
    assert pipedream(one, flat(2, 4.0), cost="released").predicted_s == (4.0 + sync / 2) / 2


def test_why_says_what_is_slowest_and_what_the_plain_methods_take() -> None:
    assert pipedream(CONVOLUTIONS, flat(4, 1 * GB)).why == (
        "The slowest is the compute of layers 0-1 on 3 workers (200 ms). Data parallelism on all 4 "
        "workers would take 1502 ms, a straight pipeline 600 ms."
    )
    slow = pipedream(CONVOLUTIONS, flat(4, 0.1 * GB))
    assert "the transfer from layer 1 to 2 over link (400 ms)" in slow.why
    heavy = Profile((LayerProfile("layer", 0.5, 0.5, parameter_bytes=0.6 * GB),))
    assert (
        "the synchronisation of layer 0 over link (533.3 ms)"
        in pipedream(heavy, flat(3, 1 * GB)).why
    )
    two = Profile.uniform(2, 1.0, 1.0, parameter_bytes=1 * GB)
    tight = pipedream(two, flat(2, 1 * GB, memory=4 * GB))
    assert tight.config == "1-1"
    assert "would take 2000 ms (but does not fit), a straight pipeline 2000 ms" in tight.why


def test_equally_fast_plans_with_fewer_workers_then_fewer_stages_win() -> None:
    free = flat(6, math.inf)
    a_dear_layer = Profile.uniform(3, 1.0, 1.0)
    assert pipedream(a_dear_layer, free, replicate=False).config == "1-1-1"
    assert pipedream(a_dear_layer, free).config == "6"
    lopsided = Profile((LayerProfile("a", 5, 5), LayerProfile("b", 1, 1), LayerProfile("c", 1, 1)))
    assert pipedream(lopsided, free, replicate=False).balance == [1, 2]


def test_replicas_stay_inside_a_server() -> None:
    """Synchronising over the network would cost more than an uneven pipeline over it."""
    layer = LayerProfile("layer", 0.1, 0.2, output_bytes=1e6, parameter_bytes=200e6)
    profile = Profile((layer,) * 8)
    cluster = cluster_of(1e12, Level("NVLink", 4, 100 * GB), Level("network", 2, 1 * GB))
    plan = pipedream(profile, cluster)
    assert plan.config == "4-4"
    assert plan.predicted_s == pytest.approx(8 * 0.3 / 8)
    slow = pipedream(profile, flat(8, 1 * GB))
    assert plan.predicted_s < slow.predicted_s


def test_the_memory_that_the_error_asks_for_is_enough_and_no_less_is() -> None:
    with pytest.raises(ValueError, match="no plan fits") as caught:
        pipedream(CONVOLUTIONS, flat(4, 1 * GB, memory=1 * GB))
    (text,) = re.findall(r"at least ([\d,]+) bytes", str(caught.value))
    least = int(text.replace(",", ""))
    assert pipedream(CONVOLUTIONS, flat(4, 1 * GB, memory=least)).memory_bytes == least
    with pytest.raises(ValueError, match="no plan fits"):
        pipedream(CONVOLUTIONS, flat(4, 1 * GB, memory=least - 1))


PROFILE = Profile.uniform(4, output_bytes=1.0, parameter_bytes=1.0)
CLUSTER = flat(3, 10.0)


def test_methods_are_planners_and_options_theirs() -> None:
    assert plan(PROFILE, CLUSTER) == pipedream(PROFILE, CLUSTER)
    assert plan(PROFILE, CLUSTER, cost="released") == pipedream(PROFILE, CLUSTER, cost="released")
    parallel = parallel_pipelines(PROFILE, CLUSTER, max_batch=9)
    assert plan(PROFILE, CLUSTER, "parallel_pipelines", max_batch=9) == parallel
    by_variance = balanced(PROFILE, CLUSTER, by="variance")
    assert plan(PROFILE, CLUSTER, "balance", by="variance") == by_variance


def test_impossible_calls() -> None:
    with pytest.raises(ValueError, match="method must be one of pipedream, parallel_pipelines"):
        plan(PROFILE, CLUSTER, "luck")
    with pytest.raises(ValueError, match="cost must be one of paper, released, not 'cheap'"):
        plan(PROFILE, CLUSTER, cost="cheap")
    with pytest.raises(ValueError, match="balance has no option 'cost', only stages, by"):
        plan(PROFILE, CLUSTER, "balance", cost="paper")
    with pytest.raises(ValueError, match="parallel_pipelines needs the option 'max_batch'"):
        plan(PROFILE, CLUSTER, "parallel_pipelines")
    for stages in (1.5, True):
        with pytest.raises(ValueError, match="stages must be a whole number of at least 1, not"):
            plan(PROFILE, CLUSTER, "balance", stages=stages)
    with pytest.raises(ValueError, match="predictors must be a whole number of at least 0"):
        plan(PROFILE, CLUSTER, "interleaved", predictors="two")
    for states in (-1, None):
        with pytest.raises(ValueError, match="optimizer_states must be 0 or a positive number"):
            plan(PROFILE, CLUSTER, optimizer_states=states)
    with pytest.raises(ValueError, match="pipedream plans for one microbatch size"):
        plan({1: PROFILE}, CLUSTER)


def require_best(
    plan: Plan, profile: Profile, possible: Sequence[Possible], limit: float, states: float
) -> None:
    fits = [p for p in possible if max(bytes_of(profile, p.stages, states)) <= limit]
    least = min(p.seconds for p in fits)
    assert plan.predicted_s == pytest.approx(least, rel=1e-12)
    equal = [p for p in fits if p.seconds <= least * (1 + 1e-12)]
    stages = tuple((stage.first, stage.stop, stage.replicas) for stage in plan.stages)
    assert stages in [p.stages for p in equal]
    assert plan.workers == min(sum(r for _, _, r in p.stages) for p in equal)
    assert [stage.memory_bytes for stage in plan.stages] == bytes_of(profile, stages, states)
    assert plan.memory_bytes <= limit


bandwidths = st.sampled_from([0.5, 1.0, 4.0, 20.0, math.inf])
costs = st.sampled_from(["paper", "released"])


@given(chains(7), st.integers(1, 5), bandwidths, costs, st.floats(0.8, 2.0), st.integers(0, 2))
def test_flat_equals_brute_force_within_memory(
    profile: Profile, workers: int, bandwidth: float, cost: Cost, part: float, states: int
) -> None:
    """The limit is near the least memory that any plan needs, so that it decides."""
    levels = flat(workers, bandwidth).levels
    possible = list(every_plan(profile, levels, cost, range(1, workers + 1)))
    least = min(max(bytes_of(profile, p.stages, states)) for p in possible)
    limit = max(1.0, math.floor(part * least))
    cluster = flat(workers, bandwidth, memory=limit)
    if least > limit:
        with pytest.raises(ValueError, match=f"give each at least {int(least):,} bytes"):
            pipedream(profile, cluster, cost=cost, optimizer_states=states)
    else:
        plan = pipedream(profile, cluster, cost=cost, optimizer_states=states)
        require_best(plan, profile, possible, limit, states)


@given(
    chains(5),
    st.sampled_from([(2, 2), (1, 3), (3, 2), (2, 3), (2, 2, 2)]),
    st.tuples(bandwidths, bandwidths, bandwidths),
    costs,
    st.sampled_from([1.0, 1.3, math.inf]),
)
def test_hierarchical_equals_brute_force(
    profile: Profile, widths: tuple[int, ...], rates: tuple[float, ...], cost: Cost, part: float
) -> None:
    """Hierarchical on the cluster and on its inner groups, or flat over the slowest link."""
    workers = math.prod(widths)
    assume(workers < 6 or len(profile) < (4 if workers > 6 else 6))
    levels = [Level(f"level {k}", width, rates[k]) for k, width in enumerate(widths)]
    slowest = flat(workers, min(rates[: len(widths)])).levels
    possible = list(every_plan(profile, slowest, cost, range(1, workers + 1)))
    for k in range(len(levels)):
        inner = levels[: k + 1]
        possible += every_plan(profile, inner, cost, range(1, inner[-1].width + 1))
    limit = max(1.0, part * min(max(bytes_of(profile, p.stages, 1)) for p in possible))
    plan = pipedream(profile, cluster_of(limit, *levels), cost=cost)
    require_best(plan, profile, possible, limit, 1)


@given(chains(7), st.integers(1, 5), bandwidths)
def test_a_straight_pipeline_has_one_worker_a_stage(
    profile: Profile, workers: int, bandwidth: float
) -> None:
    cluster = flat(workers, bandwidth)
    possible = [
        plan
        for plan in every_plan(profile, cluster.levels, "paper", range(1, workers + 1))
        if all(replicas == 1 for _, _, replicas in plan.stages)
    ]
    require_best(pipedream(profile, cluster, replicate=False), profile, possible, math.inf, 1)


@given(chains(5), st.integers(1, 4), st.integers(0, 2), st.sampled_from([1.0, 1.3]))
def test_a_straight_plan_takes_in_simulation_what_was_predicted(
    profile: Profile, workers: int, states: int, part: float
) -> None:
    """Seconds a minibatch over free links, and bytes of the fullest worker.

    Passes take time: what a pass of no seconds holds is held at no moment of a simulation.
    """
    layers = tuple(
        replace(x, forward_s=x.forward_s + 1, backward_s=x.backward_s + 1) for x in profile.layers
    )
    profile = replace(profile, layers=layers)

    def planned(limit: float) -> Plan:
        cluster = flat(workers, math.inf, memory=limit)
        return pipedream(profile, cluster, replicate=False, optimizer_states=states)

    plan = free = planned(math.inf)
    with suppress(ValueError):
        plan = planned(max(1.0, free.memory_bytes / part))
    schedule = pipedream_schedule(len(plan.stages)).take(16)
    trace = simulate(schedule, profile, plan, optimizer_states=states)
    ends = trace.frame[(trace.frame["op"] == "UPDATE") & (trace.frame["stage"] == 0)]["end_s"]
    assert (ends.iloc[12] - ends.iloc[6]) / 6 == pytest.approx(plan.predicted_s)
    assert trace.memory is not None
    assert trace.memory.peak_bytes == tuple(stage.memory_bytes for stage in plan.stages)
