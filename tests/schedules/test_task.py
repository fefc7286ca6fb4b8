"""What a task is called in messages and pictures."""

import pytest

from pipekit.schedules import Op, Task


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
