"""Under torchrun: what is refused, and whom it waits for; `test_elastic.py` trains under it."""

import io
import sys
from typing import Any, cast

import pytest
import torch

from pipekit import Schedule
from pipekit.engine.transports import torchrun
from pipekit.engine.transports.processes.runner import over_processes
from pipekit.schedules import ScheduleError
from pipekit.schedules.messages import POLICIES, Transfer, TransferKind
from pipekit.schedules.messages.program import Group
from tests.engine.examples import data, mixed, pipeline, twins
from tests.engine.test_failures import LIMIT_S, wait_until


def test_another_number_of_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first_of(2, monkeypatch)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    pipe = pipeline(mixed(), "flush", [2, 3, 3], transport="distributed")
    with pytest.raises(ValueError, match="started 2 processes and the schedule has 3 workers"):
        pipe.train(data(1))


def test_two_processes_of_a_machine_share_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda:0")
    with pytest.raises(ValueError, match=r"workers 0 and 2 would share cuda:0, .*'threads'"):
        over_processes([gpu, torch.device("cuda:1"), gpu])
    for name in torchrun.VARIABLES:
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    over_processes([gpu, torch.device("cuda:1")] * 2)  # of two machines
    with pytest.raises(ValueError, match="workers 0 and 1 would share cuda:0"):
        over_processes([gpu] * 4)


def test_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert not torchrun.launched()
    first_of(2, monkeypatch)
    assert torchrun.launched()


def test_what_a_batch_system_sets_is_not_taken_for_torchrun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It did nothing for half a minute, and then said that MASTER_ADDR was missing."""
    first_of(3, monkeypatch)
    monkeypatch.delenv("MASTER_ADDR")
    threads, processes = twins(mixed(), "flush", [4, 4])
    assert processes.train(data(2)).losses == threads.train(data(2)).losses


def test_another_number_of_processes_is_refused_before_any_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first_of(3, monkeypatch)
    pipe = pipeline(mixed(), "flush", [4, 4], transport="distributed")
    with pytest.raises(ValueError, match=r"started 3 processes .* 2 workers.*without torchrun"):
        pipe.train(data(1))


def test_an_order_of_messages_that_could_hang_is_refused_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ours never hangs: here all receives come behind all tasks."""
    in_order = POLICIES["in_order"]

    def receives(group: Group) -> bool:
        return isinstance(group[0], Transfer) and group[0].way is TransferKind.RECEIVE

    def late(table: Schedule) -> list[list[Group]]:
        return [sorted(groups, key=receives) for groups in in_order(table)]

    first_of(2, monkeypatch)
    monkeypatch.setitem(cast(Any, POLICIES), "pipekit", late)
    with pytest.raises(ScheduleError, match=r"hangs .*train with transport='threads'"):
        pipeline(mixed(), "flush", [4, 4], transport="distributed")


def test_it_says_whom_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", heard := io.StringIO())
    monkeypatch.setattr(torchrun, "PATIENCE_S", 1000)
    with torchrun._said_if_it_takes_long(2):
        pass
    assert heard.getvalue() == ""
    monkeypatch.setattr(torchrun, "PATIENCE_S", 0.01)
    with torchrun._said_if_it_takes_long(2):
        said = "waiting for all 2 processes that torchrun starts"
        wait_until(lambda: said in heard.getvalue(), LIMIT_S)


def first_of(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what torchrun sets for the first process of some."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
