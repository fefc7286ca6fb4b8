"""Random small profiles in whole numbers, so that sums are exact, and every plan for one of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, product
from math import ceil
from typing import NamedTuple

from hypothesis import strategies as st

from pipekit.clusters import Level
from pipekit.planning.objectives import Cost
from pipekit.profiling import LayerProfile, Profile, SkipProfile

Stages = tuple[tuple[int, int, int], ...]
"""The first layer of each stage, the one behind its last, and its workers."""


class Possible(NamedTuple):
    """One plan: seconds a minibatch, and its stages."""

    seconds: float
    stages: Stages


def splits(items: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield every tuple of ``parts`` numbers, 1 or more each, that sum to ``items``."""
    for edges in combinations(range(1, items), parts - 1):
        yield tuple(b - a for a, b in pairwise([0, *edges, items]))


def sums(costs: Sequence[float], split: Sequence[int]) -> list[float]:
    """Return the sum of the costs of each part."""
    ends = [sum(split[:part]) for part in range(len(split) + 1)]
    return [sum(costs[a:b]) for a, b in pairwise(ends)]


_number = st.integers(0, 20).map(float)

layers = st.builds(
    LayerProfile,
    name=st.just("layer"),
    forward_s=_number,
    backward_s=_number,
    output_bytes=_number,
    parameter_bytes=_number,
    saved_bytes=_number,
    saves_output=st.booleans(),
    buffer_bytes=st.integers(0, 3).map(float),
    update_s=st.integers(0, 2).map(float),
)


def profiles(max_layers: int) -> st.SearchStrategy[Profile]:
    """Return profiles of 1 to ``max_layers`` layers."""
    return st.builds(
        Profile,
        layers=st.lists(layers, min_size=1, max_size=max_layers).map(tuple),
        rows=st.just(4),
        input_bytes=_number,
    )


@st.composite
def chains(draw: st.DrawFn, most_layers: int) -> Profile:
    """Draw profiles with skips between some of the layers."""
    profile = draw(profiles(most_layers))
    if len(profile) == 1:
        return profile
    ends = st.lists(st.integers(0, len(profile) - 1), min_size=2, max_size=2, unique=True)
    skips = [
        SkipProfile(f"skip {n}", min(pair), max(pair), draw(_number) + 1, draw(st.booleans()))
        for n, pair in enumerate(draw(st.lists(ends, min_size=1, max_size=4)))
    ]
    return replace(profile, skips=tuple(skips))


def every_plan(
    profile: Profile, levels: Sequence[Level], cost: Cost, members: Sequence[int]
) -> Iterator[Possible]:
    """Yield all plans on so many members of the outermost level, and on all of those inside it."""

    @cache
    def parts(level: int, first: int, stop: int, members: int) -> list[Possible]:
        if level < 0:
            layers = profile.layers[first:stop]
            compute = sum(x.forward_s + x.backward_s + x.update_s for x in layers)
            return [Possible(compute, ((first, stop, 1),))]
        link = levels[level].bandwidth
        inside = levels[level - 1].width if level else 1
        found = []
        for count in range(1, min(stop - first, members) + 1):
            for chosen, replicas in product(
                combinations(range(first + 1, stop), count - 1), splits(members, count)
            ):
                passing = [2 * crossing_bytes(profile, cut) / link for cut in chosen]
                options = [
                    [
                        _shared(part, profile, link, m, cost)
                        for part in parts(level - 1, a, b, inside)
                    ]
                    for (a, b), m in zip(pairwise([first, *chosen, stop]), replicas, strict=True)
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
        yield from parts(len(levels) - 1, 0, len(profile), count)


def crossing_bytes(profile: Profile, cut: int) -> float:
    """Return the bytes that are made before a layer and read by it or behind it."""
    under_way = [skip.bytes for skip in profile.skips if skip.source < cut <= skip.destination]
    return profile.layers[cut - 1].output_bytes + sum(under_way)


def _shared(part: Possible, profile: Profile, link: float, m: int, cost: Cost) -> Possible:
    """Return the part on m members that take turns."""
    layers = profile.layers[part.stages[0][0] : part.stages[-1][1]]
    weights = sum(layer.parameter_bytes for layer in layers)
    sync = 4 * (m - 1) * weights / m / link
    seconds = (max(part.seconds, sync) if cost == "paper" else part.seconds + sync) / m
    return Possible(seconds, tuple((a, b, r * m) for a, b, r in part.stages))


def bytes_of(profile: Profile, stages: Stages, states: float) -> list[float]:
    """Return the most bytes of a worker of each stage."""
    workers = [replicas for _, _, replicas in stages]
    in_flight = [ceil(sum(workers[k:]) / workers[k]) for k in range(len(workers))]
    return [
        _worker_bytes(profile, first, stop, count, states)
        for (first, stop, _), count in zip(stages, in_flight, strict=True)
    ]


def _worker_bytes(profile: Profile, first: int, stop: int, in_flight: int, states: float) -> float:
    own = profile.layers[first:stop]
    weights = sum(layer.parameter_bytes for layer in own)
    activations = sum(layer.saved_bytes for layer in own)
    activations += profile.layers[first - 1].output_bytes if first else profile.input_bytes
    activations += own[-1].output_bytes * (not own[-1].saves_output)
    for skip in profile.skips:
        if skip.source < first <= skip.destination < stop:
            activations += skip.bytes
        if first <= skip.source < stop <= skip.destination and not skip.saved:
            activations += skip.bytes
    peak = now = sum(layer.buffer_bytes for layer in own) + activations * in_flight
    for layer in reversed(own):  # gradients come as activations go
        now += layer.parameter_bytes - layer.saved_bytes
        peak = max(peak, now)
    return peak + weights * (in_flight + states)
