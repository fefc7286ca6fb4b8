from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.papers.pipedream_2bw.timelines import closed_forms as tl
from pipekit.papers.timelines import starts
from pipekit.traces import Trace


@given(st.integers(1, 6), st.integers(0, 6))
def test_the_closed_forms_are_the_tables_slots(depth: int, more: int) -> None:
    m = depth + more
    for closed, table in (
        (tl.gpipe_starts(depth, m), schedules.gpipe(depth, m).take(1)),
        (tl.one_f_one_b_starts(depth, 2 * m), schedules.two_bw(depth, m).take(2)),
        (tl.one_f_one_b_starts(depth, 2 * m), schedules.pipedream(depth).take(2 * m)),
    ):
        assert starts(Trace.from_schedule(table)) == closed


def test_input_7_is_on_worker_3_at_21() -> None:
    """Section 3.1, counted from 1."""
    assert tl.one_f_one_b_starts(4, 8)["FORWARD", 2, 6] == 21 - 1


def test_versions_read_as_the_ledger_lists_them() -> None:
    assert [tl.version_read(k, 4) for k in range(1, 17)] == [0] * 8 + [1] * 4 + [2] * 4


def test_what_reads_other_versions_is_told_apart() -> None:
    assert tl.reads_as_printed(schedules.two_bw(3, 4).take(4), 4)
    assert not tl.reads_as_printed(schedules.two_bw(3, 4).take(4), 5)
    assert not tl.reads_as_printed(schedules.flush(3, 4).take(4), 4)
    assert tl.forward_and_backward_agree(schedules.flush(3, 4).take(4))
    assert not tl.forward_and_backward_agree(schedules.pipedream(3, stashing=False).take(6))


def test_a_version_comes_after_each_batch_and_one_batch_late_is_the_last_to_read_it() -> None:
    table = schedules.two_bw(2, 3).take(3)
    assert tl.makes_versions_of(table) == [[2, 5, 8]] * 2
    assert [task.microbatch for task in tl.last_reader(table, 0)] == [5, 5]


@pytest.mark.parametrize("depth", [2, 3, 4, 6])
def test_too_few_microbatches_read_versions_that_are_not_there(depth: int) -> None:
    refused = [m for m in range(1, depth + 3) if tl.refused(partial(tl.unguarded, depth, m, 5))]
    assert refused == list(range(1, depth - 1))


def test_unguarded_is_2bw_where_2bw_is_allowed() -> None:
    assert tl.unguarded(3, 4, 3).workers == schedules.two_bw(3, 4).take(3).workers
