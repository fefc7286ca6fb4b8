"""Ends of updates and of backwards, and the time between them, on schedules drawn in slots."""

from pipekit import schedules
from pipekit.papers.steady import backward_ends, fastest_interval, mean_interval, update_ends
from pipekit.traces import Trace

FLUSH = Trace.from_schedule(schedules.flush(2, 2, 3))
"""worker 0 | F0 F1 .  B0 -  .  B1 -^ ...: a batch takes 9 slots, the last backward of its 2
microbatches ends with it."""


def test_batches_that_end_in_a_flush_all_take_equally_long() -> None:
    assert update_ends(FLUSH) == [9, 18, 27]
    assert update_ends(FLUSH, worker=1) == [7, 16, 25]
    assert mean_interval(update_ends(FLUSH), 0, 2) == 9
    assert fastest_interval([0, 5, 9, 16]) == 4


def test_a_group_of_microbatches_ends_with_its_last_backward() -> None:
    assert backward_ends(FLUSH) == [6, 9, 15, 18, 24, 27]
    assert backward_ends(FLUSH, stage=1, group=2) == [7, 16, 25]
