"""Orders are timed as the simulation times schedules, whole backwards included."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.clusters import flat
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, chimera, flush, interleaved, zb_h1, zb_v
from pipekit.schedules.flushed import flushed
from pipekit.searching.greedy import greedy, policies
from pipekit.searching.local_search import improve
from pipekit.searching.problem import Problem
from pipekit.simulation import simulate
from pipekit.simulation.costs import stage_costs

SCHEDULES = [flush(3, 5), zb_h1(3, 5), zb_v(6, 4), interleaved(6, 4, workers=3), chimera(4, 6)]


def profile(stages: int) -> Profile:
    layers = tuple(
        LayerProfile(
            f"layer {n}",
            forward_s=1 + n % 3,
            backward_s=4,
            backward_input_s=2 + n % 2,
            backward_weight_s=2,
            output_bytes=6,
            saved_bytes=10,
            input_only_bytes=4,
        )
        for n in range(stages)
    )
    return Profile(layers, input_bytes=6)


def problem(schedule: Schedule, whole: bool = True, room: float = math.inf) -> Problem:
    costs = profile(schedule.stages)
    replicas = [len(homes) for homes in schedule.stage_workers]
    plan = Plan.by_hand([1] * schedule.stages, replicas=replicas)
    links = flat(len(schedule.workers), 12.0)
    found = stage_costs(schedule, costs, plan)
    return Problem.of(schedule, found, links, [room] * len(schedule.workers), whole)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_makespan_is_the_simulated_one_where_links_are_not_contended_for(
    schedule: Schedule, whole: bool
) -> None:
    """Chimera's and the V's messages meet on links; the others' do not."""
    asked = problem(schedule, whole)
    orders = asked.orders(schedule)
    assert asked.has(orders)
    made = Schedule(*flushed("made", asked.passes(orders), asked.microbatches, 1))
    costs = profile(made.stages)
    plan = Plan.by_hand([1] * made.stages, replicas=[len(homes) for homes in made.stage_workers])
    free = simulate(made, costs, plan).makespan_s
    timed = asked.timing(orders).makespan
    linked = simulate(made, costs, plan, flat(len(made.workers), 12.0)).makespan_s
    assert free <= timed <= linked + 1e-9
    if schedule.name in ("PipeDream-Flush", "ZB-H1"):
        assert timed == pytest.approx(linked)
    assert asked.bound <= timed


def test_whoever_waits_for_ever_has_no_makespan() -> None:
    asked = problem(flush(2, 2))
    orders = asked.orders(flush(2, 2))
    orders[0].reverse()
    assert asked.timing(orders).makespan == math.inf


@given(st.integers(0, 10**6), st.sampled_from(range(len(SCHEDULES) - 1)))
def test_every_policy_finds_orders_that_fit(seed: int, number: int) -> None:
    schedule = SCHEDULES[number]
    tried = list(policies(len(schedule.workers)))
    asked = problem(schedule, room=60.0)
    orders = greedy(asked, tried[seed % len(tried)])
    assert asked.has(orders)
    assert sum(map(len, orders)) == 3 * asked.stages * asked.microbatches
    assert asked.timing(orders).makespan < math.inf
    assert all(asked.fits(worker, order) for worker, order in enumerate(orders))


def test_local_search_never_lengthens_and_keeps_within_room() -> None:
    asked = problem(SCHEDULES[1], room=60.0)
    slow = greedy(asked, next(policies(3)))
    before = asked.timing(slow).makespan
    told: list[float] = []
    improved = improve(asked, [*slow], time.monotonic() + 0.3, tell=told.append)
    after = asked.timing(improved).makespan
    assert after < before
    assert told[-1] == after
    assert sorted(map(sorted, improved)) == sorted(map(sorted, slow))
    assert all(asked.fits(worker, order) for worker, order in enumerate(improved))
