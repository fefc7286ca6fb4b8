"""Model parallelism without pipelining: PipeDream's Figure 3, GPipe's Figure 2b."""

from inspect import cleandoc

import pytest
from hypothesis import given

from pipekit.schedules import ScheduleError, check, model_parallel, slots
from tests.schedules.strategies import microbatches, stages


def test_one_minibatch_at_a_time() -> None:
    assert str(model_parallel(4).take(2)) == cleandoc("""
        # model parallel
        time     | 1  2  3  4  5  6  7  8  9  10 11 12 13 14 15 16 17 18 19 20 21 22 23 24
        worker 0 | F0 .  .  .  .  .  .  .  .  .  B0 -^ F1 .  .  .  .  .  .  .  .  .  B1 -^
        worker 1 | .  F0 .  .  .  .  .  .  B0 -^ .  .  .  F1 .  .  .  .  .  .  B1 -^
        worker 2 | .  .  F0 .  .  .  B0 -^ .  .  .  .  .  .  F1 .  .  .  B1 -^
        worker 3 | .  .  .  F0 B0 -^ .  .  .  .  .  .  .  .  .  F1 B1 -^
        """)


@given(stages, microbatches)
def test_one_worker_works_at_a_time(d: int, minibatches: int) -> None:
    """A quarter of four accelerators, as GPipe's Figure 2b shows."""
    passes = sorted(
        tuple(span) for worker in slots(model_parallel(d).take(minibatches)) for span in worker
    )
    ends = [end for _, end in passes]
    starts = [start for start, _ in passes]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    assert ends[-1] == minibatches * d * (1 + 2)


@given(stages, microbatches)
def test_minibatch_k_reads_version_k_and_one_is_in_flight(d: int, minibatches: int) -> None:
    schedule = model_parallel(d).take(minibatches)
    assert all(version in (k, k + 1) for tasks in schedule.workers for _, _, k, version in tasks)
    report = check(schedule)
    assert report.peak_in_flight == report.peak_versions == (1,) * d


@pytest.mark.parametrize(("d", "batches"), [(0, 1), (1, 0)])
def test_counts_below_1_are_refused(d: int, batches: int) -> None:
    with pytest.raises(ScheduleError, match="must be a whole number of at least 1"):
        model_parallel(d).take(batches)
