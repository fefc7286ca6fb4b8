"""Where stages are put: by hand, by chance and by the search; how long it looks, and what it says."""

import random
from dataclasses import replace
from itertools import pairwise, permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipekit as pk
from pipekit.clusters import Cluster, Device, Level, flat
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.searching.placements import neighbour, renumbered
from pipekit.searching.problem import Placement
from pipekit.searching.question import Question
from tests.searching.test_search import unequal

MESSAGE = 1e-6
DEVICE = Device("any device", float("inf"), {}, float("inf"))
SERVERS = Cluster(
    "two servers", DEVICE, (Level("inside", 2, 1e12), Level("network", 2, MESSAGE / 1.5))
)
BY_HAND = [2, 3, 2, 3, 0, 0, 0, 1]
"""The costliest stage alone, and few messages between the servers."""


def with_head(stages: int, head: float) -> Profile:
    """Blocks of one second forward and two backward, and a last one of several."""
    seconds = [1.0] * (stages - 1) + [head]
    return Profile(
        tuple(
            LayerProfile(f"block {n}", s, 2 * s, output_bytes=MESSAGE, saved_bytes=1)
            for n, s in enumerate(seconds)
        )
    )


def searched(**how: Any) -> pk.searching.Searched:
    """Seven microbatches' activations of a stage fit on a worker."""
    profile, plan = with_head(8, 3.0), Plan.by_hand([1] * 8)
    return pk.search(profile, plan, SERVERS, 7.1, microbatches=8, workers=4, **how)


@pytest.mark.long
def test_it_places_stages_as_well_as_a_person() -> None:
    by_hand = searched(placement=BY_HAND, seconds=0.3)
    assert by_hand.makespan_s == 82.0
    assert searched(seconds=4.0).makespan_s <= by_hand.makespan_s


def test_more_time_is_never_worse_and_the_bound_holds() -> None:
    each = [searched(seconds=seconds, seed=3) for seconds in (0.05, 0.1, 0.2)]
    times = [found.makespan_s for found in each]
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]
    for found in each:
        assert (
            found.bound_s
            <= found.makespan_s
            == pytest.approx(
                pk.simulate(found.schedule, with_head(8, 3.0), None, SERVERS).makespan_s
            )
        )
        assert found.gap == found.makespan_s / found.bound_s - 1
    for before, found in pairwise(each):
        assert before.step <= found.step
        if before.makespan_s == found.makespan_s:  # nothing better came: the same one was found
            assert before.step == found.step


def test_a_named_method_is_found_in_step_0() -> None:
    found = pk.search(unequal(2, 0), Plan.by_hand([1, 1]), microbatches=2, seconds=0.0)
    assert (found.step, found.seconds) == (0, 0.0)
    assert str(found).endswith(f"(gap {found.gap:.1%})")
    assert "found by name" in str(found)


@settings(max_examples=5)
@given(st.integers(0, 10**6))
def test_no_schedule_on_any_placement_is_shorter_than_the_bound(seed: int) -> None:
    chance = random.Random(seed)
    stages = chance.randint(2, 6)
    workers, m = chance.randint(1, min(3, stages)), chance.randint(1, 5)
    layers = [
        LayerProfile(f"layer {n}", chance.uniform(0.2, 4), chance.uniform(0.2, 4))
        for n in range(stages)
    ]
    plan = Plan.by_hand([1] * stages)
    least = Question(Profile(tuple(layers)), plan, None, None, workers, m).least_s
    every = [p for p in product(range(workers), repeat=stages) if len(set(p)) == workers]
    for placement in chance.sample(every, min(4, len(every))):
        found = pk.search(
            Profile(tuple(layers)),
            plan,
            microbatches=m,
            workers=workers,
            placement=placement,
            seconds=0.02,
        )
        assert least <= found.makespan_s * (1 + 1e-9)


def test_workers_that_are_alike_change_their_numbers_in_groups() -> None:
    assert renumbered((2, 0, 2, 1), [1]) == (0, 1, 0, 2)
    assert renumbered((3, 3, 2, 0, 1), [2, 1]) == (0, 0, 1, 2, 3)
    assert renumbered((3, 0, 1, 2), [2, 1]) == (0, 2, 3, 1)
    assert renumbered((1, 0), []) == (1, 0)


@pytest.mark.parametrize("cluster", [SERVERS, flat(4, 1.0), None], ids=["servers", "flat", "free"])
def test_placements_that_are_alike_have_the_same_bound(cluster: Cluster | None) -> None:
    asked = Question(with_head(5, 2.0), Plan.by_hand([1] * 5), cluster, None, 4, 3)
    for placement in permutations((0, 1, 2, 3, 3)):
        again = renumbered(placement, asked.alike)
        one, other = (replace(asked, placement=each).least_s for each in (placement, again))
        assert one == pytest.approx(other)


def test_caps_that_differ_make_workers_differ() -> None:
    caps = [1.0, 2.0]
    assert Question(with_head(4, 1.0), Plan.by_hand([1] * 4), flat(2, 1.0), caps, 2, 1).alike == []


def test_every_placement_is_near_another() -> None:
    """By steps from one to the next, each worker keeping a stage."""
    chance = random.Random(0)
    seen = set[Placement]()
    now: Placement = (0, 1, 0, 1)
    for _ in range(300):
        now = neighbour(now, 2, [1], chance)
        seen.add(now)
    assert seen == {(0, *rest) for rest in product(range(2), repeat=3) if 1 in rest}
