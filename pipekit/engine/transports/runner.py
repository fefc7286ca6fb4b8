"""What runs workers over a transport, which :data:`pipekit.names.TRANSPORTS` names."""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Protocol, TypeVar

import torch

from pipekit.engine.batches import Batch, End
from pipekit.engine.config import RunConfig
from pipekit.engine.observers.reporter import Listener
from pipekit.engine.transports.distributed import torchrun
from pipekit.engine.transports.processes.runner import ProcessRunner
from pipekit.engine.transports.threads import ThreadRunner
from pipekit.engine.work import Report, WorkerAssignment

T = TypeVar("T")


class Runner(Protocol):
    """Runs the workers of a pipeline, one run after another."""

    def run(
        self,
        workers: Sequence[WorkerAssignment],
        config: RunConfig,
        batches: Iterable[Batch | End],
        on_news: Listener | None,
    ) -> list[Report]:
        """Return the reports of all workers, once they have done what they were assigned.

        Args:
            workers: what each is to do.  A stage that is the very object of this worker's last
                report stands for what the worker has kept, and need not be built again.
            config: what is common to all.
            batches: the run's data.
            on_news: called in this thread with each loss and update, or None.

        Raises:
            Exception: the first that any worker raised.
        """

    def can_end(self, devices: Sequence[torch.device]) -> bool:
        """Return whether a run on these devices may end before its table does."""

    def gather(self, state: dict[str, T]) -> dict[str, T]:
        """Return the entries of every process in which this runner leaves stages."""

    def agree(self, function: Callable[[], T]) -> T:
        """Return what ``function`` returns in the first of the processes that have stages.

        What it finds, or makes up, is then the same for all of them.
        """

    def close(self) -> None:
        """End whatever outlives a run; the runner can be used again."""


def over_threads(devices: Sequence[torch.device]) -> Runner:
    """Return what runs each worker in a thread of this process."""
    import_module("torch._dynamo")  # else the first run's optimizers do, for 1.5 s of its time
    return ThreadRunner()


def over_processes(devices: Sequence[torch.device]) -> Runner:
    """Return what runs each worker in a process: torchrun's, if it started this one, or its own."""
    return torchrun.TorchrunRunner(devices) if torchrun.launched() else ProcessRunner()
