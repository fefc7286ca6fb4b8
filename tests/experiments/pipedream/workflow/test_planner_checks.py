import math
import random

import pytest
import torch

from experiments.pipedream.workflow import planner_checks as checks
from pipekit.profiling import LayerProfile, Profile


def problem(bandwidth: float = 1.0) -> checks.Instance:
    """Return two layers by hand: 3 s with few weights, 1 s with many; 1 byte between them."""
    layers = (
        LayerProfile("a", 1, 2, output_bytes=1, parameter_bytes=0.5),
        LayerProfile("b", 0.5, 0.5, output_bytes=9, parameter_bytes=30),
    )
    return checks.Instance(Profile(layers), 3, bandwidth)


def test_the_equations_by_hand() -> None:
    instance = problem()
    assert instance.stage_s(0, 1, 2) == 1.5
    assert instance.stage_s(1, 2, 2) == 4 * 30 / 2 / 2
    assert instance.transfer_s(0) == 2
    table = instance.recurrence()
    assert table[1, 3] == 1.0
    assert table[2, 1] == 4.0
    assert table[2, 3] == 2.0  # 2-1, of which the transfer is the slowest
    assert instance.brute_force() == 2.0


def test_every_plan_is_tried_once() -> None:
    plans = list(checks._every_plan(4, 3))
    expected = sum(math.comb(3, k - 1) * math.comb(2, k - 1) for k in (1, 2, 3))
    assert len({tuple(plan) for plan in plans}) == len(plans) == expected
    assert all(sum(m for _, _, m in plan) == 3 and plan[-1][1] == 4 for plan in plans)


def test_the_planner_is_the_recurrence_and_brute_force() -> None:
    draw = random.Random(3)
    problems = [checks.random_instance(draw, 6, 5) for _ in range(40)]
    table = checks.check_plans(problems)
    assert table["config"].str.contains("-").sum() > 5
    assert checks.largest_error(table, "brute force") < 1e-12
    assert checks.largest_error(table, "recurrence") < 1e-12
    assert table["stage error"].max() < 1e-12
    assert table["NOAM"].all()
    assert all(map(checks.base_cases_hold, problems[:5]))


def test_a_wrong_planner_is_noticed() -> None:
    draw = random.Random(5)
    problems = [checks.random_instance(draw, 4, 4) for _ in range(30)]
    plans = checks.check_plans(problems)
    right = [each.value for each in checks.findings(plans, problems)]
    assert right[0] == [pytest.approx(0, abs=1e-12), 30]
    assert right[1:] == [True] * 5
    several = plans["config"].str.contains("-")
    plans.loc[several, "planner"] *= 1.1
    wrong = {each.claim: each.value for each in checks.findings(plans, problems)}
    assert wrong["pipedream-planner-optimal-substructure"][0] == pytest.approx(0.1)
    assert not wrong["pipedream-eq-planner-multi-stage"]
    assert wrong["pipedream-eq-planner-single-stage"]
    table = checks.check_plans([problem()])
    assert checks.largest_error(table.assign(planner=2.2), "brute force") == pytest.approx(0.1)


def test_random_problems_are_within_their_limits() -> None:
    draw = random.Random(0)
    made = [checks.random_instance(draw, 3, 2) for _ in range(30)]
    assert {instance.layers for instance in made} == {1, 2, 3}
    assert {instance.machines for instance in made} == {1, 2}
    assert torch.tensor([instance.bandwidth for instance in made]).min() >= 4
