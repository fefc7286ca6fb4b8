"""Of processes that were killed nothing stays; too many are refused; who lost one knows how to go on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import pipekit as pk
from pipekit.engine.transports.processes.worker_pool import WorkerPool
from tests.engine.examples import data, pipeline
from tests.engine.test_failures import LIMIT_S, wait_until

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


class Killed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = 9

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
        return x


def test_who_lost_a_worker_is_told_how_to_resume(tmp_path: Path) -> None:
    def pipe(last: nn.Module) -> pk.Pipeline:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(6, 3), last)
        return pipeline(layers, "flush", [1, 1], transport="distributed")

    with pytest.raises(pk.WorkerDied, match="SIGKILL, killed") as caught:
        pipe(Killed()).train(data(4), checkpoints=pk.Checkpoints(tmp_path, every=1))
    assert f"resume({str(tmp_path)!r}) before train()" in caught.value.__notes__[-1]
    again = pipe(nn.Identity())
    again.resume(tmp_path)
    assert len(again.train(data(4), checkpoints=tmp_path).losses) == 4
