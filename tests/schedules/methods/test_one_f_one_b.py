"""One forward, one backward: the order that three methods share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import Op
from pipekit.schedules.methods.one_f_one_b import alternate


def order(stage: int, stages: int, microbatches: range) -> str:
    return " ".join(f"{op.value}{k}" for op, k in alternate(microbatches, stages - stage))


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5"),
        (1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5"),
        (2, "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5"),
        (3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"),
    ],
)
def test_a_stage_admits_what_fills_the_pipeline_and_then_alternates(
    stage: int, expected: str
) -> None:
    assert order(stage, 4, range(6)) == expected


def test_fewer_microbatches_than_stages_all_enter_before_the_first_leaves() -> None:
    assert order(0, 4, range(2)) == "F0 F1 B0 B1"
    assert order(2, 4, range(2)) == "F0 F1 B0 B1"
    assert order(3, 4, range(2)) == "F0 B0 F1 B1"


def test_a_later_batch_keeps_its_microbatch_numbers() -> None:
    assert order(0, 2, range(4, 7)) == "F4 F5 B4 F6 B5 B6"


def test_no_microbatches_no_passes() -> None:
    assert order(0, 2, range(0)) == ""


@given(st.integers(1, 8), st.integers(0, 20), st.data())
def test_each_microbatch_once_in_order_with_at_most_the_stages_left_in_flight(
    stages: int, microbatches: int, data: st.DataObject
) -> None:
    stage = data.draw(st.integers(0, stages - 1))
    passes = list(alternate(range(microbatches), stages - stage))
    forwards = [k for op, k in passes if op is Op.FORWARD]
    backwards = [k for op, k in passes if op is Op.BACKWARD]
    assert forwards == backwards == list(range(microbatches))
    flying = peak = 0
    for op, _ in passes:
        flying += 1 if op is Op.FORWARD else -1
        assert flying >= 0
        peak = max(peak, flying)
    assert peak == min(stages - stage, microbatches)
