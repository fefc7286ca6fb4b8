"""The table of ops, row by row, as DESIGN and the papers have it."""

import pytest

from pipekit.schedules import OPS, Op, Payload, Task
from pipekit.schedules.ops import PASSES, adding, senders

F, B, BI, BW, U = *PASSES, Op.UPDATE


def test_the_letters_are_those_of_torchs_csv() -> None:
    assert [op.letter for op in (*PASSES, U)] == ["F", "B", "I", "W", "U"]
    assert OPS[:5] == [*PASSES, U]


def test_what_each_op_needs_on_its_own_worker() -> None:
    assert {op: op.own for op in (*PASSES, U)} == {F: None, B: F, BI: F, BW: BI, U: None}


def test_what_goes_from_stage_to_stage() -> None:
    there, back = Payload.ACTIVATION, Payload.GRADIENT
    sent = {F: there, B: back, BI: back, BW: None, U: None}
    assert {op: op.sends for op in (*PASSES, U)} == sent
    assert {op: op.receives for op in (*PASSES, U)} == sent
    assert (there.step, back.step) == (1, -1)
    assert {there: (F,), back: (B, BI)} == {p: senders(p) for p in Payload}


def test_which_passes_add_to_the_weights_gradient() -> None:
    assert adding() == (B, BW)


@pytest.mark.parametrize("part", [0, 4, 10])
def test_a_split_backward_frees_what_a_whole_one_does(part: float) -> None:
    change = {op: op.activation_bytes(10, part) for op in (*PASSES, U)}
    assert change == {F: 10, B: -10, BI: -part, BW: part - 10, U: 0}


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (Task(Op.FORWARD, 2, 5, 1), "F5 of stage 2"),
        (Task(Op.BACKWARD, 0, 5, 1), "B5 of stage 0"),
        (Task(Op.BACKWARD_INPUT, 0, 5, 1), "I5 of stage 0"),
        (Task(Op.BACKWARD_WEIGHT, 0, 5, 1), "W5 of stage 0"),
        (Task(Op.UPDATE, 1, 7, 2), "U2 of stage 1"),  # an update is known by what it produces
    ],
)
def test_a_task_says_its_name(task: Task, name: str) -> None:
    assert str(task) == name
