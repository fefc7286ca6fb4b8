"""Whether a program hangs, against a judge of every interleaving; and torch's order against torch's."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules as theirs

from pipekit import schedules
from pipekit.schedules import Schedule, ScheduleError, Task
from pipekit.schedules.messages import (
    POLICIES,
    MessageChannel,
    MessageProgram,
    check_messages,
    read_torch_comms,
    repair,
    with_messages,
    write_torch_comms,
)
from tests.schedules.messages.explorer import Explorer

BLOCKING, EAGER = MessageChannel(), MessageChannel(1)
NCCL = MessageChannel(waits=False, communicators="pair")
"""Both directions of a pair share a communicator, and its transfers run beside the tasks."""

SMALL = {
    "gpipe": schedules.gpipe(2, 2),
    "flush": schedules.flush(2, 3),
    "three": schedules.flush(3, 2),
    "zb_h1": schedules.zb_h1(2, 2),
    "interleaved": schedules.interleaved(4, 2, workers=2),
    "zb_v": schedules.zb_v(2, 2),
}


@st.composite
def programs(draw: st.DrawFn) -> MessageProgram:
    """Draw an order of a small table's messages, some of whose groups have changed places."""
    program = with_messages(
        SMALL[draw(st.sampled_from([*SMALL]))], draw(st.sampled_from([*POLICIES]))
    )
    workers = []
    for groups in program.workers:
        mine = [*groups]
        for place in draw(st.lists(st.integers(0, max(0, len(mine) - 2)), max_size=3)):
            one, other = mine[place : place + 2] if len(mine) > 1 else (mine[0], mine[0])
            if not (isinstance(one[0], Task) and isinstance(other[0], Task)) and len(mine) > 1:
                mine[place : place + 2] = [other, one]
        workers.append(tuple(mine))
    return replace(program, workers=tuple(workers))


channels = st.builds(
    MessageChannel,
    buffers=st.sampled_from([0, 1, 2, math.inf]),
    waits=st.booleans(),
    communicators=st.sampled_from(["worker", "pair", "direction"]),
)


@given(programs(), channels)
def test_a_program_hangs_if_it_does_in_any_interleaving(
    program: MessageProgram, channel: MessageChannel
) -> None:
    verdict = check_messages(program, channel)
    if not verdict.mixed_up:
        assert Explorer(program, channel).outcomes() == {verdict.is_sound}


@given(programs(), channels)
def test_a_repaired_order_always_ends(program: MessageProgram, channel: MessageChannel) -> None:
    verdict = repair(program, channel, link=0.5)
    assert Explorer(verdict.program, channel).outcomes() == {True}
    assert verdict.slots is not None
    assert verdict.slots >= verdict.least


def test_a_repair_moves_messages_and_no_task() -> None:
    """Two workers have equal updates, at other times."""
    table = schedules.replicate(schedules.sharded(schedules.flush(2, 4)), 2).take(2)
    program = repair(with_messages(table), BLOCKING).program
    for groups, tasks in zip(program.workers, table.workers, strict=True):
        assert tuple(each for (each,) in groups if isinstance(each, Task)) == tasks


def test_1f1b_that_receives_before_a_task_and_sends_after_it_hangs() -> None:
    verdict = check_messages(with_messages(schedules.flush(2, 3), "in_order"), BLOCKING)
    assert str(verdict) == (
        "the order 'in_order' hangs (rendezvous, a communicator a direction): "
        "worker 1's receive F1 for stage 1 from worker 0, which comes after its send B0 for stage "
        "0 to worker 0; that waits for worker 0's receive B0 for stage 0 from worker 1, which comes "
        "after its send F1 for stage 1 to worker 1; that waits for worker 1's receive F1 for stage "
        "1 from worker 0"
    )


@pytest.mark.parametrize(
    ("order", "channel"),
    [("in_order", EAGER), ("in_order", MessageChannel(waits=False)), ("batched", BLOCKING)],
    ids=["a buffer", "a send does not wait", "Megatron's groups of a send and a receive"],
)
def test_it_ends_otherwise(order: str, channel: MessageChannel) -> None:
    assert check_messages(with_messages(schedules.flush(4, 8), order), channel).is_sound


REPORTED = {  # pytorch #172668: two ranks, four stages, what each was seen to be stuck in
    "sends first": "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2RECV_F1,2F1\n"
    "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1\n",
    "gradient behind an activation": "0F0,0SEND_F0,2RECV_F0,2F0,2SEND_F0,0F1,0SEND_F1,2RECV_B0,2B0,"
    "2SEND_B0,0RECV_B0,0B0,2RECV_F1,2F1,2SEND_F1,2RECV_B1,2B1,2SEND_B1,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,1RECV_F1,1F1,1RECV_B0,1B0,1SEND_B0,1SEND_F1,"
    "3RECV_F1,3F1,3B1,3SEND_B1,1RECV_B1,1B1,1SEND_B1\n",
}


@pytest.mark.parametrize("case", REPORTED)
def test_the_deadlocks_that_torchs_users_reported_are_found(case: str) -> None:
    program = read_torch_comms(REPORTED[case])
    assert check_messages(program, BLOCKING).cycle
    assert check_messages(program, EAGER).is_sound
    assert repair(program, BLOCKING).is_sound


