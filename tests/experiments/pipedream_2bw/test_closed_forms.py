"""Closed forms of Figures 1 to 3 are the tables' own slots and versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.pipedream_2bw import closed_forms as forms
from pipekit import schedules
from pipekit.traces import Trace


@given(st.integers(1, 6), st.integers(0, 6))
def test_the_closed_forms_are_the_tables_slots(depth: int, more: int) -> None:
    m = depth + more
    for closed, table in (
        (forms.gpipe_starts(depth, m), schedules.gpipe(depth, m).take(1)),
        (forms.one_f_one_b_starts(depth, 2 * m), schedules.two_bw(depth, m).take(2)),
        (forms.one_f_one_b_starts(depth, 2 * m), schedules.pipedream(depth).take(2 * m)),
    ):
        passes = Trace.from_schedule(table).passes.set_index(["op", "stage", "microbatch"])
        assert passes["start_s"].to_dict() == closed


def test_input_7_is_on_worker_3_at_21() -> None:
    """Section 3.1, counted from 1."""
    assert forms.one_f_one_b_starts(4, 8)["FORWARD", 2, 6] == 21 - 1


def test_versions_read_as_the_ledger_lists_them() -> None:
    assert [forms.version_read(k, 4) for k in range(1, 17)] == [0] * 8 + [1] * 4 + [2] * 4


@pytest.mark.parametrize("depth", [2, 3, 4, 6])
def test_too_few_microbatches_read_versions_that_are_not_there(depth: int) -> None:
    for m in range(1, depth - 1):
        with pytest.raises(schedules.ScheduleError):
            schedules.check(forms.unguarded(depth, m, 5))
    for m in range(max(1, depth - 1), depth + 3):
        schedules.check(forms.unguarded(depth, m, 5))


def test_unguarded_is_2bw_where_2bw_is_allowed() -> None:
    assert forms.unguarded(3, 4, 3).workers == schedules.two_bw(3, 4).take(3).workers
