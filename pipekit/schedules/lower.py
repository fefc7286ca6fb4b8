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
        update: the update that the task adds a gradient to, or makes; of a forward, its backward's.
        ends_batch: whether the task's microbatch is the worker's last one of a batch.
        ends_update: whether the task is the worker's last backward for the update.
    """

    task: Task
    source: int | None
    destination: int | None
    buffer: int
    update: int = 0
    ends_batch: bool = False
    ends_update: bool = False

    def recomputed(self, mode: str) -> bool:
        """Return whether the forward runs again, if the stage's ``recompute`` is ``mode``."""
        return mode == "always" or (mode == "except_last" and not self.ends_batch)


class Sum(NamedTuple):
    """What an update sums, where its stage is on several workers.

    Attributes:
        contributors: the workers that have a backward for it, in their order.
        batches: how many batches its microbatches are from.
    """

    contributors: tuple[int, ...]
    batches: int


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
        batch_ends, update_ends = _ends(tasks, schedule)
        lowered.append(
            tuple(
                Step(
                    task,
                    other(producer(task, stages), task.microbatch),
                    other(consumer(task, stages), task.microbatch),
                    buffer,
                    schedule.update_of[task.stage][task.microbatch],
                    (task.stage, task.microbatch) in batch_ends,
                    position in update_ends,
                )
                for position, (task, buffer) in enumerate(
                    zip(tasks, weight_buffers(tasks).buffers, strict=True)
                )
            )
        )
    return tuple(lowered)


def sums(schedule: Schedule) -> tuple[tuple[Sum, ...], ...]:
    """Return what each update of each stage sums: update ``i + 1`` of stage ``s`` is [s][i]."""
    who, batch_of = owners(schedule), schedule.batch_of
    return tuple(
        tuple(
            Sum(
                tuple(sorted({who[Op.BACKWARD, stage][k] for k in summed})),
                1 + batch_of[summed[-1]] - batch_of[summed[0]],
            )
            for summed in updates
        )
        for stage, updates in enumerate(schedule.updates)
    )


def buffer_count(steps: Sequence[Step], stage: int) -> int:
    """Return how many weight buffers a stage needs to run its steps."""
    return 1 + max((step.buffer for step in steps if step.task.stage == stage), default=0)


def _ends(tasks: Sequence[Task], schedule: Schedule) -> tuple[set[tuple[int, int]], set[int]]:
    """Return what ends batches and updates on one worker.

    That is (stage, microbatch) of the last microbatch of each batch, and the position of the last
    backward for each update.
    """
    batch_of, update_of = schedule.batch_of, schedule.update_of
    last_of_batch: dict[tuple[int, int], int] = {}
    last_of_update: dict[tuple[int, int], int] = {}
    for position, (op, stage, microbatch, _) in enumerate(tasks):
        if op is Op.FORWARD:
            key = stage, batch_of[microbatch]
            last_of_batch[key] = max(microbatch, last_of_batch.get(key, 0))
        elif op is Op.BACKWARD:
            last_of_update[stage, update_of[stage][microbatch]] = position
    batch_ends = {(stage, microbatch) for (stage, _), microbatch in last_of_batch.items()}
    return batch_ends, set(last_of_update.values())
