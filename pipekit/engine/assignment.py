"""The assignments of workers, their reports after a run, and what runs them over a transport."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from pipekit.engine.batches import Batch
from pipekit.engine.config import RunConfig
from pipekit.engine.execution.passes import PassConfig
from pipekit.engine.execution.stage import StageSource
from pipekit.engine.feed import End
from pipekit.engine.observers.record import WorkerRecord
from pipekit.engine.observers.reporter import Listener
from pipekit.schedules import Message, Steps

T = TypeVar("T")


class NotBuilt(Exception):
    """A stage could not be built: none has begun to train."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


@dataclass(frozen=True, kw_only=True)
class WorkerAssignment:
    """The assignment of one worker; it can be sent to another process."""

    index: int  # of the worker
    steps: Steps
    device: torch.device
    devices: Sequence[torch.device] = ()  # of all workers, if activations move between them
    chunks: int = 1  # of each microbatch's sequence, each with a number of its own in the steps
    stages: Mapping[int, StageSource] = field(default_factory=dict)  # that it trains, by index
    inference: Sequence[PassConfig] = ()  # instead of these, stages that it only runs forward
    # Each other worker's messages to it, in order, where they are received in that order.
    incoming: Mapping[int, Sequence[Message]] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerReport:
    """The report of a worker after a run."""

    weight_slots: int  # versions in memory, over its stages
    stages: Mapping[int, StageSource] = field(default_factory=dict)  # as they stand now
    record: WorkerRecord = field(default_factory=WorkerRecord)
    losses: Iterable[tuple[int, float]] = ()  # (microbatch, weighted loss) of the last stage
    most_pending: int = 0  # the most microbatches that waited for their backward at once
    sent_bytes: Mapping[tuple[int, str], int] = field(default_factory=dict)  # (receiver, purpose)
    loss_scales: list[float] = field(default_factory=list)  # of each update, if losses are scaled
    skipped: list[int] = field(default_factory=list)  # updates that were not made, likewise
    results: list[tuple[int, Any]] = field(default_factory=list)  # (microbatch, result or output)
    rows: Sequence[int] = ()  # of each microbatch, in an evaluation
    end: int = sys.maxsize  # the first microbatch after the run; the table may have more
    error: BaseException | None = None  # of a layer or the loss, after which updates were whole
    loss_values: Mapping[str, Any] = field(default_factory=dict)  # changed in a copy of the loss


class Runner(ABC):
    """Runs the workers of a pipeline, one run after another; by default all are started here."""

    copies_loss = False  # whether workers have a copy of the loss for each run
    can_end = False  # whether a run may end before its table does

    @abstractmethod
    def run(
        self,
        workers: Sequence[WorkerAssignment],
        config: RunConfig,
        batches: Iterable[Batch | End],
        on_news: Listener | None,
    ) -> list[WorkerReport]:
        """Return all workers' reports, or raise the first error that any of them raised.

        ``on_news`` is called in this thread with each loss and update.
        """

    def gather(self, state: dict[str, T]) -> dict[str, T]:
        """Return the entries of every process in which this runner leaves stages."""
        return state

    def agree(self, function: Callable[[], T]) -> T:
        """Return what ``function`` returns in the first of the processes that have stages."""
        return function()

    @abstractmethod
    def close(self) -> None:
        """End whatever outlives a run; the runner can be used again."""
