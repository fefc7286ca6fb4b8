"""What runs workers over a transport; :data:`pipekit.names.TRANSPORTS` names each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch

from pipekit.engine.assignment import WorkerAssignment, WorkerReport
from pipekit.engine.batches import Batch, End
from pipekit.engine.config import RunConfig
from pipekit.engine.observers.reporter import Listener

T = TypeVar("T")


class Runner(ABC):
    """Runs the workers of a pipeline, one run after another; by default all are started here.

    Attributes:
        copies_loss: whether workers have a copy of the loss for each run.
    """

    copies_loss = False

    @abstractmethod
    def run(
        self,
        workers: Sequence[WorkerAssignment],
        config: RunConfig,
        batches: Iterable[Batch | End],
        on_news: Listener | None,
    ) -> list[WorkerReport]:
        """Return all workers' reports, or raise the first error that any of them raised.

        A stage of this worker's last report need not be built again.  ``on_news`` is called in this
        thread with each loss and update.
        """

    @abstractmethod
    def can_end(self, devices: Sequence[torch.device]) -> bool:
        """Return whether a run on these devices may end before its table does."""

    def gather(self, state: dict[str, T]) -> dict[str, T]:
        """Return the entries of every process in which this runner leaves stages."""
        return state

    def agree(self, function: Callable[[], T]) -> T:
        """Return what ``function`` returns in the first of the processes that have stages."""
        return function()

    @abstractmethod
    def close(self) -> None:
        """End whatever outlives a run; the runner can be used again."""
