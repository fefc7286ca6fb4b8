import pytest

from pipekit.explore.marks import faults, marked
from pipekit.schedules import ScheduleError, check, parse

SOUND = """\
worker 0 | F0 F1 .  .  B0 -  B1 -^
worker 1 | .  F0 B0 -  F1 B1 -^"""


def cells(picture: str) -> list[str]:
    """Return the cells that are marked in a picture that is refused."""
    with pytest.raises(ScheduleError) as refused:
        check(parse(picture))
    return [picture[start:stop] for start, stop in faults(picture, str(refused.value))]


@pytest.mark.parametrize(
    ("old", "new", "marks"),
    [
        ("F1 B1 -^", "B1 F1 -^", ["B1", "B1", "F1"]),  # who waits in what, and for what
        ("B0 -  F1", "X0 -  F1", ["X0"]),
        ("F0 F1", "F1 F1", ["F1", "F1"]),
        ("B1 -^\nw", "B1 -\nw", ["worker 0"]),  # what is missing has no cell: the row's name
        ("F0 B0", "F0 B0:1", ["B0:1", "^"]),
        ("worker 1 |", "worker 1", ["worker 1 .  F0 B0 -  F1 B1 -^"]),
    ],
)
def test_the_cells_are_marked_that_the_error_names(old: str, new: str, marks: list[str]) -> None:
    assert cells(SOUND.replace(old, new)) == marks


def test_tasks_of_other_stages_and_updates_are_found() -> None:
    picture = "worker 0 stage 1 | F0@0 F0 B0^^ B0@0^@0"
    message = "worker 0: U2 of stage 1 follows U1 of stage 1, and B0 of stage 0"
    assert [picture[a:b] for a, b in faults(picture, message)] == ["^", "^", "B0@0"]


def test_marks_are_html_and_what_they_mark_is_escaped() -> None:
    assert marked("worker 0 | <b>", "line 1: cannot read '<b>'; a cell is") == (
        "worker 0 | <mark>&lt;b&gt;</mark>"
    )


def test_an_error_that_names_nothing_marks_nothing() -> None:
    assert marked(SOUND, "something else") == SOUND
