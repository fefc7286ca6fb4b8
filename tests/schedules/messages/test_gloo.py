"""Verdicts against real processes: the calls of a program, made to gloo with a time limit."""

import pickle
import subprocess
import sys
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from pipekit import schedules
from pipekit.schedules import Task
from pipekit.schedules.messages import (
    POLICIES,
    MessageChannel,
    MessageProgram,
    TransferKind,
    check_messages,
    with_messages,
)
from pipekit.schedules.messages.program import Group

TABLES = (
    schedules.flush(2, 4),
    schedules.flush(3, 4),
    schedules.interleaved(6, 3, workers=3),
    schedules.zb_h1(3, 3),
)
LIMIT = timedelta(seconds=4)
RENDEZVOUS = MessageChannel()
"""What gloo is: a send has its data fetched by a receive that is posted."""


def drawn(seed: int) -> MessageProgram:
    """Return a table's program, in which a worker may have exchanged two neighbouring transfers."""
    chance = Random(seed)
    program = with_messages(chance.choice(TABLES), chance.choice([*POLICIES]))
    workers = [list(groups) for groups in program.workers]
    if chance.random() < 0.5:
        mine = chance.choice(workers)
        both = [n for n, pair in enumerate(pairwise(mine)) if not any(map(_is_task, pair))]
        for place in both[:1]:
            mine[place : place + 2] = mine[place + 1], mine[place]
    return MessageProgram(program.table, tuple(map(tuple, workers)), program.policy)


def _is_task(group: Group) -> bool:
    return isinstance(group[0], Task)


@pytest.mark.parametrize(
    "count", [pytest.param(16, marks=pytest.mark.long), pytest.param(50, marks=pytest.mark.whole)]
)
def test_gloo_hangs_where_it_is_proved_to(tmp_path: Path, count: int) -> None:
    programs = [*map(drawn, range(3 * count))]
    verdicts = [check_messages(each, RENDEZVOUS) for each in programs]
    chosen = [n for n, each in enumerate(verdicts) if not each.mixed_up][:count]
    hanging = {n for n in chosen if not verdicts[n].is_sound}
    assert 3 < len(hanging) < count - 3
    (tmp_path / "programs").write_bytes(pickle.dumps([(n, programs[n].workers) for n in chosen]))
    ranks = [
        subprocess.Popen([sys.executable, "-m", __name__, str(tmp_path), str(rank)])
        for rank in range(3)
    ]
    try:
        assert [rank.wait(timeout=300) for rank in ranks] == [0, 0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    stuck = [set(pickle.loads((tmp_path / f"stuck{rank}").read_bytes())) for rank in range(3)]
    assert set().union(*stuck) == hanging


def main(folder: Path, rank: int) -> None:
    """Make a rank's calls of each program, and write down the programs in which one is stuck."""
    import torch.distributed as dist

    store = dist.FileStore(str(folder / "store"), 3)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    stuck = []
    for number, workers in pickle.loads((folder / "programs").read_bytes()):
        group = dist.new_group(list(range(3)), timeout=LIMIT, backend="gloo")
        try:
            _make_calls(workers[rank] if rank < len(workers) else (), group)
        except RuntimeError:  # the time limit, or the end of a peer that it has come to
            stuck.append(number)
        store.add(f"done {number}", 1)
        while store.add(f"done {number}", 0) < 3:
            pass
    (folder / f"stuck{rank}").write_bytes(pickle.dumps(stuck))


def _make_calls(groups, group) -> None:  # type: ignore[no-untyped-def]
    import torch
    import torch.distributed as dist

    for calls in groups:
        if isinstance(calls[0], Task):
            continue
        works = [
            (dist.isend if call.way is TransferKind.SEND else dist.irecv)(
                torch.zeros(4), call.peer, group
            )
            for call in calls
        ]
        for work in works:
            assert work is not None
            work.wait(LIMIT)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
