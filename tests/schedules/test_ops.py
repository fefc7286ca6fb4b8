"""The table of ops, row by row, as DESIGN and the papers have it."""

import pytest

from pipekit.schedules import OPS, Op, Payload
from pipekit.schedules.ops import ADDING, PASSES, SENDERS

F, B, BI, BW, U = Op


def test_the_letters_are_those_of_torchs_csv() -> None:
    assert [op.value for op in Op] == ["F", "B", "I", "W", "U"]
    assert set(OPS) == set(Op)


def test_what_each_op_needs_on_its_own_worker() -> None:
    assert {op: rule.own for op, rule in OPS.items()} == {F: None, B: F, BI: F, BW: BI, U: None}


def test_what_goes_from_stage_to_stage() -> None:
    there, back = Payload.ACTIVATION, Payload.GRADIENT
    sent = {F: there, B: back, BI: back, BW: None, U: None}
    assert {op: rule.sends for op, rule in OPS.items()} == sent
    assert {op: rule.receives for op, rule in OPS.items()} == sent
    assert (there.step, back.step) == (1, -1)
    assert {there: (F,), back: (B, BI)} == SENDERS


def test_which_passes_add_to_the_weights_gradient() -> None:
    assert PASSES == (F, B, BI, BW)
    assert ADDING == (B, BW)


@pytest.mark.parametrize("part", [0, 4, 10])
def test_a_split_backward_frees_what_a_whole_one_does(part: float) -> None:
    change = {op: rule.activation_bytes(10, part) for op, rule in OPS.items()}
    assert change == {F: 10, B: -10, BI: -part, BW: part - 10, U: 0}
