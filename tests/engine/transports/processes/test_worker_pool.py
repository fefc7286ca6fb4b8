"""Worker processes: kept from call to call, and gone with whoever they work for."""

import gc
import multiprocessing.forkserver
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit import Pipeline, WorkerDied
from pipekit.engine.calls import deferred_interrupts
from pipekit.engine.transports.processes.forkserver import WorkerHandle
from pipekit.engine.transports.processes.worker_pool import WorkerPool
from pipekit.engine.transports.watchdog import Watchdog
from pipekit.schedules import Steps
from tests.attacks.left import worker_processes
from tests.engine.examples import data, different, mixed, mlp, pipeline, trained, twins, unlike
from tests.engine.test_failures import LIMIT_S, wait_until
from tests.people.test_torchgpipe import Calls

LARGE = bytes(2**24)  # more than a pipe takes


@pytest.fixture(autouse=True)
def _no_worker_before_and_none_after() -> Iterator[None]:
    none_left()
    yield
    none_left()


def none_left() -> None:
    if worker_processes():  # of pipelines that nobody holds any more
        gc.collect()
        wait_until(lambda: not worker_processes(), LIMIT_S)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(2, with_sums=False)
    made.start()
    yield made
    made.close()


def nobody(pool: WorkerPool) -> Watchdog:
    """One for workers that have nothing to do."""
    return Watchdog(pool.states, {w: Steps(()) for w in range(2)}, [], None)


def pids(made: WorkerPool) -> list[int]:
    return [handle.process.pid for handle in made._handles if handle.process.pid is not None]


def test_processes_are_kept_from_call_to_call() -> None:
    expected, kept = twins(mixed(), "pipedream", [4, 4])
    seen = []
    for rows in ([8, 5], [3], [8, 8, 8]):
        assert unlike(*(trained(pipe, data(rows=rows)) for pipe in (kept, expected))) == []
        assert kept.evaluate(data(3)) == expected.evaluate(data(3))
        seen.append(set(worker_processes()))
    assert len(seen[0]) == 2
    assert seen[0] == seen[1] == seen[2]


def test_weights_come_from_the_processes_only_when_somebody_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    stages = WorkerPool.stages

    def counted(pool: WorkerPool, worker: int) -> Any:
        asked.append(worker)
        return stages(pool, worker)

    monkeypatch.setattr(WorkerPool, "stages", counted)
    expected, kept = twins(mixed(), "2bw", [4, 4])
    for _ in range(4):
        assert kept.train(data(2)).losses == expected.train(data(2)).losses
    assert asked == []
    assert different(kept.state_dict(), expected.state_dict()) == []
    assert kept.evaluate(data(2)) == expected.evaluate(data(2))
    assert asked == [0, 1], "each is asked once"
    assert kept.train(data(2)).losses == expected.train(data(2)).losses
    kept.close()
    assert asked == [0, 1, 0, 1], "and once more before it ends"
    assert different(kept.state_dict(), expected.state_dict()) == []
    assert kept.train(data(2)).losses == expected.train(data(2)).losses


def test_an_error_ends_them_and_leaves_the_weights_that_nobody_had_read() -> None:
    expected, kept = twins(mixed(), "pipedream", [4, 4])
    for pipe in (kept, expected):
        pipe.train(data(3))
        with pytest.raises(ZeroDivisionError):
            pipe.evaluate(data(2), metric=lambda output, target: 1 // 0)
    wait_until(lambda: not worker_processes(), LIMIT_S)
    assert different(kept.state_dict(), expected.state_dict()) == []
    assert kept.train(data(3)).losses == expected.train(data(3)).losses


@pytest.mark.parametrize("close", [False, True])
def test_a_process_killed_between_calls_takes_its_weights_along(close: bool) -> None:
    """Whoever asks for them is told, and may go on from a state that was kept."""
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1], transport="distributed")
    pipe.train(data(2))
    state = pipe.state_dict()
    pipe.train(data(3))
    for worker in worker_processes():
        os.kill(worker, signal.SIGKILL)
    if close:
        pipe.close()
    how = "" if close else r" with exit code -9 \(SIGKILL.*\)"
    with pytest.raises(WorkerDied, match=f"worker 0's process ended between two calls{how}, and"):
        pipe.state_dict()
    for function in (pipe.state_dict, pipe.optimizer_state, lambda: pipe.evaluate(data(2))):
        with pytest.raises(RuntimeError, match=r"load_state_dict\(\)"):
            function()
    again = pipeline(mlp(6, 6, 3), "flush", [1, 1])
    for other in (pipe, again):
        other.load_state_dict(state)  # optimizers begin anew
    assert pipe.train(data(3)).losses == again.train(data(3)).losses


def test_what_a_caller_has_taken_is_not_overwritten_by_later_calls() -> None:
    options: dict[str, Any] = {"optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9)}
    expected, kept = twins(mlp(6, 6, 3), "flush", [1, 1], **options)
    taken = []
    for _ in range(3):
        kept.train(data(2))
        expected.train(data(2))
        taken.append((kept.state_dict(), kept.optimizer_state()))
        state, there = (pipe.state_dict() for pipe in (kept, expected))
        assert different(state, there) == []
    again = pipeline(mlp(6, 6, 3), "flush", [1, 1], **options)
    for state, optimizer in taken:
        again.train(data(2))
        assert different(state, again.state_dict()) == []
        for name, entry in again.optimizer_state().items():
            buffers = (each["state"]["momentum_buffer"] for each in (optimizer[name], entry))
            assert torch.equal(*buffers)


def test_they_end_by_close_and_with_their_pipeline() -> None:
    """After close() the next call starts others."""
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1], transport="distributed")
    pipe.train(data(2))
    before = set(worker_processes())
    pipe.close()
    wait_until(lambda: not worker_processes(), LIMIT_S)
    pipe.close()
    pipe.train(data(2))
    assert len(worker_processes()) == 2
    assert not before & set(worker_processes())
    del pipe
    gc.collect()
    wait_until(lambda: not worker_processes(), LIMIT_S)


