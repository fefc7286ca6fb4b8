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
    """The assignment of one worker; it can be sent to another process.

    Attributes:
        index: its number.
        steps: its steps, in order.
        device: where it computes.
        devices: where each worker computes, if activations move from one to another.
        chunks: of each microbatch's sequence, each with a number of its own in the steps.
        stages: sources of the stages that it trains, by index.
        slots: the number of weight slots of each stage; 1 where it has no steps.
        inference: instead of these, the stages that it only runs forward.
        incoming: each other worker's messages to it, in the order in which they leave; only where
            they are received in that order, through torch.distributed.
    """

    index: int
    steps: Steps
    device: torch.device
    devices: Sequence[torch.device] = ()
    chunks: int = 1
    stages: Mapping[int, StageSource] = field(default_factory=dict)
    slots: Mapping[int, int] = field(default_factory=dict)
    inference: Sequence[PassConfig] = ()
    incoming: Mapping[int, Sequence[Message]] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerReport:
    """The report of a worker after a run.

    Attributes:
        rows: of each microbatch.
        weight_slots: the number of weight versions in memory, over its stages.
        stages: those that it has trained, by index, as they stand after the run.
        record: of events and memory, as configured.
        losses: on the last stage, (microbatch, weighted loss); elsewhere empty.
        most_pending: the most microbatches that waited for their backward at once.
        sent_bytes: by receiver and purpose ("activation", "gradient", "weights").
        loss_scales: of each update, if losses are scaled.
        skipped: updates that were not made, likewise.
        results: on the last stage, (microbatch, result or output), in inference or if outputs are
            kept.
        end: the first microbatch after the run; the table may have more.
        error: of a layer or the loss, if the run ended by it with whole updates.
        loss_values: what calls of the loss have changed in a worker's own copy of it.
    """

    rows: Sequence[int]
    weight_slots: int
    stages: Mapping[int, StageSource] = field(default_factory=dict)
    record: WorkerRecord = field(default_factory=WorkerRecord)
    losses: Iterable[tuple[int, float]] = ()
    most_pending: int = 0
    sent_bytes: Mapping[tuple[int, str], int] = field(default_factory=dict)
    loss_scales: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    results: list[tuple[int, Any]] = field(default_factory=list)
    end: int = sys.maxsize
    error: BaseException | None = None
    loss_values: Mapping[str, Any] = field(default_factory=dict)


class Runner(ABC):
    """Runs the workers of a pipeline, one run after another; by default all are started here.

    :data:`pipekit.names.TRANSPORTS` names those of each transport.

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
