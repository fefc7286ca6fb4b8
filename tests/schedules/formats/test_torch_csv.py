"""Tables from torch.distributed.pipelining and for it; torch generates and judges them."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules, simulate
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Op, Schedule, ScheduleError, check, parse, read_csv, slots
from pipekit.traces import Trace
from tests.schedules.formats.torch_tables import (
    LOOPS,
    NAMES,
    corrected,
    generated,
    sharded_by_torch,
    torchs,
    validated,
)
from tests.schedules.methods.test_all_methods import METHODS
from tests.schedules.reference import finishes


@pytest.mark.parametrize("p", [1, 2, 4])
def test_the_check_finds_the_mistake_in_torchs_table_of_1f1b(p: int) -> None:
    text = generated("1f1b", p, p, p + 2)
    if text == corrected(text):
        pytest.skip("this torch has none")
    with pytest.raises(ScheduleError, match=f"no worker has F0 of stage {p - 1}|F{p + 2} of stage"):
        check(Schedule.from_torch_csv(text))


@given(st.sampled_from(sorted(NAMES)), st.integers(1, 4), st.integers(1, 6), st.integers(1, 2))
def test_all_that_torch_generates_is_read_proved_drawn_simulated_and_written_again(
    name: str, p: int, m: int, batches: int
) -> None:
    text, stages, m = torchs(name, p, m)
    schedule = Schedule.from_torch_csv(text, name).repeat().take(batches)
    check(schedule, joint_updates=True)
    assert finishes(schedule)
    assert (schedule.stages, schedule.microbatches) == (stages, m * batches)
    assert parse(str(schedule)) == schedule == read_csv(schedule.to_csv())
    assert Trace.from_schedule(schedule).bubble < 1
    costs = Profile(
        (LayerProfile("stage", 1, 2, backward_input_s=1, backward_weight_s=1),) * stages
    )
    simulated = simulate(schedule, costs).frame
    for worker, times in enumerate(slots(schedule)):
        own = simulated[simulated["worker"] == worker]
        assert own[["start_s", "end_s"]].to_numpy().tolist() == times.tolist()
    if batches == 1:
        again = schedule.to_torch_csv()
        assert Schedule.from_torch_csv(again) == schedule
        assert validated(again, p, stages, m) == validated(text, p, stages, m)
        assert again.replace("\r", "").split() == [
            ",".join(cell for cell in line.split(",") if cell and "REDUCE" not in cell)
            for line in text.replace("\r", "").split()
        ]


OURS: dict[str, Callable[[int, int], Schedule]] = {
    "gpipe": schedules.gpipe,
    "1f1b": schedules.flush,
    "interleaved": lambda p, m: schedules.interleaved(2 * p, m, workers=p),
    "interleaved_zero_bubble": lambda p, m: schedules.interleaved_zero_bubble(2 * p, m, workers=p),
    "zb_v": lambda p, m: schedules.zb_v(2 * p, m),
    "dualpipe_v": lambda p, m: schedules.dualpipe_v(2 * p, m),
}


@pytest.mark.parametrize("name", sorted(OURS))
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_ours_are_the_same(name: str, p: int) -> None:
    if p == 1 and name in LOOPS:
        pytest.skip("one worker has no loop")
    for more in (1, 2, 3):
        text, _, m = torchs(name, p, more)
        assert OURS[name](p, m) == Schedule.from_torch_csv(text).repeat()


def test_torchs_looped_bfs_is_ours_with_backwards_reversed() -> None:
    text, _, m = torchs("looped_bfs", 3, 2)
    reversed_ = Schedule.from_torch_csv(text)
    ours = schedules.looped_bfs(6, m, workers=3).take(1)
    for one, other in zip(ours.workers, reversed_.workers, strict=True):
        back = [t._replace(microbatch=m - 1 - t.microbatch) for t in other if t.op is Op.BACKWARD]
        assert [t for t in one if t.op is Op.BACKWARD] == back
        assert [t for t in one if t.op is Op.FORWARD] == [t for t in other if t.op is Op.FORWARD]


@given(
    st.sampled_from(sorted(set(METHODS) - {"chimera", "dualpipe"})),
    st.integers(1, 4),
    st.integers(1, 6),
)
def test_torch_accepts_ours(name: str, p: int, m: int) -> None:
    schedule = METHODS[name](p, m)
    homes = validated(schedule.to_torch_csv(), p, schedule.stages, schedule.period_microbatches)
    assert homes == {stage: home for stage, (home,) in enumerate(schedule.stage_workers)}


def test_it_is_written_and_read_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "schedule.csv"
    text = schedules.zb_h1(2, 2).to_torch_csv(path)
    assert text == "0F0,0F1,0I0,0W0,0I1,0W1\r\n1F0,1I0,1F1,1I1,1W0,1W1\r\n"
    assert Schedule.from_torch_csv(path) == schedules.zb_h1(2, 2).take(1)
    assert Schedule.from_torch_csv("0F0,,(0F1;0B0)OVERLAP_F_B,0B1\n") == parse(
        "worker 0 | F0 . F1& B0 - B1 -^"
    )


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (schedules.bpipe(4, 4).take(1), "no cell for O1>3 of stage 0, OFFLOAD_3"),
        (schedules.flush(2, 2).take(2), "F2 of stage 0 is of weight version 1"),
        (schedules.two_bw(2, 2).take(2), "U2 of stage 0 is of weight version 2"),
        (schedules.pipedream(2), "without end"),
        (parse("worker 0 | F0 F1 B0^ B1:0"), "U1 of stage 0 leaves out later microbatches"),
        (schedules.chimera(2, 2), "use dualpipe_v in place of dualpipe, zb_v or hanayo in place"),
        (schedules.replicate(schedules.flush(1, 2), 2), "stage 0 is on workers 0 and 1"),
    ],
)
def test_what_torch_has_no_table_for(schedule: Schedule, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        schedule.to_torch_csv()


def test_what_follows_from_the_passes_is_left_out(recwarn: pytest.WarningsRecorder) -> None:
    text = "0F0,0SEND_F0,0WAIT_SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0\n"
    assert Schedule.from_torch_csv(text) == schedules.flush(2, 1).take(1)
    assert not recwarn


@given(st.sampled_from(sorted(NAMES)), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_weights_are_sharded_as_torch_does_it(name: str, p: int, m: int, gathered: int) -> None:
    text, _, m = torchs(name, p, m)
    theirs = sharded_by_torch(text, m, gathered)
    ours = schedules.sharded(Schedule.from_torch_csv(text, name), gathered)
    assert cells(ours.to_torch_csv()) == cells(theirs)
    read = Schedule.from_torch_csv(theirs, name)
    assert read.to_torch_csv() == theirs
    for each in (read, read.repeat()):
        check(each, joint_updates=True)
    assert parse(str(read)) == read == read_csv(read.to_csv())


def cells(text: str) -> list[list[str]]:
    """Return a table's cells; of discards at one place torch's order is that of a set."""
    rows = [row.split(",") for row in text.split()]
    parts = [groupby(row, lambda cell: cell.endswith("RESHARD")) for row in rows]
    return [
        [cell for is_discard, some in row for cell in (sorted(some) if is_discard else some)]
        for row in parts
    ]


def test_what_torch_does_for_a_stage_has_its_nearest_microbatch() -> None:
    text = "0UNSHARD,0WAIT_UNSHARD,0F1,0F0,0B1,0B0,0RESHARD,0REDUCE_GRAD\n"
    assert Schedule.from_torch_csv(text) == parse("worker 0 | ./G1 F1 F0 B1 - B0 -/D0/S0^")


@pytest.mark.parametrize(
    "text",
    [
        "0F0,0F1,0B0,0REDUCE_GRAD,0B1\n",
        "0F0,0F1,0B0,0REDUCE_GRAD,(0F2;0B1)OVERLAP_F_B,0I2,0W2\n",
        "0F0,1F0,1B0,1REDUCE_GRAD,0I0,0REDUCE_GRAD,0W0\n",
    ],
)
def test_a_sum_that_lacks_a_gradient_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match=r"needs (sums of )?gradients there, and"):
        check(Schedule.from_torch_csv(text))


@pytest.mark.parametrize(
    ("schedule", "lost"),
    [
        (schedules.pipedream(2, stashing=False).take(1), "stashing=False"),
        (replace(schedules.flush(2, 4).take(1), batch_size=2), "batch_size=2"),
        (replace(schedules.flush(2, 4).take(1), batch_size=4), None),
        (schedules.seq1f1b(2, 2, chunks=2).take(1), "chunks=2"),
        (schedules.flush(2, 4), None),
    ],
)
def test_what_torchs_tables_cannot_hold_is_named(schedule: Schedule, lost: str | None) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        read = Schedule.from_torch_csv(schedule.to_torch_csv())
    assert [lost in str(each.message) for each in said if lost] == ([True] if lost else [])
    one = schedule.take(1) if schedule.is_endless else schedule
    kept = {name: getattr(one, name) for name in ("stashing", "batch_size", "chunks")}
    assert replace(read, **kept) == one


pieces = st.sampled_from(
    [*'0123456789FBIW,;()\n\r"\0 ', "0F0", "OVERLAP_F_B", "1SEND_F0", "0UNSHARD", "9" * 12]
)


@given(st.lists(pieces, max_size=30).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        schedule = Schedule.from_torch_csv(text + "\n")
        check(schedule)
    except ScheduleError:
        return
    assert schedule.microbatches > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0X0\n", "line 1, cell 2: '0X0' is not a pass such as 2F0"),
        ("0F0\n0SENT_F0\n", "line 2, cell 1: '0SENT_F0' is not a pass"),
        ("(0F1;0B0;0B1)OVERLAP_F_B\n", "line 1, cell 1"),
        (",,\n", "the CSV has no pass"),
    ],
)
def test_what_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Schedule.from_torch_csv(text)
