import pytest

from pipekit.explore.by_hand.marks import faults, marked
from pipekit.schedules import ScheduleError, check, parse

SOUND = """\
worker 0 | F0 F1 .  .  B0 -  B1 -^
worker 1 | .  F0 B0 -  F1 B1 -^"""


def cells(picture: str) -> list[str]:
    """Return the cells that are marked in a picture that is refused."""
    with pytest.raises(ScheduleError) as refused:
        check(parse(picture))
    return [picture[start:stop] for start, stop in faults(picture, refused.value)]


@pytest.mark.parametrize(
    ("old", "new", "marks"),
    [
        ("F1 B1 -^", "B1 F1 -^", ["B1", "B1", "F1"]),  # who waits in what, and for what
        ("B0 -  F1", "X0 -  F1", ["X0"]),
        ("F0 F1", "F1 F1", ["F1", "F1"]),
        ("B1 -^\nw", "B1 -\nw", ["worker 0"]),  # what is missing has no cell: the row's name
        ("F0 B0", "F0 B0:1", ["B0:1", "^"]),
        ("worker 1 |", "worker 1", ["worker 1 .  F0 B0 -  F1 B1 -^"]),
        ("B0 -  F1", "B0 -  Z1", ["Z1"]),
        ("F0 B0 -  F1 B1", "F0 I0 W0 F1 I1", ["worker 1"]),  # no W1
        ("F0 B0 -  F1 B1", "F0 B0 I0 F1 B1", ["B0", "I0"]),
        ("F0 B0 -  F1 B1", "F0 I0 W0 F1 W1 I1", ["B1", "W1", "I1"]),
    ],
)
def test_the_cells_are_marked_that_the_error_names(old: str, new: str, marks: list[str]) -> None:
    assert cells(SOUND.replace(old, new)) == marks


def test_of_equal_tasks_only_that_of_the_worker_at_fault_is_marked() -> None:
    picture = "worker 0 | F0 B0^\nworker 1 stage 0 | ^0"
    with pytest.raises(ScheduleError, match="worker 1 has U1 of stage 0 and no forward") as error:
        check(parse(picture))
    assert [(a, picture[a:b]) for a, b in faults(picture, error.value)] == [
        (picture.rindex("^"), "^0")
    ]


def test_marks_are_html_and_what_they_mark_is_escaped() -> None:
    picture = "worker 0 | F0 <b>"
    with pytest.raises(ScheduleError) as error:
        parse(picture)
    assert marked(picture, error.value) == "worker 0 | F0 <mark>&lt;b&gt;</mark>"
