"""The ways to run workers, by name."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from pipekit.engine.batches import Batch
from pipekit.engine.config import Job
from pipekit.engine.execution.stage import StageSpec
from pipekit.engine.execution.worker import LossCallback, Report
from pipekit.engine.transports import torchrun
from pipekit.engine.transports.processes import run_processes
from pipekit.engine.transports.threads import run_threads
from pipekit.schedules import Step

T = TypeVar("T")

NAMES = ("threads", "distributed")


class Runner(Protocol):
    """Runs every worker's steps to the end; see :func:`run_threads`."""

    def __call__(
        self,
        lowered: Sequence[Sequence[Step]],
        specs: Sequence[Sequence[StageSpec]],
        job: Job,
        batches: Iterable[Batch],
        devices: Sequence[torch.device],
        on_loss: LossCallback | None,
    ) -> list[Report]:
        """Return every worker's report."""
        ...


def runner(transport: str) -> Runner:
    """Return what runs workers over a transport, one of NAMES, in this environment."""
    if transport == "threads":
        return run_threads
    return torchrun.run_under_torchrun if torchrun.launched() else run_processes


def gather(state: dict[str, Tensor], run: Runner) -> dict[str, Tensor]:
    """Return the entries of every process that ``run`` leaves stages in."""
    if run is not torchrun.run_under_torchrun:
        return state
    # Of a stage's workers the first counts: each has running statistics of its own.
    parts = reversed(torchrun.everybodys(state))
    return {name: t for part in parts for name, t in part.items()}


def from_first(function: Callable[[], T], run: Runner, devices: Sequence[torch.device]) -> T:
    """Return what ``function`` returns in the first of the processes that ``run`` leaves stages in.

    What it finds, or makes up, is then the same for all of them.
    """
    if run is not torchrun.run_under_torchrun:
        return function()
    return torchrun.from_first(function, devices)
