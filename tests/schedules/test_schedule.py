"""The table itself: immutable, comparable, readable from CSV, and anyone's to write."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.schedules import Op, Schedule, ScheduleError, Task, parse, read_csv
from tests.schedules.strategies import methods

HEADER = "worker,op,stage,microbatch,version\n"


def test_an_empty_one() -> None:
    schedule = Schedule(())
    assert (schedule.stages, schedule.microbatches, schedule.batches) == (0, 0, ())
    assert not schedule.trains


def test_an_update_may_sum_microbatches_of_several_batches() -> None:
    """Two workers share stage 0: an update of it sums two batches, one of stage 1 a single one."""
    schedule = schedules.pipedream([2, 1]).take(3)
    assert schedule.batches == (range(1), range(1, 2), range(2, 3))
    assert schedule.updates == ((range(2), range(2, 3)), (range(1), range(1, 2), range(2, 3)))
    assert schedule.update_of == ((1, 1, 2), (1, 2, 3))
    assert schedule.batch_of == (0, 1, 2)
    assert schedule.stage_workers == ((0, 1), (2,))


@given(methods)
def test_updates_cut_the_microbatches_without_gaps(schedule: Schedule) -> None:
    for updates, update_of in zip(schedule.updates, schedule.update_of, strict=True):
        assert [k for summed in updates for k in summed] == (
            list(range(schedule.microbatches)) if schedule.trains else []
        )
        if schedule.trains:
            assert all(k in updates[number - 1] for k, number in enumerate(update_of))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_the_size_of_batches_may_be_declared(size: int) -> None:
    schedule = replace(schedules.flush(1, 4).take(2), batch_size=size)
    assert [k for batch in schedule.batches for k in batch] == list(range(8))
    assert {len(batch) for batch in schedule.batches[:-1]} <= {size}
    assert 1 <= len(schedule.batches[-1]) <= size
    assert schedule != schedules.flush(1, 4).take(2), "it is part of the table"
    for again in (parse(str(schedule)), read_csv(schedule.to_csv())):
        assert again == schedule
        assert (again.batch_size, again.name) == (size, schedule.name)


def test_equal_tables_are_equal_and_hash_alike_whatever_their_name() -> None:
    one, other = schedules.gpipe(2, 1).take(3), schedules.model_parallel(2).take(3)
    assert one.name != other.name
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other, schedules.gpipe(2, 3).take(1), schedules.gpipe(2, 3).take(1)}) == 2
    lists = [[*tasks] for tasks in one.head]
    assert Schedule(lists) == one  # type: ignore[arg-type]
    assert hash(Schedule(iter(lists))) == hash(one)  # type: ignore[arg-type]


def test_csv_is_one_row_a_task() -> None:
    assert schedules.pipedream(2, stashing=False).take(1).to_csv() == (
        "# PipeDream without stashing; 2 workers; stashing off\n"
        "worker,op,stage,microbatch,version\n"
        "0,FORWARD,0,0,0\n"
        "0,BACKWARD,0,0,0\n"
        "0,UPDATE,0,0,1\n"
        "1,FORWARD,1,0,0\n"
        "1,BACKWARD,1,0,0\n"
        "1,UPDATE,1,0,1\n"
    )


def test_csv_goes_to_a_file_and_back(tmp_path: Path) -> None:
    schedule = schedules.pipedream(3, vertical_sync=True).take(4)
    text = schedule.to_csv(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text(encoding="utf-8") == text
    assert read_csv(tmp_path / "table.csv") == schedule
    (tmp_path / "by hand.csv").write_text(text.replace(",", ", "), encoding="utf-8-sig")
    assert read_csv(tmp_path / "by hand.csv") == schedule
    assert read_csv(str(tmp_path / "table.csv")) == schedule


@pytest.mark.parametrize("number", [0, -1, 1.5])
def test_a_size_that_cannot_be_is_refused(number: int) -> None:
    for name in ("chunks", "batch_size"):
        with pytest.raises(ScheduleError, match=f"{name} must be a whole number of at least 1"):
            replace(schedules.flush(2, 2), **{name: number})  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="the head has 2 workers and the period 1"):
        Schedule(((), ()), period=schedules.flush(2, 2).period[:1])


def test_csv_needs_no_header_line_and_no_order_of_columns() -> None:
    assert read_csv("op,worker,version,microbatch,stage\nFORWARD,0,0,1,0\n") == Schedule(
        ((Task(Op.FORWARD, 0, 1, 0),),)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("op,stage,microbatch,version\nFORWARD,0,0,0\n", "lacks the column 'worker'"),
        (HEADER + "0,FORWARD,0,0,0\n0,SIDEWAYS,0,1,0\n", "row 2 .* is not a task"),
        (HEADER + "0,FORWARD,0,0,1.5\n", "row 1 .* is not a task"),
        (HEADER + "0,FORWARD\n", "row 1 .* is not a task"),
        (HEADER + "0,FORWARD,0,0," + "9" * 5000 + "\n", "row 1 .* is not a task"),
        (HEADER + "-1,FORWARD,0,0,0\n", "row 1"),
        (HEADER + "0,FORWARD,0,0,0\n99999999999,FORWARD,0,1,0\n", "row 2"),
        ("# mine; 2 workers; stashing on\n" + HEADER + "2,FORWARD,0,0,0\n", "row 1"),
        (HEADER + "0,FORWARD,0,0,0\n1,FORWARD,0,0,0,0,0\n", "line 3"),
        (HEADER + '0,"FORWARD,0,0,0\n', "row 1"),
        ("# only a comment\n", "CSV"),
        ("\n", "CSV"),
    ],
)
def test_a_broken_csv_is_refused_with_its_row(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        read_csv(text)


@given(st.integers(1, 10**9 - 1), st.booleans(), st.text(max_size=8))
def test_the_header_of_a_csv_keeps_the_batch_size(size: int, stashing: bool, name: str) -> None:
    schedule = Schedule(((Task(Op.FORWARD, 0, 0, 0),),), name, stashing, size)
    assert read_csv(schedule.to_csv()) == schedule


@pytest.mark.parametrize(
    "header",
    [
        "# mine; ; stashing on",
        "# mine; ² workers; stashing on",
        "# mine; 99999999999999 workers; stashing on",
        "# ; ;",
    ],
)
def test_a_first_line_that_is_not_ours_is_a_comment(header: str) -> None:
    assert read_csv(f"{header}\n{HEADER}0,FORWARD,0,0,0\n").workers == (
        (Task(Op.FORWARD, 0, 0, 0),),
    )


def test_a_missing_file_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_csv(tmp_path / "nowhere.csv")
    with pytest.raises(OSError, match="directory"):
        read_csv(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff\xfe\x00", b"\x80\n"])
def test_a_file_that_is_no_csv_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(ScheduleError):
        read_csv(tmp_path / "table.csv")


pieces = st.sampled_from(
    [*HEADER.split(","), HEADER, *'01,\n\r"#\0', "-1", "1e9", "FORWARD", "UPDATE", "; 1 workers"]
)


@given(st.lists(st.one_of(pieces, st.text(max_size=5)), max_size=30).map("".join), st.booleans())
def test_any_text_reads_or_is_refused(text: str, headed: bool) -> None:
    try:
        schedule = read_csv((HEADER if headed else "") + text + "\n")
    except ScheduleError:
        return
    assert read_csv(schedule.to_csv()) == schedule
