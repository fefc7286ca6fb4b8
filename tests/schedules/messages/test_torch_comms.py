"""Torch's tables with sends and receives: our order against torch's own lowering."""

import pytest

from pipekit import schedules
from pipekit.schedules import Schedule, ScheduleError
from pipekit.schedules.messages import read_torch_comms, with_messages, write_torch_comms

theirs = pytest.importorskip("torch.distributed.pipelining.schedules")

TABLES = {
    "gpipe": lambda p, m: schedules.gpipe(p, m),
    "flush": lambda p, m: schedules.flush(p, m),
    "zb_h1": lambda p, m: schedules.zb_h1(p, m),
    "zb_v": lambda p, m: schedules.zb_v(p, m),
    "dualpipe_v": lambda p, m: schedules.dualpipe_v(p, 2 * m),
    "interleaved": lambda p, m: schedules.interleaved(2 * p, m, workers=p),
    "looped_bfs": lambda p, m: schedules.looped_bfs(2 * p, m, workers=p),
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


def test_groups_cannot_be_written() -> None:
    program = with_messages(schedules.flush(2, 3).take(1), "batched")
    with pytest.raises(ScheduleError, match="no cell for groups"):
        write_torch_comms(program)


def test_a_message_of_a_stage_that_no_rank_has_is_refused() -> None:
    with pytest.raises(ScheduleError, match="'1SEND_F0' is a message of stage 2"):
        read_torch_comms("0F0,0SEND_F0\n1RECV_F0,1F0,1SEND_F0\n")
