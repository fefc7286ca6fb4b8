"""Verdicts against real processes: the calls of a program, made to gloo with a time limit."""

import os
import time
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

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
from tests.engine.gloo import over_gloo

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
    chosen_programs = [(n, programs[n].workers) for n in chosen]
    stuck = over_gloo(partial(_stuck, tmp_path / "store", chosen_programs), 3)
    assert set().union(*stuck) == hanging


def _stuck(file: Path, programs: list[tuple[int, Any]]) -> set[int]:
    """Make this process's calls of each program, and return the programs in which one is stuck."""
    import torch.distributed as dist

    rank, stuck = int(os.environ["RANK"]), set()
    store = dist.FileStore(str(file), 3)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    for number, workers in programs:
        group = dist.new_group(list(range(3)), timeout=LIMIT, backend="gloo")
        try:
            _make_calls(workers[rank] if rank < len(workers) else (), group)
        except RuntimeError:  # the time limit, or the end of a peer that it has come to
            stuck.add(number)
        store.add(f"done {number}", 1)
        while store.add(f"done {number}", 0) < 3:
            time.sleep(0.02)
    return stuck


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
