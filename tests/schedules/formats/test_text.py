"""Pictures: drawn, and read back."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.schedules import Op, Schedule, ScheduleError, Task, check, draw, parse, read_csv
from tests.schedules.reference import refusal
from tests.schedules.strategies import SLIPS, Slip, methods, slipped, training_methods

F, B, U = Op.FORWARD, Op.BACKWARD, Op.UPDATE


F01 = Task(F, 0, 0, 0), Task(F, 0, 1, 0)


@pytest.mark.parametrize(
    ("row", "tasks"),
    [
        ("F0 . . B0 - - .", [Task(F, 0, 0, 0), Task(B, 0, 0, 0)]),
        # a hat: an update up to the highest microbatch that went backward, whichever went last
        ("F0 F1 B0 B1^", [*F01, Task(B, 0, 0, 0), Task(B, 0, 1, 0), Task(U, 0, 1, 1)]),
        ("F0 F1 B1 B0^", [*F01, Task(B, 0, 1, 0), Task(B, 0, 0, 0), Task(U, 0, 1, 1)]),
        # with a number: up to that microbatch; two hats are two updates
        (
            "F0 F1 B1 B0^0^1",
            [*F01, Task(B, 0, 1, 0), Task(B, 0, 0, 0), Task(U, 0, 0, 1), Task(U, 0, 1, 2)],
        ),
        # a pass reads the newest version, and a backward that of its forward
        (
            "F0 F1 B0^ B1^",
            [*F01, Task(B, 0, 0, 0), Task(U, 0, 0, 1), Task(B, 0, 1, 0), Task(U, 0, 1, 2)],
        ),
        # a colon names another version
        ("F0 F1 B0^ B1:1", [*F01, Task(B, 0, 0, 0), Task(U, 0, 0, 1), Task(B, 0, 1, 1)]),
        (
            "F0 B0^ F1:0 B1",
            [
                *(Task(F, 0, 0, 0), Task(B, 0, 0, 0), Task(U, 0, 0, 1)),
                *(Task(F, 0, 1, 0), Task(B, 0, 1, 0)),
            ],
        ),
        # "at" names another stage than the row's
        (
            "F0 F0@1 B0@1^@1 B0^",
            [
                *(Task(F, 0, 0, 0), Task(F, 1, 0, 0), Task(B, 1, 0, 0), Task(U, 1, 0, 1)),
                *(Task(B, 0, 0, 0), Task(U, 0, 0, 1)),
            ],
        ),
    ],
)
def test_each_mark_is_read(row: str, tasks: list[Task]) -> None:
    assert list(parse(f"\n time | 1 2 3 \n\n worker 0 | {row} \n").workers[0]) == tasks


def test_what_is_wider_than_a_terminal_stands_below() -> None:
    table = schedules.pipedream(3).take(16)
    whole, narrow = (draw(table, width=width).splitlines()[1:] for width in (None, 80))
    assert max(map(len, narrow)) <= 80
    joined = (" ".join(line.partition("| ")[2] for line in narrow[row::4]) for row in range(4))
    assert [row.split() for row in joined] == [row.partition("| ")[2].split() for row in whole]


def test_without_stashing_a_backward_reads_the_newest_version() -> None:
    schedule = parse("""
        # naive; backward may read another version than forward
        worker 0 | F0 F1 B0^ B1^
        """)
    assert schedule.workers[0][4] == Task(B, 0, 1, 1)
    assert not schedule.stashing
    assert schedule.name == "naive"


def test_a_row_may_say_its_stage() -> None:
    schedule = parse("""
        worker 1 stage 0 | F0 . . . B0^
        worker 0 stage 1 | .  F0 B0^
        """)
    assert [tasks[0].stage for tasks in schedule.workers] == [1, 0]
    check(schedule)


@pytest.mark.parametrize("workers", [(), ((),), ((), ())])
def test_an_empty_table_has_an_empty_picture(workers: tuple[tuple[Task, ...], ...]) -> None:
    assert parse(str(Schedule(workers))) == Schedule(workers)


def test_what_can_never_finish_cannot_be_drawn() -> None:
    with pytest.raises(ScheduleError, match="can never finish"):
        str(parse("worker 0 | B0 F0"))


@given(methods, st.integers(1, 3), st.integers(1, 3))
def test_a_picture_reads_back_at_any_pace(schedule: Schedule, forward: int, backward: int) -> None:
    assert parse(draw(schedule, {Op.FORWARD: forward, Op.BACKWARD: backward})) == schedule


@given(training_methods, st.sampled_from(SLIPS), st.data())
def test_whatever_is_executable_reads_back_from_both_texts(
    schedule: Schedule, slip: Slip, data: st.DataObject
) -> None:
    """And what is not is drawn or refused."""
    other = slipped(data, schedule, slip)
    assert refusal(lambda: str(other)) != ""
    if refusal(lambda: check(other)) is None:
        assert parse(str(other)) == other
        assert read_csv(other.to_csv()) == other


@pytest.mark.parametrize("name", ["", "a, b", 'say "hi"', "# 1", "tête", "a;b;c", "worker 0 | F0"])
@pytest.mark.parametrize("stashing", [True, False])
def test_any_name_leaves_the_rest_of_both_texts_intact(name: str, stashing: bool) -> None:
    schedule = replace(schedules.pipedream(2, stashing=stashing).take(3), name=name)
    for again in (parse(str(schedule)), read_csv(schedule.to_csv())):
        assert again == schedule
        assert again.name == name
    for name in ("mine\nworker 7 | F0", "a; batches of 3", "a; 2 chunks a microbatch"):
        broken = replace(schedule, name=name)
        assert parse(str(broken)) == read_csv(broken.to_csv()) == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worker 0 | F0\nworker 1 | Z0", "line 2: cannot read 'Z0'; a cell is"),
        ("worker 0 | F", "line 1: cannot read 'F'"),
        ("worker 0 | F-1", "line 1: cannot read 'F-1'"),
        ("worker 0 | F0B0", "line 1: cannot read 'F0B0'"),
        ("worker 0 | F0 | B0", r"line 1: cannot read '\|'"),
        ("worker 0 | F0:", "line 1: cannot read 'F0:'"),
        ("worker 0 | ^", r"line 1: '\^' updates before any backward"),
        ("worker 0 | F0^", r"line 1: 'F0\^' updates before any backward"),
        ("worker 0 F0", "line 1: expected 'worker N | F0 B0 ...', got 'worker 0 F0'"),
        ("wörker 0 | F0", "line 1: expected"),
        ("worker -1 | F0", "line 1: expected"),
        ("\n\nhello", "line 3: expected"),
        ("worker 0 | F0\nworker 0 | B0", "line 2: worker 0 has a row already"),
        ("worker 1 | F0", "workers must be numbered 0, 1, 2, ..."),
        ("worker 0 | F" + "9" * 5000, "line 1: cannot read 'F9"),
        ("worker 0 | F0 B0^" + "9" * 5000, r"line 1: cannot read 'B0\^9"),
        ("worker " + "9" * 5000 + " | F0", "line 1: expected"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        parse(text)


cells = st.from_regex(r"[FB]?[01]?(@1)?(:2)?\^{0,2}[01]?|[.|\t٣-]|F9999999", fullmatch=True)
rows = st.lists(st.one_of(cells, st.text(max_size=3)), max_size=8).map(" ".join)
labels = st.sampled_from(["worker 0 | ", "worker 1 | ", "worker 0 stage 2 | ", "# ", "time", ""])
lines = st.builds(str.__add__, labels, rows)


@given(st.one_of(st.text(), st.lists(lines, max_size=4).map("\n".join)))
def test_any_text_reads_or_is_refused(text: str) -> None:
    """And what was read is checked and drawn, or refused too."""
    message = refusal(lambda: parse(text))
    if message is not None:
        assert message.startswith(("line ", "workers must be numbered"))
        return
    schedule = parse(text)
    assert refusal(lambda: check(schedule)) != ""
    assert refusal(lambda: str(schedule)) != ""
