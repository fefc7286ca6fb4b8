"""Planning problems whose answers are known by hand, by the equations and by brute force."""

import math
import random
import time
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from experiments.pipedream import workflow
from experiments.pipedream.workflow import SAME, Problem, candidates, random_problem
from experiments.study.costs import with_costs
from pipekit.models import image_mlp
from pipekit.profiling import LayerProfile, Profile
from tests.profiling.test_measured import CLOCK, Sleeper, taking


def recurrence(problem: Problem) -> dict[tuple[int, int], float]:
    """Return A(j, m), j layers on m machines, by the paper's cases as printed."""
    best: dict[tuple[int, int], float] = {}
    for j, m in product(range(1, len(problem.profile) + 1), range(1, problem.machines + 1)):
        best[j, m] = problem.stage_s(0, j, m)
        for i, last in product(range(1, j), range(1, m)):
            parts = problem.transfer_s(i - 1), problem.stage_s(i, j, last)
            best[j, m] = min(best[j, m], max(best[i, m - last], *parts))
    return best


def planned_s(problem: Problem, layers: int, machines: int) -> float:
    profile = Profile(problem.profile.layers[:layers])
    return problem._replace(profile=profile, machines=machines).plan().predicted_s


def test_pythons_loops_take_longer_for_more_layers_and_workers() -> None:
    assert 0 < workflow.one_by_one_s(8, 4) < workflow.one_by_one_s(32, 16) / 10


def test_the_equations_by_hand() -> None:
    # 3 s with few weights, 1 s with many; 1 byte between them
    layers = (
        LayerProfile("a", 1, 2, output_bytes=1, parameter_bytes=0.5),
        LayerProfile("b", 0.5, 0.5, output_bytes=9, parameter_bytes=30),
    )
    problem = Problem(Profile(layers), 3, 1.0)
    assert problem.stage_s(0, 1, 2) == 1.5
    assert problem.stage_s(1, 2, 2) == 4 * 30 / 2 / 2
    assert problem.transfer_s(0) == 2
    best = recurrence(problem)
    assert best[1, 3] == 1.0
    assert best[2, 1] == 4.0
    assert best[2, 3] == 2.0  # 2-1, of which the transfer is the slowest
    assert problem.brute_force() == problem.plan().predicted_s == 2.0


def test_every_plan_is_tried_once() -> None:
    plans = list(workflow.every_plan(4, 3))
    expected = sum(math.comb(3, k - 1) * math.comb(2, k - 1) for k in (1, 2, 3))
    assert len({tuple(plan) for plan in plans}) == len(plans) == expected
    assert all(sum(m for _, _, m in plan) == 3 and plan[-1][1] == 4 for plan in plans)


def test_the_planner_is_the_papers_equations() -> None:
    """T(i->j, m), A(j, m) and its base cases, NOAM (section 3.2), and brute force.

    One layer may leave machines idle, so that A(1, m) is compared with the best of m' <= m.
    """
    draw, decided_by_transfers = random.Random(3), 0
    close = partial(pytest.approx, rel=1e-12)
    for problem in (random_problem(draw, 6, 5) for _ in range(40)):
        larger = with_costs(problem.profile, output_bytes=lambda layer: 4 * layer.output_bytes)
        problem = problem._replace(profile=larger)
        plan, best, layers = problem.plan(), recurrence(problem), len(problem.profile)
        each = range(1, problem.machines + 1)
        free = recurrence(problem._replace(profile=with_costs(larger, output_bytes=lambda _: 0)))
        decided_by_transfers += min(free[layers, m] for m in each) < plan.predicted_s / 1.001
        assert plan.predicted_s == close(problem.brute_force())
        assert plan.predicted_s == close(min(best[layers, m] for m in each))
        for s in plan.stages:
            assert s.predicted_s == close(problem.stage_s(s.first, s.stop, s.replicas))
        assert plan.in_flight == -(-plan.workers // plan.replicas[0])
        for i in range(1, layers + 1):
            assert planned_s(problem, i, 1) == close(problem.stage_s(0, i, 1))
        for m in each:
            assert planned_s(problem, 1, m) == close(
                min(problem.stage_s(0, 1, n) for n in each[:m])
            )
    assert decided_by_transfers >= 5


def test_random_problems_are_within_their_limits() -> None:
    draw = random.Random(0)
    made = [random_problem(draw, 3, 2) for _ in range(30)]
    assert {len(problem.profile) for problem in made} == {1, 2, 3}
    assert {problem.machines for problem in made} == {1, 2}
    assert min(problem.bandwidth for problem in made) >= 4


def test_the_candidates_counted_are_those_of_the_loops() -> None:
    # For each M' <= M and each share of the first stage below M', a matrix of N-1 x N-1: a first
    # stage has a layer, and so has what is behind it.
    assert candidates(5, [4]) == 16 * (1 + 2 + 3)
    assert candidates(6, [1]) == 0
    sizes = np.array([8, 16, 32])
    counts = [candidates(int(n), [3]) for n in sizes]
    slope, _ = np.polyfit(np.log(sizes - 1), np.log(counts), 1)
    assert slope == pytest.approx(2)


def test_a_minibatch_times_every_layer_and_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([9.0, 2.0])  # the first of two products warms up
    monkeypatch.setattr(time, "process_time", CLOCK)
    monkeypatch.setattr(torch, "mm", lambda a, b: CLOCK.sleep(next(took)))
    model = nn.Sequential(nn.Linear(2, 2), Sleeper(0.25, 0.5), Sleeper(1, 3))
    found = workflow.minibatch(model, torch.rand(4, 2))
    names = ["0 Linear", "1 Sleeper", "2 Sleeper", SAME]
    assert found == dict(zip(names, map(taking, (0, 0.75, 4, 2)), strict=True))


@pytest.mark.long
def test_two_workers_profile_the_same_layers() -> None:
    one, other = workflow.pair_of_runs(image_mlp, torch.rand(4, 1, 28, 28), minibatches=3)
    assert len(one) == len(other) == 3
    assert list(one) == list(other)
    assert list(one)[-1] == SAME
    assert (one > 0).to_numpy().all()
