"""A row of Table 1: its systems simulated and emulated, with one thing changed, and its claims."""

from dataclasses import replace
from typing import Any

import pytest

from experiments import pipedream as names
from experiments import study
from experiments.pipedream.table1 import table
from experiments.pipedream.table1.plans import Sent, sent
from experiments.pipedream.table1.row import BSP, SYSTEMS, Ran, Row, run
from experiments.pipedream.table1.rows import FOUR, Setting
from experiments.pipedream.table1.table import changes
from experiments.study.claims import Changed, Emulated
from pipekit import Plan, Profile, simulate
from pipekit.clusters import Cluster, flat
from pipekit.engine import Run
from pipekit.schedules import Schedule
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


def test_the_median_of_the_emulations_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each emulation is the simulation of a machine that is so many times as slow."""
    slowness, real, paces = iter([1.0, 1.3, 1.04, 1.02]), study.emulate_at_pace, []

    def instead(
        schedule: Schedule, profile: Profile, plan: Plan, cluster: Cluster, faster: float
    ) -> Run:
        paces.append(faster)
        with own_time():
            made = real(schedule, profile, plan, None, faster)
        slow = study.stretched(profile, next(slowness))
        return replace(made, other_trace=simulate(schedule, slow, plan, cluster))

    monkeypatch.setattr(study, "emulate_at_pace", instead)
    layers, free = Profile.uniform(4, 0.01, 0.02), flat(2, float("inf"))
    timed = run(layers, Plan.by_hand([2, 2]), free, minibatches=12, faster=3, repeats=3).timed
    assert paces == [3, 3, 1.5, 1.5]  # one was 30 % too slow
    assert timed.simulated_s == pytest.approx(0.06)
    assert timed.seconds == pytest.approx(1.02 * 0.06)
    assert timed.only(1).seconds == pytest.approx(1.04 * 0.06)


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


def test_the_changes_of_a_row_change_one_thing_each() -> None:
    row = replace(FASTER, planned_for=FOUR.machines())
    changed = dict(changes(row))
    assert changed.keys() <= names.INSTEAD.keys()
    kept = {cause for cause, other in changed.items() if other.plan == row.plan}
    assert kept >= {names.TOO_FEW_IN_FLIGHT, names.NOMINAL, names.LINK_TIME, names.OVERLAP}
    elsewhere = {cause for cause, other in changed.items() if other.cluster != row.cluster}
    refitted = {names.OWN_BANDWIDTH, names.KNOWN_LAYERS, names.SHARDS}
    assert elsewhere == {names.NOMINAL, names.LINK_TIME, names.DUPLEX, *refitted}
    assert changed[names.NOMINAL].cluster.levels[0].used_bandwidth == 25e9 / 8
    assert changed[names.LINK_TIME].speedup(BSP) == pytest.approx(4)
    assert changed[names.PLANNED_FOR].chosen == replace(row, planned_for=row.cluster).chosen
    published = replace(changed[names.OWN_BANDWIDTH], profile=Row.of(FOUR).profile)
    assert published.speedup(BSP) == pytest.approx(1.47)
    assert published.compute_s == pytest.approx(32 * 128.62e-3 / 16)
    assert changed[names.TIMES].compute_s != pytest.approx(published.compute_s)


class Recorded(list[Any]):
    """Stands in for a notebook: keeps what it is given of each claim."""

    def claim(self, *what: Any, **how: Any) -> Any:
        def record(function: Any) -> Any:
            found = [function(rows) for rows in how["over"].found]
            because: list[Changed] = how["because"]
            causes = {each.cause: function(*each.values) for each in because}
            self.append((*what[:2], found, function(how["over"].simulated), causes))
            return function

        return record


def test_a_claim_is_evaluated_in_rounds_and_with_each_change_of_its_rows() -> None:
    notebook, slow = Recorded(), replace(FASTER.simulated, cluster=flat(4, 1e7))
    others = {names.NOMINAL: slow, names.PLAN: slow, names.TIMES: FASTER.simulated}
    changed = {cause: {"vgg16-4A": other} for cause, other in others.items()}
    changed[names.ACTIVATIONS] = {"vgg16-8A": slow}
    claim = table.Claims(notebook, changed, {}, repeats=2)  # type: ignore[arg-type]

    @claim("a", FASTER, circular=[names.PLAN])
    def over_bsp(row: Row) -> float:
        return row.over_bsp()

    ((name, label, found, simulated, because),) = notebook
    assert (name, label) == ("pipedream-a", "emulated")
    assert found == pytest.approx([3, 2])
    assert simulated == pytest.approx(3)
    assert because == {names.NOMINAL: slow.over_bsp(), names.TIMES: FASTER.simulated.over_bsp()}
