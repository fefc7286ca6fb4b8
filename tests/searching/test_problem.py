"""Orders are timed and weighed as the simulation does it with schedules."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipekit.clusters import Cluster, flat
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, flush, interleaved, zb_h1, zb_v
from pipekit.schedules.list_scheduler import Policy
from pipekit.searching.bound import bound
from pipekit.searching.local_search import TabuSearch
from pipekit.searching.placements import LENGTHS, greedy, policy_of
from pipekit.searching.problem import Problem
from pipekit.searching.question import Question

SCHEDULES = [
    flush(3, 5).take(1),
    zb_h1(3, 5).take(1),
    zb_v(6, 4).take(1),
    interleaved(6, 4, workers=3).take(1),
]


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
            parameter_bytes=3 + 4 * n,
        )
        for n in range(stages)
    )
    return Profile(layers, input_bytes=6)


def asked(
    schedule: Schedule, cap: float | None = None, links: bool = True
) -> tuple[Question, Problem]:
    workers = len(schedule.workers)
    cluster: Cluster | None = flat(workers, 12.0) if links else None
    plan = Plan.by_hand([1] * schedule.stages)
    m = schedule.microbatches
    question = Question(profile(schedule.stages), plan, cluster, cap, workers, m)
    homes = [home for (home,) in schedule.stage_workers]
    return question, question.problem(homes)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_makespan_is_the_simulated_one_where_links_are_not_contended_for(
    schedule: Schedule, whole: bool
) -> None:
    """The V's messages meet on links; the others' do not."""
    question, problem = asked(schedule)
    orders = problem.orders(schedule)
    orders = problem.merged(orders) if whole else orders
    assert problem.has(orders)
    timed = problem.timing(orders).makespan
    free = asked(schedule, links=False)[0].made(problem, orders).makespan_s
    linked = question.made(problem, orders).makespan_s
    assert free <= timed <= linked + 1e-9
    if schedule.name in ("PipeDream-Flush", "ZB-H1"):
        assert timed == pytest.approx(linked)
    assert bound(problem) <= timed


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_bytes_are_the_simulated_ones(schedule: Schedule) -> None:
    question, problem = asked(schedule, cap=1000.0)
    orders = problem.orders(schedule)
    peaks = question.made(problem, orders).peak_bytes
    constant = [1000 - room for room in problem.room]
    held = [problem.most_held(order) for order in orders]
    assert [a + b for a, b in zip(constant, held, strict=True)] == pytest.approx(peaks)


def test_whoever_waits_for_ever_has_no_makespan() -> None:
    _, problem = asked(flush(2, 2).take(1))
    orders = problem.orders(flush(2, 2).take(1))
    orders[0].reverse()
    assert problem.timing(orders).makespan == math.inf


def test_orders_have_every_pass_once_and_on_its_worker() -> None:
    _, problem = asked(flush(2, 2).take(1))
    orders = problem.orders(flush(2, 2).take(1))
    assert problem.has(orders)
    assert not problem.has(orders[::-1])
    assert not problem.has([orders[0], orders[1][:-1]])
    assert not problem.has([orders[0], [*orders[1], orders[1][-1]]])


def has_room_for_one(problem: Problem) -> bool:
    """Whether every worker has room for a microbatch on all its stages, and all gradients."""
    return all(
        room >= sum(problem.kept[0][s] + problem.gradients[s] for s in own)
        for worker, room in enumerate(problem.room)
        for own in [[s for s, home in enumerate(problem.homes) if home == worker]]
    )


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from(SCHEDULES), st.floats(60, 250))
def test_every_policy_finds_orders_that_fit_and_none_beats_the_bound(
    seed: int, schedule: Schedule, cap: float
) -> None:
    question, problem = asked(schedule, cap)
    chance = random.Random(seed)
    choice = tuple(map(chance.randrange, LENGTHS))
    orders = greedy(problem, policy_of(choice, problem))
    if not problem.has(orders):
        assert not has_room_for_one(problem)
        return
    assert problem.fit(orders)
    timed = problem.timing(orders).makespan
    assert bound(problem) <= timed < math.inf
    assert question.fits(question.made(problem, orders))


@pytest.mark.parametrize("schedule", SCHEDULES[1:4], ids=str)
def test_local_search_never_lengthens_and_keeps_within_room(schedule: Schedule) -> None:
    question, problem = asked(schedule, cap=250.0, links=False)
    policy = Policy([1.0] * problem.stages, forwards_first=True, waiting=1.0, patience=1.0)
    slow = greedy(problem, policy)
    before = problem.timing(slow).makespan
    search = TabuSearch(problem, slow)
    for _ in range(200):
        search.move()
    improved, after = search.orders, problem.timing(search.orders).makespan
    assert after == search.makespan < before
    assert problem.has(improved)
    assert problem.fit(improved)
    made = question.made(problem, improved)
    assert made.makespan_s == pytest.approx(after)
    assert question.fits(made)
