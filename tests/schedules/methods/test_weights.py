"""Sharded weights: who has whose when; tests/schedules/formats holds the tables against torch's."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import Profile, simulate
from pipekit.schedules import (
    DISCARD,
    GATHER,
    SUM,
    Op,
    Schedule,
    ScheduleError,
    check,
    flush,
    looped_bfs,
    parse,
    read_csv,
    sharded,
    sharded_bfs,
    slots,
    two_bw,
)
from pipekit.simulation.costs import Costs, Shards
from tests.schedules.methods.test_all_methods import METHODS


def test_breadth_first_gathers_each_stage_twice_a_batch() -> None:
    assert (
        sharded_bfs(6, 2, workers=2).take(1).workers[0]
        == parse("""
        worker 0 | ./G0/G0@2 F0 F1/D1/G0@4 F0@2 F1@2 F0@4 F1@4 B0@4 - B1@4 -/S1@4/D1@4/G0 B0@2 - B1@2 -/S1@2/D1@2 B0 - B1 -/S1/D1^@4^@2^
        """).workers[0]
    )


@given(st.sampled_from(sorted(METHODS)), st.integers(1, 3), st.integers(1, 5), st.integers(1, 3))
def test_any_method_that_flushes_can_be_sharded(name: str, p: int, m: int, gathered: int) -> None:
    """No pass is without its weights, no worker has more than asked for, no gradient is left out."""
    plain = METHODS[name](p, m).take(1)
    schedule = sharded(plain, gathered)
    check(schedule, joint_updates=True)
    assert sharded(METHODS[name](p, m), gathered).take(1) == schedule
    for tasks, before in zip(schedule.workers, plain.workers, strict=True):
        assert tuple(t for t in tasks if t.op not in (GATHER, DISCARD, SUM)) == before
        here: set[int] = set()
        summed: set[int] = set()
        for task in tasks:
            if task.op is GATHER:
                assert task.stage not in here
                here.add(task.stage)
            elif task.op is DISCARD:
                here.remove(task.stage)
            elif task.op is SUM:
                summed.add(task.stage)
            elif task.op is Op.UPDATE:
                assert task.stage in summed
            else:
                assert task.stage in here
                assert not (task.op.adds_gradient and task.stage in summed)
            assert len(here) <= gathered + bool(plain.overlaps)
        assert not here
    assert parse(str(schedule)) == schedule == read_csv(schedule.to_csv())


def test_gathers_hide_behind_passes_as_long_as_their_links_let_them() -> None:
    """A stage's forward of 8 microbatches takes 8 s: beside it the next stage's weights come in."""
    profile = Profile.uniform(6, parameter_bytes=60)
    made = sharded_bfs(6, 8, workers=2)

    def end(seconds: float) -> float:
        shards = Shards(4, 60 * 3 / 4 / seconds)
        run = simulate(made, Costs(profile, shards=shards), batches=1)
        return float(run.frame["end_s"].max())

    ideal = max(float(each[:, 1].max()) for each in slots(looped_bfs(6, 8, workers=2).take(1)))
    first_and_last = 2  # no pass is there to hide the first gather and the last sum
    assert end(4) == pytest.approx(ideal + 4 * first_and_last)
    assert end(16) > ideal + 16 * first_and_last


def test_a_worker_has_two_stages_weights_and_a_share_of_the_others() -> None:
    profile = Profile.uniform(8, parameter_bytes=40)
    run = simulate(sharded_bfs(8, 4, workers=2), Costs(profile, shards=Shards(4, 1e9)), batches=1)
    assert run.memory is not None
    held = run.memory.frame.groupby("worker")["weights"].max()
    assert held.to_list() == [2 * 40 + 2 * 10] * 2


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (two_bw(2, 2), r"reads weight versions \[0, 1"),
        (flush(2, 2).take(2), r"reads weight versions \[0, 1\]"),
        (replace(flush(2, 2).take(1), head=((), ())), "reads weight versions"),
    ],
)
def test_what_is_no_batch_is_refused(schedule: Schedule, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        sharded(schedule)


def test_a_gather_is_of_the_version_that_its_passes_read() -> None:
    broken = [*sharded(flush(1, 1)).take(2).workers[0]]
    place = next(n for n, task in enumerate(broken) if task.op is GATHER and task.version == 1)
    del broken[place]
    with pytest.raises(ScheduleError, match="F1 of stage 0, which needs weights there, and D0"):
        check(Schedule((tuple(broken),)))
