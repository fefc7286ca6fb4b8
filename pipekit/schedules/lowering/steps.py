"""What a worker runs: its steps, each a task with its messages and its place in memory."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import NamedTuple

from pipekit.schedules.ops import Payload
from pipekit.schedules.task import Task

MAIN = -1
"""In place of a skip connection: the way from stage to stage."""

FIRST_TIE = MAIN - 1
"""In place of a skip connection: the first weight that stages share; others count down."""


class Message(NamedTuple):
    """What one task sends to another, as both of them know it.

    Attributes:
        payload: an activation, or its gradient.
        stage: of the task that receives it.
        microbatch: of both tasks.
        skip: the number of its skip connection, or MAIN; less than that: of weights that stages
            share.
    """

    payload: Payload
    stage: int
    microbatch: int
    skip: int = MAIN

    @property
    def purpose(self) -> str:
        """What it is for: its payload's name, or "weights" for a gradient of shared weights."""
        return "weights" if self.skip <= FIRST_TIE else self.payload.value


Endpoints = tuple[tuple[Message, int], ...]
"""Messages, each with the worker at its other end."""


def runs_again(mode: str, ends_batch: bool) -> bool:
    """Return whether a stage's ``recompute`` has a forward run again before its backward."""
    return mode == "always" or (mode == "except_last" and not ends_batch)


class Step(NamedTuple):
    """A task with its communication and its place in memory.

    Attributes:
        task: what to do.
        receives: the messages that it needs, each with the worker that sends it; none at that end
            of the pipeline and for weights.
        sends: the messages that it gives, likewise with the worker that receives it.
        slot: which of the stage's weight slots a pass reads or an update writes.
        update: the update that the task makes, or that sums its microbatch's gradient.
        ends_batch: whether the task's microbatch is the worker's last one of a batch.
        ends_update: whether the task is the worker's last that adds a gradient for the update.
        again_at_a_place: whether a task of the table runs the microbatch's forward again.
    """

    task: Task
    receives: Endpoints
    sends: Endpoints
    slot: int
    update: int = 0
    ends_batch: bool = False
    ends_update: bool = False
    again_at_a_place: bool = False

    def recomputed(self, mode: str) -> bool:
        """Return whether the forward runs again, if the stage's ``recompute`` is ``mode``."""
        return self.again_at_a_place or runs_again(mode, self.ends_batch)

    def later(self, microbatches: int, versions: int) -> "Step":
        """Return the same step, ``microbatches`` and weight ``versions`` later."""
        (op, stage, number, version), receives, sends, slot, update, *ends = self
        return Step(
            Task(op, stage, number + microbatches, version + versions),
            _later(receives, microbatches),
            _later(sends, microbatches),
            slot,
            update + versions,
            *ends,
        )


def _later(ends: Endpoints, microbatches: int) -> Endpoints:
    return tuple(
        [
            (Message(payload, stage, number + microbatches, skip), worker)
            for (payload, stage, number, skip), worker in ends
        ]
    )


@dataclass(frozen=True)
class Steps:
    """The steps of one worker: a head, and a period that repeats (:class:`Schedule`).

    Attributes:
        head: the first ones.
        period: those behind them: of as many periods of the schedule as it takes for the weight
            slots to come round.  Empty: the head is all.
        microbatches: by how many later each period is than the one before.
        versions: likewise, of each stage.
    """

    head: tuple[Step, ...]
    period: tuple[Step, ...] = ()
    microbatches: int = 0
    versions: tuple[int, ...] = ()

    @property
    def distinct(self) -> tuple[Step, ...]:
        """Those of the head and of one period."""
        return self.head + self.period

    @cached_property
    def slots(self) -> dict[int, int]:
        """How many weight slots each stage needs."""
        counts: dict[int, int] = {}
        for step in self.distinct:
            stage = step.task.stage
            counts[stage] = max(counts.get(stage, 0), 1 + step.slot)
        return counts

    def until(self, end: Callable[[], int] = lambda: sys.maxsize) -> Iterator[Step]:
        """Yield the steps of the microbatches before one that may become known meanwhile."""
        for step in self.head:
            if step.task.microbatch < end():
                yield step
        numbers = [step.task.microbatch for step in self.period]
        if not numbers:
            return
        first = min(numbers)
        versions = [self.versions[step.task.stage] for step in self.period]
        for times in count():
            later = times * self.microbatches
            if first + later >= end():
                return
            for step, number, each in zip(self.period, numbers, versions, strict=True):
                if number + later < end():
                    yield step.later(later, times * each)
