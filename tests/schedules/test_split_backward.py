"""A backward in two parts, all the way: one picture, and by hand what everything says of it."""

from dataclasses import replace

import pytest

from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import OPS, Op, ScheduleError, Task, check, draw, lower, parse
from pipekit.schedules.ops import PASSES
from pipekit.simulation import simulate
from tests.schedules.examples import SPLIT

LAYER = LayerProfile(
    "layer",
    forward_s=1,
    backward_s=9,
    backward_input_s=1,
    backward_weight_s=1,
    output_bytes=2,
    saved_bytes=10,
    saves_output=True,
    input_only_bytes=4,
)
PROFILE = Profile((LAYER,) * 3, input_bytes=2)
"""A microbatch keeps 12 bytes on each stage, of which the part for the input frees 4."""


def test_its_bytes_over_time_are_those_by_hand() -> None:
    """Of worker 0: a forward's start adds 12, an I's end takes 4, a W's end 8."""
    trace = simulate(SPLIT, PROFILE)
    assert trace.memory is not None
    assert trace.memory.peak_bytes == (44, 40, 28)
    own = trace.memory.frame.query("worker == 0").set_index("time_s")["activations"]
    batch = {0: 12, 1: 24, 2: 36, 6: 44, 8: 40, 9: 32, 10: 28, 11: 20, 12: 12, 13: 8, 14: 12}
    assert own[own.index <= 14].to_dict() == batch
    assert own.iloc[-1] == 0


def test_gradients_begin_with_the_first_part_for_the_weights() -> None:
    profile = replace(PROFILE, layers=(replace(LAYER, parameter_bytes=100),) * 3)
    trace = simulate(SPLIT, profile)
    assert trace.memory is not None
    own = trace.memory.frame.query("worker == 0").set_index("time_s")["gradients"]
    assert own[6] == 0
    assert own[8] == 100 - 6  # W0 begins; as its gradient comes, its last 6 bytes go
    assert own[9] == 100
    assert own[14] == 0


def test_whatever_is_drawn_in_two_parts_can_name_stage_and_version() -> None:
    picture = """
        # mine; backward may read another version than forward
        worker 0 | F0 I0 W0^ F1 F1@1 I1@1 W1@1^1@1 I1:1 W1^
        worker 1 stage 1 | . F0 I0 W0^ . . . ^1
        """
    schedule = parse(picture)
    assert schedule.workers[0][4:8] == (
        Task(Op.FORWARD, 0, 1, 1),
        Task(Op.FORWARD, 1, 1, 0),
        Task(Op.BACKWARD_INPUT, 1, 1, 0),
        Task(Op.BACKWARD_WEIGHT, 1, 1, 0),
    )
    assert parse(draw(schedule)) == schedule


def test_both_parts_read_the_version_of_the_forward() -> None:
    with pytest.raises(ScheduleError, match="I1 of stage 0 reads version 0 and W1 of stage 0 ver"):
        check(parse("worker 0 | F0 F1 I0 I1 W0^ W1:1^"))
    report = check(parse("worker 0 | F0 F1 I0 I1 W0^ W1^"))
    assert report.peak_versions == (2,)  # version 0 is kept until W1
    slots = [step.slot for step in lower(parse("worker 0 | F0 F1 I0 I1 W0^ W1^"))[0].head]
    assert slots == [0, 0, 0, 0, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        ("worker 0 | F0 I0^0", "no worker has W0 of stage 0"),
        ("worker 0 | F0 W0^", "no worker has I0 of stage 0"),
        ("worker 0 | F0 W0 I0^0", "waits in W0 of stage 0 for I0 of stage 0, which comes later"),
        ("worker 0 | F0 I0^0 W0", "waits in U1 of stage 0 for W0 of stage 0, which comes later"),
        ("worker 0 | F0 W0^\nworker 1 stage 0 | F1 I0 B1^", "worker 0 has W0 of stage 0 and"),
        ("worker 0 | F0 I0 B1^\nworker 1 stage 0 | F1 W0^1", "worker 0 has B1 of stage 0 and"),
        ("worker 0 | F0 I0^1\nworker 1 stage 0 | F1 B1 W0^", "worker 1 has W0 of stage 0 and"),
    ],
)
def test_what_is_wrong_with_the_parts_is_said(picture: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check(parse(picture))


def test_a_worker_may_begin_with_an_update_of_others_gradients() -> None:
    schedule = parse("""
        worker 0 | F0 I0 W0^ ^1
        worker 1 stage 0 | . ^0 F1 I1 W1^
        """)
    check(schedule)
    assert parse(draw(schedule)) == schedule


F, B, BI, BW, U = *PASSES, Op.UPDATE


def test_the_letters_are_those_of_torchs_csv() -> None:
    assert [op.letter for op in (*PASSES, U)] == ["F", "B", "I", "W", "U"]
    assert OPS[:5] == [*PASSES, U]


@pytest.mark.parametrize("part", [0, 4, 10])
def test_a_split_backward_frees_what_a_whole_one_does(part: float) -> None:
    change = {op: op.activation_bytes(10, part) for op in (*PASSES, U)}
    assert change == {F: 10, B: -10, BI: -part, BW: part - 10, U: 0}


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (Task(Op.FORWARD, 2, 5, 1), "F5 of stage 2"),
        (Task(Op.UPDATE, 1, 7, 2), "U2 of stage 1"),  # an update is known by what it produces
    ],
)
def test_a_task_says_its_name(task: Task, name: str) -> None:
    assert str(task) == name
