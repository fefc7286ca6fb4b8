"""A forward and a backward that run together: written, read, proved, and refused."""

import pytest

from pipekit.schedules import Op, Schedule, ScheduleError, check, dualpipe_v, parse, read_csv, slots

ALONE = "worker 0 | F0 F1& B0 - B1 -^"


def test_a_pair_is_a_forward_and_the_backward_behind_it() -> None:
    schedule = parse(ALONE)
    ((one, other),) = schedule.overlaps
    assert (one.op, one.microbatch, other.op, other.microbatch) == (Op.FORWARD, 1, Op.BACKWARD, 0)
    assert schedule.dependencies.partner == [-1, 2, 1, -1, -1]
    assert schedule != Schedule(schedule.workers)
    check(schedule)


def test_it_is_drawn_and_written_as_it_was_read() -> None:
    schedule = parse(ALONE)
    assert str(schedule).splitlines()[2] == "worker 0 | F0  F1& B0  -   B1  -^"
    assert "worker,op,stage,microbatch,version,overlaps\n" in schedule.to_csv()
    assert "0,FORWARD,0,1,0,1\n" in schedule.to_csv()
    assert read_csv(schedule.to_csv()) == schedule


def test_both_take_their_share_of_the_time_together() -> None:
    times = slots(parse(ALONE), overlap=0.5)[0]
    assert times.tolist() == [[0, 1], [1, 1.5], [1.5, 2.5], [2.5, 4.5], [4.5, 4.5]]


def test_who_waits_for_data_that_only_both_give_waits_for_ever() -> None:
    apart = """
        worker 0 | F0 F1 B0 B1^
        worker 1 | F0 F1 B0 B1^
        """
    check(parse(apart))
    with pytest.raises(ScheduleError, match=r"worker 0 waits in F1 of stage 0 for B0 of stage 1"):
        check(parse(apart.replace("F1", "F1&", 1)))
    with pytest.raises(ScheduleError, match="can never finish"):
        check(parse("worker 0 | F0& B0^"))


@pytest.mark.parametrize("picture", ["worker 0 | F0 B0 F1 B1&^", "worker 0 | F0& F1 B0 B1^"])
def test_what_cannot_run_together_is_refused(picture: str) -> None:
    with pytest.raises(ScheduleError, match=r"cannot run together|nothing follows"):
        check(parse(picture))


def test_what_is_not_side_by_side_is_refused() -> None:
    whole = parse("worker 0 | F0 F1 B0 B1^")
    first, _, _, last, _ = whole.workers[0]
    with pytest.raises(ScheduleError, match="F0 of stage 0 and B1 of stage 0 cannot run together"):
        check(Schedule(whole.workers, overlaps=frozenset({(first, last)})))


def test_a_last_pass_has_nothing_to_run_together_with() -> None:
    with pytest.raises(ScheduleError, match="line 1: nothing follows F1& to run together with"):
        parse("worker 0 | F0 B0 F1&")
    lines = dualpipe_v(2, 2).take(1).to_csv().splitlines()
    with pytest.raises(ScheduleError, match="the last task of worker 0 in the CSV"):
        read_csv("\n".join([*lines[:-1], lines[-1][:-1] + "1"]) + "\n")
