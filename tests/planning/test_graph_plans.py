"""PipeDream's plans of chains and graphs against every possible one, tried one by one; plans of
graphs against the chain's, and against PipeDream's own optimizer."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipekit import simulate
from pipekit.clusters import Cluster, Device, Level, flat
from pipekit.planning import pipedream
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.planning.objectives import Cost
from pipekit.planning.states import States
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile, ValueProfile
from pipekit.schedules import pipedream as pipedream_schedule
from tests.planning.enumeration import profiles
from tests.planning.graphs import (
    Possible,
    bytes_of,
    closed_sets,
    every_plan,
    fullest,
    graphs,
    stages_of,
)

bandwidths = st.sampled_from([0.5, 1.0, 4.0, 20.0, math.inf])
costs = st.sampled_from(["paper", "released"])


@st.composite
def chains(draw: st.DrawFn, most_layers: int) -> Profile:
    """Draw chains, whose last output a backward needs, as a graph's is."""
    profile = draw(profiles(most_layers))
    last = replace(profile.layers[-1], saves_output=True)
    return replace(profile, layers=(*profile.layers[:-1], last))


def as_graph(profile: Profile) -> Profile:
    """Return the same with its values, as those who try every plan want it."""
    if profile.values:
        return profile
    *inner, last = enumerate(profile.layers)
    values = [ValueProfile(k, (k + 1,), x.output_bytes, x.saves_output) for k, x in inner]
    output = ValueProfile(last[0], (), last[1].output_bytes)
    return replace(profile, values=(*values, output))


def require_best(
    plan: Plan, profile: Profile, possible: Sequence[Possible], limit: float, states: float
) -> None:
    fits = [p for p in possible if fullest(profile, p.stages, states) <= limit]
    least = min(p.seconds for p in fits)
    assert plan.predicted_s == pytest.approx(least, rel=1e-12)
    equal = [p for p in fits if p.seconds <= least * (1 + 1e-12)]
    assert stages_of(plan) in [p.stages for p in equal]
    assert plan.workers == min(sum(r for _, _, r in p.stages) for p in equal)
    assert [stage.memory_bytes for stage in plan.stages] == bytes_of(profile, plan, states)
    assert plan.memory_bytes <= limit


def levels_of(widths: Sequence[int], rates: Sequence[float]) -> list[Level]:
    return [Level(f"level {k}", width, rates[k]) for k, width in enumerate(widths)]


def cluster_of(memory: float, levels: Sequence[Level]) -> Cluster:
    return Cluster("any", Device("any", memory, {}, math.inf), tuple(levels))


@given(
    graphs(5) | chains(7),
    st.integers(1, 5),
    bandwidths,
    costs,
    st.floats(0.8, 2.0),
    st.integers(0, 2),
)
def test_flat_equals_brute_force_within_memory(
    profile: Profile, workers: int, bandwidth: float, cost: Cost, part: float, states: int
) -> None:
    """The limit is near the least memory that any plan needs, so that it decides."""
    levels, judged = flat(workers, bandwidth).levels, as_graph(profile)
    possible = list(every_plan(judged, levels, cost, range(1, workers + 1)))
    least = min(fullest(judged, p.stages, states) for p in possible)
    limit = max(1.0, math.floor(part * least))
    cluster = flat(workers, bandwidth, memory=limit)
    if least > limit:
        with pytest.raises(ValueError, match=f"give each at least {int(least):,} bytes"):
            pipedream(profile, cluster, cost=cost, optimizer_states=states)
    else:
        plan = pipedream(profile, cluster, cost=cost, optimizer_states=states)
        require_best(plan, judged, possible, limit, states)


