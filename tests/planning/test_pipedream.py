"""PipeDream's planner against every possible plan, tried one by one."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipekit import simulate
from pipekit.clusters import Cluster, Device, Level, flat
from pipekit.planning import pipedream
from pipekit.planning.objectives import Cost
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import pipedream as pipedream_schedule
from tests.planning.enumeration import splits
from tests.planning.profiles import profiles

GB = 1e9


class Possible(NamedTuple):
    """One plan: seconds a minibatch, and (first layer, layer after the last, workers) a stage."""

    seconds: float
    stages: tuple[tuple[int, int, int], ...]


def every_plan(
    profile: Profile, levels: Sequence[Level], cost: Cost, members: Sequence[int]
) -> Iterator[Possible]:
    """Yield all plans on so many members of the outermost level, and on all of those inside it."""

    def parts(level: int, first: int, stop: int, members: int) -> Iterator[Possible]:
        if level < 0:
            chosen = profile.layers[first:stop]
            compute = sum(x.forward_s + x.backward_s + x.update_s for x in chosen)
            yield Possible(compute, ((first, stop, 1),))
            return
        link = levels[level].bandwidth
        inside = levels[level - 1].width if level else 1
        for count in range(1, min(stop - first, members) + 1):
            for lengths, replicas in product(splits(stop - first, count), splits(members, count)):
                edges = [first + sum(lengths[:k]) for k in range(count + 1)]
                options = [
                    [
                        shared(part, profile, link, m, cost)
                        for part in parts(level - 1, a, b, inside)
                    ]
                    for a, b, m in zip(edges, edges[1:], replicas, strict=False)
                ]
                passing = [2 * profile.layers[e - 1].output_bytes / link for e in edges[1:-1]]
                for chosen_parts in product(*options):
                    yield Possible(
                        max([*passing, *(part.seconds for part in chosen_parts)]),
                        tuple(stage for part in chosen_parts for stage in part.stages),
                    )

    for count in members:
        yield from parts(len(levels) - 1, 0, len(profile), count)


def shared(part: Possible, profile: Profile, link: float, m: int, cost: Cost) -> Possible:
    """Return the part on m members that take turns."""
    first, stop = part.stages[0][0], part.stages[-1][1]
    weights = sum(x.parameter_bytes for x in profile.layers[first:stop])
    sync = 4 * (m - 1) * weights / m / link
    seconds = (max(part.seconds, sync) if cost == "paper" else part.seconds + sync) / m
    return Possible(seconds, tuple((a, b, r * m) for a, b, r in part.stages))


def fullest(profile: Profile, stages: Sequence[tuple[int, int, int]], states: float) -> float:
    """Return the bytes of the fullest worker."""
    found = []
    for number, (first, stop, replicas) in enumerate(stages):
        in_flight = math.ceil(sum(r for _, _, r in stages[number:]) / replicas)
        chosen = profile.layers[first:stop]
        weights = sum(x.parameter_bytes for x in chosen)
        activations = profile.layers[first - 1].output_bytes if first else profile.input_bytes
        activations += sum(x.saved_bytes for x in chosen)
        activations += 0 if chosen[-1].saves_output else chosen[-1].output_bytes
        peak = now = sum(x.buffer_bytes for x in chosen) + activations * in_flight
        for layer in reversed(chosen):  # gradients come as activations go
            now += layer.parameter_bytes - layer.saved_bytes
            peak = max(peak, now)
        found.append(peak + weights * (in_flight + states))
    return max(found)


def require_best(
    plan: Plan, profile: Profile, possible: Sequence[Possible], limit: float, states: float
) -> None:
    fits = [p for p in possible if fullest(profile, p.stages, states) <= limit]
    least = min(p.seconds for p in fits)
    assert plan.predicted_s == pytest.approx(least, rel=1e-12)
    equal = [p for p in fits if p.seconds <= least * (1 + 1e-12)]
    stages = tuple((s.first, s.stop, s.replicas) for s in plan.stages)
    assert stages in [p.stages for p in equal]
    assert plan.workers == min(sum(r for _, _, r in p.stages) for p in equal)
    assert plan.memory_bytes == fullest(profile, stages, states) <= limit


def cluster_of(memory: float, *levels: Level) -> Cluster:
    return Cluster("any", Device("any", memory, {}, math.inf), levels)


bandwidths = st.sampled_from([0.5, 1.0, 4.0, 20.0, math.inf])
costs = st.sampled_from(["paper", "released"])


@settings(max_examples=100)
@given(profiles(8), st.integers(1, 6), bandwidths, costs)
def test_flat_equals_brute_force(
    profile: Profile, workers: int, bandwidth: float, cost: Cost
) -> None:
    cluster = flat(workers, bandwidth)
    possible = list(every_plan(profile, cluster.levels, cost, range(1, workers + 1)))
    require_best(pipedream(profile, cluster, cost=cost), profile, possible, math.inf, 1)


@settings(max_examples=100)
@given(
    profiles(8),
    st.integers(1, 6),
    bandwidths,
    costs,
    st.floats(0.8, 2.0),
    st.integers(0, 2),
)
def test_flat_equals_brute_force_within_memory(
    profile: Profile, workers: int, bandwidth: float, cost: Cost, part: float, states: int
) -> None:
    """The limit is near the least memory that any plan needs, so that it decides."""
    links = flat(workers, bandwidth).levels
    possible = list(every_plan(profile, links, cost, range(1, workers + 1)))
    least = min(fullest(profile, p.stages, states) for p in possible)
    limit = max(1.0, math.floor(part * least))
    cluster = flat(workers, bandwidth, memory=limit)
    if least > limit:
        with pytest.raises(ValueError, match=f"give each at least {int(least):,} bytes"):
            pipedream(profile, cluster, cost=cost, optimizer_states=states)
    else:
        plan = pipedream(profile, cluster, cost=cost, optimizer_states=states)
        require_best(plan, profile, possible, limit, states)


@settings(max_examples=100)
@given(
    profiles(5),
    st.sampled_from([(2, 2), (2, 3), (3, 2), (1, 3), (2, 2, 2)]),
    st.tuples(bandwidths, bandwidths, bandwidths),
    costs,
    st.sampled_from([0.0, 1.0, 1.3, math.inf]),
)
def test_hierarchical_equals_brute_force(
    profile: Profile, widths: tuple[int, ...], rates: tuple[float, ...], cost: Cost, part: float
) -> None:
    """Hierarchical on the cluster and on its inner groups, or flat over the slowest link."""
    if len(widths) == 3:
        profile = Profile(profile.layers[:3], profile.rows, profile.input_bytes)
    levels = [
        Level(f"level {k}", width, rate)
        for k, (width, rate) in enumerate(zip(widths, rates, strict=False))
    ]
    workers = math.prod(widths)
    slowest = flat(workers, min(level.bandwidth for level in levels)).levels
    possible = list(every_plan(profile, slowest, cost, range(1, workers + 1)))
    for k in range(len(levels)):
        inner = levels[: k + 1]
        possible += every_plan(profile, inner, cost, range(1, inner[-1].width + 1))
    limit = max(1.0, part * min(fullest(profile, p.stages, 1) for p in possible)) if part else 1e9
    plan = pipedream(profile, cluster_of(limit, *levels), cost=cost)
    require_best(plan, profile, possible, limit, 1)


@settings(deadline=None)
@given(profiles(8), st.integers(1, 6), bandwidths)
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


# Two layers compute much and pass on much, the last has most parameters: VGG16 in small.
CONVOLUTIONS = Profile(
    (
        LayerProfile("conv1", 0.1, 0.2, 400e6, 1e6),
        LayerProfile("conv2", 0.1, 0.2, 20e6, 1e6),
        LayerProfile("linear", 0.1, 0.1, 1e6, 2000e6),
    ),
    rows=32,
)


def test_dear_parameters_stay_on_one_worker() -> None:
    plan = pipedream(CONVOLUTIONS, flat(4, 1 * GB))
    assert str(plan).splitlines()[0] == "3-1: layers 0-1 on 3 workers, layer 2 on 1 worker"
    assert plan.predicted_s == pytest.approx(0.6 / 3)
    assert plan.in_flight == 2  # NOAM: ceil(4 / 3)
    assert plan.microbatch_rows == 32


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


def test_workers_stay_idle_if_that_is_faster() -> None:
    heavy = Profile((LayerProfile("layer", 1.0, 1.0, parameter_bytes=1000.0),))
    assert pipedream(heavy, flat(4, 1.0)).config == "1"


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


def test_one_server_may_be_used_alone_and_not_by_all_its_workers() -> None:
    """Replicas would synchronise for long, and the network is too slow for activations."""
    heavy = LayerProfile("layer", 0.5, 0.5, output_bytes=1e6, parameter_bytes=1e12)
    cluster = cluster_of(1e15, Level("NVLink", 3, 10 * GB), Level("network", 2, 1e6))
    plan = pipedream(Profile((heavy, heavy)), cluster)
    assert plan.config == "1-1"
    assert plan.predicted_s == 1.0


def test_groups_that_share_minibatches_count_in_replicas() -> None:
    light = Profile((LayerProfile("a", 1.0, 1.0), LayerProfile("b", 1.0, 1.0, 0.0, 5.0)))
    cluster = cluster_of(1e12, Level("inside", 2, 100.0), Level("between", 3, 100.0))
    plan = pipedream(light, cluster)
    assert plan.workers == 6
    assert plan.predicted_s == pytest.approx(4 / 6)


@pytest.mark.parametrize("stages", [2, 4])
def test_a_straight_plan_takes_in_simulation_what_was_predicted(stages: int) -> None:
    """Seconds a minibatch, and bytes of the fullest worker, weight stashing included."""
    layers = [
        LayerProfile(str(i), 1.0 + i % 3, 2.0, 3.0, 5.0 + i, 7.0, i % 2 == 0, 1.0) for i in range(8)
    ]
    profile = Profile(tuple(layers), input_bytes=2.0)
    plan = pipedream(profile, flat(stages, math.inf), replicate=False, optimizer_states=2)
    schedule = pipedream_schedule(len(plan.stages)).take(40)
    trace = simulate(schedule, profile, plan, optimizer_states=2)
    ends = trace.frame[(trace.frame["op"] == "UPDATE") & (trace.frame["stage"] == 0)]["end_s"]
    steady = (ends.iloc[30] - ends.iloc[10]) / 20
    assert steady == pytest.approx(plan.predicted_s)
    assert trace.memory is not None
    assert trace.memory.peak_bytes == tuple(stage.memory_bytes for stage in plan.stages)


def test_a_plan_is_saved_and_read_back(tmp_path: Path) -> None:
    plan = pipedream(CONVOLUTIONS, flat(4, 1 * GB))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_the_memory_that_the_error_asks_for_is_enough_and_no_less_is() -> None:
    with pytest.raises(ValueError, match="no plan fits") as caught:
        pipedream(CONVOLUTIONS, flat(4, 1 * GB, memory=1 * GB))
    (text,) = re.findall(r"at least ([\d,]+) bytes", str(caught.value))
    least = int(text.replace(",", ""))
    assert pipedream(CONVOLUTIONS, flat(4, 1 * GB, memory=least)).memory_bytes == least
    with pytest.raises(ValueError, match="no plan fits"):
        pipedream(CONVOLUTIONS, flat(4, 1 * GB, memory=least - 1))


def test_an_unknown_cost() -> None:
    with pytest.raises(ValueError, match="cost must be 'paper' or 'released', not 'cheap'"):
        pipedream(CONVOLUTIONS, flat(4, 1 * GB), cost="cheap")  # type: ignore[arg-type]