def test_shapes_that_are_exchanged_first_make_a_group_hang() -> None:
    """As Megatron's of variable length: the shape of B0 waits for a group that holds F's tensor."""
    program = with_messages(schedules.gpipe(2, 2), "batched")
    assert check_messages(program, BLOCKING).is_sound
    assert not check_messages(program, MessageChannel(shapes_first=True)).is_sound


def test_messages_that_are_received_in_another_order_are_mixed_up() -> None:
    program = read_torch_comms("0F0,0F1,0SEND_F0,0SEND_F1\n1RECV_F1,1F1,1RECV_F0,1F0\n")
    assert check_messages(program, EAGER).mixed_up == (
        "worker 0 sends F0 for stage 1 where worker 1 receives F1 for stage 1: messages arrive in "
        "the order of their sends"
    )


def test_what_an_order_costs() -> None:
    """Forwards of 1 slot and messages of 1: a send that waits holds the next forward up."""
    program = read_torch_comms("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n")
    #  worker 0: F0 F0>  F1 F1>        or, beside its tasks:  F0 F1
    #  worker 1:      >F0 F0 ...                                 >F0 F0 F1
    assert check_messages(program, BLOCKING, link=1).slots == 5
    assert check_messages(program, MessageChannel(math.inf, waits=False), link=1).slots == 4
    assert check_messages(program, BLOCKING, link=1).least == 4


@pytest.mark.parametrize(
    ("lost", "says"),
    [("0SEND_F1", "worker 0 never calls send F1"), ("1RECV_F1", "worker 1 never calls receive F1")],
)
def test_a_message_without_one_of_its_ends_is_refused(lost: str, says: str) -> None:
    text = "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n"
    with pytest.raises(ScheduleError, match=says):
        check_messages(read_torch_comms(text.replace(f",{lost}", "")), BLOCKING)


@pytest.mark.parametrize("name", ["gpipe", "flush", "zb_h1", "interleaved", "zb_v"])
def test_our_engines_order_never_hangs(name: str) -> None:
    """Over gloo each direction is its own, and a send runs beside the tasks."""
    program = with_messages(SMALL[name], "pipekit")
    assert check_messages(program, MessageChannel(waits=False)).is_sound


def test_tasks_of_other_ops_take_their_slots() -> None:
    assert check_messages(with_messages(schedules.pipefisher(2, 2), "torch"), NCCL).slots == 27


@pytest.mark.parametrize("order", POLICIES)
def test_what_runs_beside_the_passes_exchanges_no_messages(order: str) -> None:
    """BPipe's passes are those of 1F1B."""
    one, other = (
        check_messages(with_messages(made, order), EAGER)
        for made in (schedules.bpipe(4, 6), schedules.flush(4, 6))
    )
    assert (one.slots, one.is_sound) == (other.slots, other.is_sound)


TABLES = {
    "gpipe": lambda p, m: schedules.gpipe(p, m),
    "flush": lambda p, m: schedules.flush(p, m),
    "zb_h1": lambda p, m: schedules.zb_h1(p, m),
    "zb_v": lambda p, m: schedules.zb_v(p, m),
    "dualpipe_v": lambda p, m: schedules.dualpipe_v(p, 2 * m),
    "interleaved": lambda p, m: schedules.interleaved(2 * p, m, workers=p),
    "looped_bfs": lambda p, m: schedules.looped_bfs(2 * p, m, workers=p),
    "sharded": lambda p, m: schedules.sharded(schedules.interleaved(2 * p, m, workers=p), 2),
}


def _lowered(schedule: Schedule) -> str:
    """Return a table with the messages that torch itself puts in."""
    rows = schedule.to_torch_csv().split()
    actions = {
        rank: [theirs._Action.from_str(cell) for cell in row.split(",")]
        for rank, row in enumerate(rows)
    }
    ranks = {
        each.stage_index: rank
        for rank, row in actions.items()
        for action in row
        for each in action.sub_actions or [action]
    }
    lowered = theirs._add_send_recv(actions, ranks.__getitem__, len(ranks))
    return "\n".join(",".join(map(str, lowered[rank])) for rank in sorted(lowered)) + "\n"


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("name", TABLES)
def test_the_order_named_torch_is_torchs(name: str, workers: int) -> None:
    schedule = TABLES[name](workers, 2 * workers).take(1)
    program = with_messages(schedule, "torch")
    written = write_torch_comms(program)
    assert written.split() == _lowered(schedule).split()
    assert read_torch_comms(written).workers == program.workers


def test_what_is_no_channel_is_refused() -> None:
    with pytest.raises(ValueError, match="not 'eager': 0 is a rendezvous"):
        MessageChannel("eager")  # type: ignore[arg-type]


def test_groups_cannot_be_written() -> None:
    program = with_messages(schedules.flush(2, 3).take(1), "batched")
    with pytest.raises(ScheduleError, match="no cell for groups"):
        write_torch_comms(program)


def test_weights_that_are_gone_are_seen_beside_messages() -> None:
    rows = "0UNSHARD,0F0,0SEND_F0,0RESHARD,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"
    with pytest.raises(ScheduleError, match="B0 of stage 0, which needs weights there, and D0"):
        schedules.check(read_torch_comms(rows).table)


def test_a_message_of_a_stage_that_no_rank_has_is_refused() -> None:
    with pytest.raises(ScheduleError, match="'1SEND_F0' is a message of stage 2"):
        read_torch_comms("0F0,0SEND_F0\n1RECV_F0,1F0,1SEND_F0\n")
