"""What the tables of Figures 3 and 8 promise, and that a broken promise is noticed."""

from pipekit import schedules
from pipekit.papers.pipedream.timelines import start_up
from pipekit.papers.timelines import EQUAL_SLOTS, ThreeWays
from pipekit.schedules import Schedule
from pipekit.traces import Trace


def slots(schedule: Schedule) -> Trace:
    return Trace.from_schedule(schedule, EQUAL_SLOTS)


def test_figures_3_and_8_are_told_from_each_other() -> None:
    one, four = slots(schedules.model_parallel(4).take(3)), slots(schedules.pipedream(4).take(12))
    assert start_up.figure3_finding(one).value is True
    assert start_up.figure3_finding(slots(schedules.pipedream(4).take(3))).value is False
    assert start_up.figure8_finding(four).value is True
    late = slots(schedules.pipedream(4, in_flight=[5, 3, 2, 1]).take(12))
    assert start_up.figure8_finding(late).value is False
    assert start_up.underuse_finding(ThreeWays(one, one, one), seed=0).value == 1
    assert start_up.underuse_finding(ThreeWays(one, one, four), seed=0).value == 4


def test_one_f_one_b_starts_with_noam_and_never_idles() -> None:
    trace = slots(schedules.pipedream(4).take(12))
    admitted, gap, busy, unequal = start_up.steady_findings(trace, 40, 0.002)
    assert (admitted.value, gap.value) == (4, 0)
    assert busy.value[0] == 100
    assert 0 < busy.value[1] <= 100
    assert unequal.value == 100


def test_promises_of_1f1b_rr_hold_for_all_replicas_and_not_for_gpipe() -> None:
    tables = start_up.replicated_tables(24)
    assert len(tables) == 37
    assert [found.value for found in start_up.round_robin_findings(tables)] == [True] * 4
    tables[2, 1, 1] = schedules.pipedream([2, 1, 1], in_flight=[5, 2, 1]).take(24)
    assert [found.value for found in start_up.round_robin_findings(tables)] == [*[True] * 3, False]
    tables[2, 1, 1] = schedules.gpipe(3, 12).take(2)
    assert start_up.round_robin_findings(tables)[0].value is False
