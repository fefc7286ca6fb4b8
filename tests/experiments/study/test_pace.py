"""The same run at another pace."""

import pytest

from experiments.study.costs import emulate_at_pace, faster_links, stretched
from pipekit import simulate
from pipekit.clusters import flat
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, flush, replicate
from tests.emulation.own_time import own_time

PROFILE = Profile.uniform(2, 0.1, 0.2, output_bytes=4e6, parameter_bytes=2e7)


@pytest.mark.parametrize(
    "schedule", [flush(2, 3).take(1), replicate(flush(2, 2).take(2), 2)], ids=str
)
def test_compute_and_links_sped_up_alike_only_change_the_pace(schedule: Schedule) -> None:
    width = len(schedule.workers) // 2
    plan, cluster = Plan.by_hand([1, 1], replicas=[width] * 2), flat(2 * width, 1e8)
    trace = simulate(schedule, PROFILE, plan, cluster)
    quick = simulate(schedule, stretched(PROFILE, 1 / 3), plan, faster_links(cluster, 3))
    assert quick.makespan_s == pytest.approx(trace.makespan_s / 3)
    assert quick.memory is not None
    assert trace.memory is not None
    assert quick.memory.peak_bytes == trace.memory.peak_bytes


def test_an_emulation_at_another_pace_is_told_in_the_profiles_own_seconds() -> None:
    plan, cluster = Plan.by_hand([1, 1]), flat(2, 1e9)
    with own_time():
        run = emulate_at_pace(flush(2, 2).take(1), PROFILE, plan, cluster, faster=5)
    expected = simulate(flush(2, 2).take(1), PROFILE, plan, cluster).makespan_s
    assert run.trace.makespan_s == pytest.approx(expected)
    assert run.trace.label == "emulated"
