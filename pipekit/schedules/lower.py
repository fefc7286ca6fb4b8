"""From a schedule to what a worker runs: whom to receive from, whom to send to, which buffer."""

from collections.abc import Sequence
from typing import NamedTuple

from pipekit.schedules.buffers import weight_buffers
from pipekit.schedules.replay import consumer, owners, producer
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Op, Task


class Step(NamedTuple):
    """A task with its communication and its place in memory.

    Attributes:
        task: what to do.
        source: the worker whose message is needed first, or None.
        destination: the worker that the result is sent to, or None.
        buffer: which of the stage's weight buffers a pass reads or an update writes.
    """

    task: Task
    source: int | None
    destination: int | None
    buffer: int


def lower(schedule: Schedule) -> tuple[tuple[Step, ...], ...]:
    """Return every worker's steps for a schedule that :func:`check` has accepted.

    Raises:
        ScheduleError: a backward would read a version that no longer lies where its forward read.
    """
    who = owners(schedule)
    stages = schedule.stages

    def other(end: tuple[Op, int] | None, microbatch: int) -> int | None:
        return None if end is None else who[end][microbatch]

    lowered = []
    for tasks in schedule.workers:
        steps = []
        for task, buffer in zip(tasks, weight_buffers(tasks).buffers, strict=True):
            source = other(producer(task, stages), task.microbatch)
            destination = other(consumer(task, stages), task.microbatch)
            steps.append(Step(task, source, destination, buffer))
        lowered.append(tuple(steps))
    return tuple(lowered)


def buffer_count(steps: Sequence[Step], stage: int) -> int:
    """Return how many weight buffers a stage needs to run its steps."""
    return 1 + max((step.buffer for step in steps if step.task.stage == stage), default=0)