@given(
    graphs(4) | chains(5),
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
    assume(workers < 6 or len(profile) < (4 if profile.values or workers > 6 else 6))
    levels, judged = levels_of(widths, rates), as_graph(profile)
    slowest = flat(workers, min(rates[: len(widths)])).levels
    possible = list(every_plan(judged, slowest, cost, range(1, workers + 1)))
    for k in range(len(levels)):
        inner = levels[: k + 1]
        possible += every_plan(judged, inner, cost, range(1, inner[-1].width + 1))
    limit = max(1.0, part * min(fullest(judged, p.stages, 1) for p in possible))
    plan = pipedream(profile, cluster_of(limit, levels), cost=cost)
    require_best(plan, judged, possible, limit, 1)


@given(graphs(5) | chains(7), st.integers(1, 5), bandwidths)
def test_a_straight_pipeline_has_one_worker_a_stage(
    profile: Profile, workers: int, bandwidth: float
) -> None:
    cluster, judged = flat(workers, bandwidth), as_graph(profile)
    possible = [
        plan
        for plan in every_plan(judged, cluster.levels, "paper", range(1, workers + 1))
        if all(replicas == 1 for _, _, replicas in plan.stages)
    ]
    plan = pipedream(profile, cluster, replicate=False)
    require_best(plan, judged, possible, math.inf, 1)


@given(graphs(5), st.integers(1, 4), st.integers(0, 2), st.sampled_from([1.0, 1.3]))
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


def layer(name: str, seconds: float, parameters: float = 0.0) -> LayerProfile:
    return LayerProfile(name, seconds, 2 * seconds, 0.0, parameters, 1.0)


# In the order of the numbers no two halves take as long.
BRANCHES = Profile(
    (
        layer("stem", 1),
        layer("a1", 1),
        layer("a2", 4),
        layer("b1", 2),
        layer("b2", 1),
        layer("+", 1),
    ),
    values=(
        ValueProfile(0, (1, 3), 2.0),
        ValueProfile(1, (2,), 2.0),
        ValueProfile(2, (5,), 2.0),
        ValueProfile(3, (4,), 2.0),
        ValueProfile(4, (5,), 2.0),
    ),
)


def test_a_stage_may_take_parts_of_both_branches() -> None:
    plan = pipedream(BRANCHES, flat(2, 1.0), replicate=False)
    assert plan.predicted_s == 15.0
    assert str(plan).splitlines()[0] == "1-1: layers 0-1, 3-4 on 1 worker; layers 2, 5 on 1 worker"
    assert plan.order == (0, 1, 3, 4, 2, 5)
    assert [list(plan.layers_of(stage)) for stage in plan.stages] == [[0, 1, 3, 4], [2, 5]]
    assert "the compute of layers 0-1, 3-4 on 1 worker (1.5e+04 ms)" in plan.why
    chain = replace(BRANCHES, values=())
    assert pipedream(chain, flat(2, 1.0), replicate=False).predicted_s == 15.0 + 3.0


def test_a_value_of_several_users_crosses_once() -> None:
    """The stem's output is read by both branches behind the cut: 2 bytes there and 2 back."""
    parts = tuple(replace(x, forward_s=1.0, backward_s=0.0) for x in BRANCHES.layers)
    heavy = replace(BRANCHES, layers=(replace(parts[0], forward_s=5.0), *parts[1:]))
    plan = pipedream(heavy, flat(2, 0.5), replicate=False)
    assert [sorted(plan.layers_of(stage)) for stage in plan.stages] == [[0], [1, 2, 3, 4, 5]]
    assert plan.predicted_s == 2 * 2.0 / 0.5
    assert "the transfer from layer 0 to 1 over link" in plan.why


def test_a_chain_written_as_a_graph_is_planned_as_the_chain() -> None:
    chain = Profile.uniform(6, output_bytes=3.0, parameter_bytes=5.0)
    values = (*(ValueProfile(k, (k + 1,), 3.0) for k in range(5)), ValueProfile(5, (), 3.0))
    graph = replace(chain, values=values)
    for workers, memory in ((3, math.inf), (5, math.inf), (4, 60.0)):
        cluster = flat(workers, 2.0, memory=memory)
        assert pipedream(graph, cluster) == pipedream(chain, cluster)


def test_of_too_many_states_those_in_the_layers_order_are_looked_at() -> None:
    branches, length = 4, 8
    count = branches * length + 2
    values = [ValueProfile(0, tuple(1 + length * b for b in range(branches)), 1.0)]
    for b in range(branches):
        first = 1 + length * b
        values += [ValueProfile(k, (k + 1,), 1.0) for k in range(first, first + length - 1)]
        values.append(ValueProfile(first + length - 1, (count - 1,), 1.0))
    wide = Profile(tuple(layer(str(k), 1.0) for k in range(count)), values=tuple(values))
    plan = pipedream(wide, flat(2, 1.0))
    assert plan.order == ()
    assert plan.stages == pipedream(wide.as_chain(), flat(2, 1.0)).stages
    assert "34 layers can be cut in more than 2,000 ways" in plan.why  # 1 + 9^4 + 1


def sets_of(states: States) -> list[frozenset[int]]:
    return [frozenset(np.flatnonzero(held).tolist()) for held in states.members]


@given(graphs(7))
def test_they_are_all_sets_closed_under_what_layers_read(profile: Profile) -> None:
    states = States(profile)
    found = sets_of(states)
    assert len(found) == len(states) == len(set(found))
    assert set(found) == set(closed_sets(profile))
    within = [[a < b for b in found] for a in found]
    assert states.within.tolist() == within
    assert not np.tril(states.within).any()  # what a state holds is numbered before it


@settings(deadline=None)
@given(graphs(5), st.data())
def test_peaks_are_those_of_the_profiles_order(profile: Profile, data: st.DataObject) -> None:
    states = States(profile)
    ranges = LayerRanges(profile, states)
    found = sets_of(states)
    drawn = st.lists(st.integers(-9, 9), min_size=len(states), max_size=len(states))
    height = np.array(data.draw(drawn), float)
    peaks = states.peaks(height)
    number = {held: k for k, held in enumerate(found)}
    for a, first in enumerate(found):
        for b, stop in enumerate(found):
            if not first <= stop:
                assert peaks[a, b] == np.inf
                continue
            order = list(ranges.layers_between(a, b))
            assert order == sorted(stop - first)
            passed = [number[first | set(order[:k])] for k in range(len(order) + 1)]
            assert max(height[k] for k in passed) == peaks[a, b]