def noisy(output: Tensor, target: Tensor) -> Tensor:
    """Draws from PyTorch's own generator, which the engine seeds for layers only."""
    return (output - target).square().mean() * torch.rand(())


def test_every_run_begins_with_the_random_state_of_a_new_process() -> None:
    def losses(close: bool) -> list[list[float]]:
        pipe = pipeline(mlp(6, 3), "flush", [1], transport="distributed", loss=noisy)
        found = []
        for _ in range(3):
            found.append(pipe.train(data(2)).losses)
            if close:
                pipe.close()
        return found

    assert losses(close=True) == losses(close=False)


def test_a_process_starts_in_the_folder_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touch(x: Tensor) -> Tensor:
        Path("here").touch()
        return x

    model = nn.Sequential(Calls(touch), nn.Linear(6, 3))
    pipe = pipeline(model, "flush", [2], transport="distributed")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        pipe.train(data(1))
    assert sorted(path.parent.name for path in tmp_path.glob("*/here")) == ["one", "two"]


# --- Before a worker has begun -------------------------------------------------------------


def test_a_worker_that_fails_before_it_has_read_its_task(pool: WorkerPool) -> None:
    """It has stopped reading, and the parent must not go on writing for ever."""
    pool._handles[1].tasks.send_bytes(b"no task")
    with pytest.raises(pickle.UnpicklingError, match="invalid load key"):
        pool.run([LARGE, LARGE], [], {}, None, nobody(pool))
    assert not pool.ready


def test_a_worker_that_is_killed_while_it_receives_its_task() -> None:
    pool = WorkerPool(1, with_sums=False)
    pool.start()
    [victim] = pids(pool)
    os.kill(victim, signal.SIGSTOP)
    killer = threading.Timer(0.5, os.kill, [victim, signal.SIGKILL])
    killer.start()
    with pytest.raises(WorkerDied, match=r"worker 0.*code -9 \(SIGKILL, killed: .*memory\)"):
        pool.run([LARGE], [], {}, None, nobody(pool))
    killer.join()
    pool.close()


def test_a_fork_server_that_is_killed_while_it_starts_a_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A broken pipe would say nothing, and end a command line without a word."""

    def start(_: Any) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1], transport="distributed")
    with monkeypatch.context() as patch:
        patch.setattr("multiprocessing.context.ForkServerProcess.start", start)
        with pytest.raises(WorkerDied, match="worker 0's process could not be started: the fork"):
            pipe.train(data(2), checkpoints=tmp_path)


def test_no_interrupt_reaches_the_fork_server(pool: WorkerPool) -> None:
    """One while it imports torch would end it, and with it every start of a worker."""
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    for process in (server, *pids(pool)):
        status = Path(f"/proc/{process}/status").read_text()
        blocked = int(re.search(r"SigBlk:\t(\w+)", status)[1], 16)  # type: ignore[index]
        assert blocked >> (signal.SIGINT - 1) & 1


def test_an_interrupt_waits_until_a_process_is_known() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    reached = []

    def interrupted() -> None:
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end of the block")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


@pytest.mark.parametrize(("when", "worker"), [("before", 2), ("after", 0)])
def test_an_interrupt_while_workers_start(
    when: str, worker: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = WorkerHandle.start, []

    def interrupted(member: Any) -> None:
        started.append(member)
        if when == "after":
            start(member)
        if len(started) == worker + 1:
            raise KeyboardInterrupt
        if when == "before":
            start(member)

    monkeypatch.setattr(WorkerHandle, "start", interrupted)
    pipe: Pipeline = pipeline(mlp(6, 6, 6, 3), "flush", [1, 1, 1], transport="distributed")
    with pytest.raises(KeyboardInterrupt) as caught:
        pipe.train(data(2))
    wait_until(lambda: not worker_processes(), LIMIT_S)  # though the traceback holds everything
    assert caught.tb is not None


PARENT = """
import sys, time, torch
from multiprocessing import util
from pipekit.engine.transports.processes.worker_pool import WorkerPool

pool = WorkerPool(1, with_sums=False)
pool.start()
print(util.get_temp_dir(), flush=True)
time.sleep(600)
"""


@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_socket_of_the_fork_server_goes_with_its_killed_starter(
    end: signal.Signals, tmp_path: Path, repository: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env={**os.environ, "PYTHONPATH": str(repository), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert list(folder.iterdir())
        process.send_signal(end)
    wait_until(lambda: not folder.exists(), LIMIT_S)
    assert list(tmp_path.glob("pymp-*")) == []


@pytest.mark.parametrize(("workers", "with_sums"), [(130, False), (70, True)])
def test_too_many_processes_are_refused_before_any_starts(workers: int, with_sums: bool) -> None:
    with pytest.raises(ValueError, match=r"open files to reach the others, and 256 are the most"):
        WorkerPool(workers, with_sums)
