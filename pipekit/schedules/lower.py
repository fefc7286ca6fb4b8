"""From a schedule to what a worker runs: whom to receive from and to send to, which weight slot."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipekit.schedules.ops import OPS, Op, Payload
from pipekit.schedules.replay import owners
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task
from pipekit.schedules.weight_slots import weight_slots

MAIN = -1
"""In place of a skip connection: the way from stage to stage."""

Skips = Sequence[tuple[int, int]]
"""Skip connections, each from a stage to a later one."""


class Message(NamedTuple):
    """What one task sends to another, as both of them know it.

    Attributes:
        payload: an activation, or its gradient.
        stage: of the task that receives it.
        microbatch: of both tasks.
        skip: the number of the skip connection that it belongs to, or MAIN.
    """

    payload: Payload
    stage: int
    microbatch: int
    skip: int = MAIN


class Step(NamedTuple):
    """A task with its communication and its place in memory.

    Attributes:
        task: what to do.
        receives: the messages that it needs, each with the worker that sends it; none for a forward
            of the first stage and a backward of the last.
        sends: the messages that it gives, each with the worker that receives it; none for a forward
            of the last stage and a backward of the first.
        slot: which of the stage's weight slots a pass reads or an update writes.
        update: the update that the task adds a gradient to, or makes; of a forward, its backward's.
        ends_batch: whether the task's microbatch is the worker's last one of a batch.
        ends_update: whether the task is the worker's last backward for the update.
    """

    task: Task
    receives: tuple[tuple[Message, int], ...]
    sends: tuple[tuple[Message, int], ...]
    slot: int
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


def lower(schedule: Schedule, skips: Skips = ()) -> tuple[tuple[Step, ...], ...]:
    """Return every worker's steps for a schedule that :func:`check` has accepted.

    Args:
        schedule: the table.
        skips: skip connections between stages that are not neighbours, or that are: what passes
            there goes straight from the one to the other (torchgpipe, section 3.3).

    Raises:
        ScheduleError: a backward would read a version that no longer lies where its forward read.
    """
    who = owners(schedule)
    ways = _Ways(schedule.stages, skips)

    def resolved(op: Op, ends: Sequence[tuple[int, int, int]], k: int) -> Iterator[_Resolved]:
        payload = OPS[op].sends
        for other, receiver, skip in ends:
            assert payload
            yield Message(payload, receiver, k, skip), who[op, other][k]

    lowered = []
    for tasks in schedule.workers:
        batch_ends, update_ends = _ends(tasks, schedule)
        slots = weight_slots(tasks).slots
        lowered.append(
            tuple(
                Step(
                    task,
                    tuple(resolved(task.op, ways.into[task.op, task.stage], task.microbatch)),
                    tuple(resolved(task.op, ways.out_of[task.op, task.stage], task.microbatch)),
                    slot,
                    schedule.update_of[task.stage][task.microbatch],
                    (task.stage, task.microbatch) in batch_ends,
                    position in update_ends,
                )
                for position, (task, slot) in enumerate(zip(tasks, slots, strict=True))
            )
        )
    return tuple(lowered)


_Resolved = tuple[Message, int]


class _Ways:
    """Which stages a task of each op and stage receives from and sends to.

    Each way is (the other stage, the receiving stage, the skip or MAIN).
    """

    def __init__(self, stages: int, skips: Skips) -> None:
        self.into: dict[tuple[Op, int], list[tuple[int, int, int]]] = defaultdict(list)
        self.out_of: dict[tuple[Op, int], list[tuple[int, int, int]]] = defaultdict(list)
        neighbours = [(stage, stage + 1, MAIN) for stage in range(stages - 1)]
        for early, late, skip in [*neighbours, *((a, b, i) for i, (a, b) in enumerate(skips))]:
            for op, source, destination in (Op.FORWARD, early, late), (Op.BACKWARD, late, early):
                self.into[op, destination].append((source, destination, skip))
                self.out_of[op, source].append((destination, destination, skip))


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


def loss_versions(schedule: Schedule) -> tuple[int, ...]:
    """Return the oldest version that the last stage reads for the losses of each update."""
    last = schedule.stages - 1
    read = {
        task.microbatch: task.version
        for tasks in schedule.workers
        for task in tasks
        if task.op is Op.FORWARD and task.stage == last
    }
    return tuple(min(read[k] for k in summed) for summed in schedule.updates[last])


def slot_count(steps: Sequence[Step], stage: int) -> int:
    """Return how many weight slots ``stage`` needs to run its part of a worker's ``steps``."""
    return 1 + max((step.slot for step in steps if step.task.stage == stage), default=0)


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
