"""Random small graphs, in whole numbers so that sums are exact, and every plan for one of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, product
from math import ceil
from typing import Any, NamedTuple

from hypothesis import strategies as st

from pipekit.clusters import Level
from pipekit.planning.objectives import Cost
from pipekit.plans import Plan
from pipekit.profiling import Profile, ValueProfile
from tests.planning.enumeration import layers as any_layer
from tests.planning.enumeration import splits

State = frozenset[int]
_number = st.integers(0, 20).map(float)


class Possible(NamedTuple):
    """One plan: seconds a minibatch, and (layers before, layers up to its end, workers) a stage."""

    seconds: float
    stages: tuple[tuple[State, State, int], ...]


@st.composite
def graphs(draw: st.DrawFn, most_layers: int, *, one_value_each: bool = False) -> Profile:
    """Draw graphs of 2 or more layers, with several sources and ends, inputs read late, values of
    several users, and values that are not saved (if a layer may make more than one)."""
    count = draw(st.integers(2, most_layers))
    values: list[ValueProfile] = []
    for source in range(count - 1):
        behind = st.lists(st.integers(source + 1, count - 1), max_size=3).map(tuple)
        for _ in range(1 if one_value_each else draw(st.integers(0, 2))):
            users = draw(behind)
            saved = one_value_each or not users or draw(st.booleans())
            values.append(ValueProfile(source, users, draw(_number), saved))
    if not one_value_each:
        anywhere = st.lists(st.integers(0, count - 1), min_size=1, max_size=3).map(tuple)
        values += [
            ValueProfile(None, users, draw(_number))
            for users in draw(st.lists(anywhere, max_size=2))
        ]
    values.append(ValueProfile(count - 1, (), draw(_number)))
    costs = tuple(draw(any_layer) for _ in range(count))
    relayed = not one_value_each and draw(st.booleans())
    return Profile(costs, 4, draw(_number), values=tuple(values), relayed=relayed)


def closed_sets(profile: Profile) -> list[State]:
    """Return every set of layers that holds, with a layer, also what it reads."""
    reads = [
        (user, value.source)
        for value in profile.values
        for user in value.users
        if value.source is not None
    ]
    every = (
        frozenset(chosen)
        for size in range(len(profile) + 1)
        for chosen in combinations(range(len(profile)), size)
    )
    return [held for held in every if all(b in held for a, b in reads if a in held)]


def crossing_bytes(profile: Profile, state: State) -> float:
    """Return the bytes of the values made within a state, or given to it, and read behind it."""
    return sum(
        value.bytes
        for value in profile.values
        if (value.source is None or value.source in state) and set(value.users) - state
    )


def every_plan(
    profile: Profile, levels: Sequence[Level], cost: Cost, members: Sequence[int]
) -> Iterator[Possible]:
    """Yield all plans on so many members of the outermost level, and on all of those inside it."""
    states = closed_sets(profile)

    @cache
    def parts(level: int, first: State, stop: State, members: int) -> list[Possible]:
        if level < 0:
            layers = [profile.layers[k] for k in stop - first]
            compute = sum(x.forward_s + x.backward_s + x.update_s for x in layers)
            return [Possible(compute, ((first, stop, 1),))]
        link = levels[level].bandwidth
        inside = levels[level - 1].width if level else 1
        found = []
        between = [state for state in states if first < state < stop]
        for count in range(1, min(len(stop - first), members) + 1):
            for chosen, replicas in product(
                combinations(between, count - 1), splits(members, count)
            ):
                edges: list[State] = [first, *chosen, stop]
                if not all(a < b for a, b in pairwise(edges)):
                    continue
                passing = [2 * crossing_bytes(profile, edge) / link for edge in edges[1:-1]]
                options = [
                    [
                        _shared(part, profile, link, m, cost)
                        for part in parts(level - 1, a, b, inside)
                    ]
                    for (a, b), m in zip(pairwise(edges), replicas, strict=True)
                ]
                for chosen_parts in product(*options):
                    found.append(
                        Possible(
                            max([*passing, *(part.seconds for part in chosen_parts)]),
                            tuple(stage for part in chosen_parts for stage in part.stages),
                        )
                    )
        return found

    for count in members:
        yield from parts(len(levels) - 1, frozenset(), frozenset(range(len(profile))), count)


def _shared(part: Possible, profile: Profile, link: float, m: int, cost: Cost) -> Possible:
    """Return the part on m members that take turns."""
    layers = part.stages[-1][1] - part.stages[0][0]
    weights = sum(profile.layers[k].parameter_bytes for k in layers)
    sync = 4 * (m - 1) * weights / m / link
    seconds = (max(part.seconds, sync) if cost == "paper" else part.seconds + sync) / m
    return Possible(seconds, tuple((a, b, r * m) for a, b, r in part.stages))


def fullest(profile: Profile, stages: Sequence[tuple[State, State, int]], states: float) -> float:
    """Return the bytes of the fullest worker, each stage's layers in the profile's order."""
    return max(
        _worker_bytes(profile, first, tuple(sorted(stop - first)), in_flight, states)
        for (first, stop, _), in_flight in zip(stages, _in_flight(stages), strict=True)
    )


def bytes_of(profile: Profile, plan: Plan, states: float) -> list[float]:
    """Return the bytes of a worker of each stage of a plan, in the plan's order."""
    stages = stages_of(plan)
    return [
        _worker_bytes(profile, first, tuple(plan.layers_of(stage)), in_flight, states)
        for stage, (first, _, _), in_flight in zip(
            plan.stages, stages, _in_flight(stages), strict=True
        )
    ]


def stages_of(plan: Plan) -> tuple[tuple[State, State, int], ...]:
    """Return a plan's stages as sets of the profile's layers."""
    order: Any = plan.order or range(plan.layers)
    return tuple(
        (frozenset(order[: stage.first]), frozenset(order[: stage.stop]), stage.replicas)
        for stage in plan.stages
    )


def _in_flight(stages: Sequence[tuple[State, State, int]]) -> list[int]:
    workers = [replicas for _, _, replicas in stages]
    return [ceil(sum(workers[k:]) / workers[k]) for k in range(len(workers))]


def _worker_bytes(
    profile: Profile, first: State, order: tuple[int, ...], in_flight: int, states: float
) -> float:
    own = set(order)
    weights = sum(profile.layers[k].parameter_bytes for k in order)
    activations = sum(profile.layers[k].saved_bytes for k in order)
    if not first:
        activations += profile.input_bytes
    if profile.relayed:  # all that crosses comes in, and goes out
        activations += crossing_bytes(profile, first) if first else 0
        unsaved = replace(profile, values=tuple(v for v in profile.values if not v.saved))
        activations += crossing_bytes(unsaved, first | own)
    for value in () if profile.relayed else profile.values:
        given = bool(first) and (value.source is None or value.source in first)
        used = bool(own & set(value.users))
        sent = bool(set(value.users) - first - own) and (value.source in own or (given and used))
        activations += value.bytes * (given and used)
        activations += value.bytes * (sent and not value.saved)
    buffers = sum(profile.layers[k].buffer_bytes for k in order)
    peak = now = buffers + activations * in_flight
    for k in reversed(order):  # gradients come as activations go
        now += profile.layers[k].parameter_bytes - profile.layers[k].saved_bytes
        peak = max(peak, now)
    return peak + weights * (in_flight + states)
