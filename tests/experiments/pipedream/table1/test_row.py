"""A row of Table 1: its systems simulated and emulated, with one thing changed, and its claims."""

import pytest

from experiments.pipedream.table1.plans import FOUR, Sent, Setting, sent
from experiments.pipedream.table1.row import BSP, SYSTEMS, Ran, Row, run
from experiments.study.claims import Emulated
from pipekit import Plan, Profile
from pipekit.clusters import flat
from tests.emulation.own_time import own_time

LAYERS = Profile.uniform(4, 0.04, 0.08, output_bytes=1e5, parameter_bytes=3.2e7)
"""0.48 s a minibatch on one machine."""


def ran(*seconds: float, sent: float) -> Ran:
    return Ran(Emulated(seconds[0], seconds), Sent(sent, 0))


def row_of(setting: Setting, **systems: Ran) -> Row:
    return Row(setting, LAYERS, flat(4, 1e9), runs=systems)


FASTER = row_of(FOUR, BSP=ran(0.24, 0.2, 0.3, sent=100), PipeDream=ran(0.08, 0.1, 0.06, sent=25))
"""Emulated three times: BSP takes 0.24 s in the middle, the plan 0.08 s."""


def test_speedups_are_over_one_machine() -> None:
    assert FASTER.speedup(BSP) == pytest.approx(2)
    assert FASTER.speedup() == pytest.approx(6)
    assert FASTER.over_bsp() == pytest.approx(3)
    assert FASTER.saved() == pytest.approx(75)
    assert FASTER.in_round(1).over_bsp() == pytest.approx(2)


def test_what_is_not_emulated_is_simulated() -> None:
    simulated = FASTER.simulated
    assert simulated.speedup(BSP) == pytest.approx(0.48 / simulated.seconds(BSP)) != 2
    assert [FASTER.seconds(name) > 0 for name in SYSTEMS] == [True] * 4
    free = Row(FOUR, LAYERS, flat(4, float("inf")))
    assert free.speedup(BSP) == pytest.approx(4)


def test_an_emulation_takes_what_the_profile_says() -> None:
    plan = Plan.by_hand([2, 2])
    with own_time():
        timed = run(LAYERS, plan, flat(2, 1e9), minibatches=12, faster=12, repeats=3).timed
    assert timed.label == "emulated"
    assert timed.seconds == pytest.approx(timed.simulated_s)


@pytest.mark.parametrize("balance", [[3, 1], [4], [1, 1, 2]])
def test_the_engines_counters_equal_the_closed_form(balance: list[int]) -> None:
    replicas = {1: [4], 2: [2, 1], 3: [1, 1, 1]}[len(balance)]
    plan = Plan.by_hand(balance, replicas=replicas)
    found = run(LAYERS, plan, flat(sum(replicas), 1e9), minibatches=4, faster=100)
    assert found.sent == pytest.approx(sent(LAYERS, plan))
