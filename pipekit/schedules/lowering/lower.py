"""From a schedule to what a worker runs: whom to receive from and to send to, which weight slot."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from pipekit.schedules.lowering.weight_slots import weight_slots
from pipekit.schedules.ops import OPS, RECEIVERS, SENDERS, Op, Payload
from pipekit.schedules.repeated import alike, distinct
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task

MAIN = -1
"""In place of a skip connection: the way from stage to stage."""

Skips = Sequence[tuple[int, int]]
"""Skip connections, each from a stage to a later one."""

FIRST_TIE = MAIN - 1
"""In place of a skip connection: the first weight that stages share; others count down."""


class Message(NamedTuple):
    """What one task sends to another, as both of them know it.

    Attributes:
        payload: an activation, or its gradient.
        stage: of the task that receives it.
        microbatch: of both tasks.
        skip: the number of the skip connection that it belongs to, or MAIN; of a weight that stages
            share, a number below that.
        attempt: 1 if it takes the place of one that was sent before an update was validated.
    """

    payload: Payload
    stage: int
    microbatch: int
    skip: int = MAIN
    attempt: int = 0

    @property
    def purpose(self) -> str:
        """What it is for: its payload's name, or "weights" for a gradient of shared weights."""
        return "weights" if self.skip <= FIRST_TIE else self.payload.value

    def later(self, microbatches: int, versions: int = 0) -> "Message":
        """Return the same message, ``microbatches`` later; it knows no weight ``versions``."""
        payload, stage, microbatch, skip, attempt = self
        return Message(payload, stage, microbatch + microbatches, skip, attempt)


def runs_again(mode: str, ends_batch: bool) -> bool:
    """Return whether a stage's ``recompute`` has a forward run again before its backward.

    Args:
        mode: "never", "always" or "except_last".
        ends_batch: whether the microbatch is the worker's last one of a batch.
    """
    return mode == "always" or (mode == "except_last" and not ends_batch)


class Step(NamedTuple):
    """A task with its communication and its place in memory.

    Attributes:
        task: what to do.
        receives: the messages that it needs, each with the worker that sends it; none for a forward
            of the first stage, a backward of the last and one for the weights.
        sends: the messages that it gives, each with the worker that receives it; none for a forward
            of the last stage, a backward of the first and one for the weights.
        slot: which of the stage's weight slots a pass reads or an update writes.
        update: the update that the task makes, or that sums its microbatch's gradient.
        ends_batch: whether the task's microbatch is the worker's last one of a batch.
        ends_update: whether the task is the worker's last that adds a gradient for the update.
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
        return runs_again(mode, self.ends_batch)

    def later(self, microbatches: int, versions: int) -> "Step":
        """Return the same step, ``microbatches`` and weight ``versions`` later."""
        task, receives, sends, slot, update, ends_batch, ends_update = self
        return Step(
            task.later(microbatches, versions),
            _later(receives, microbatches),
            _later(sends, microbatches),
            slot,
            update + versions,
            ends_batch,
            ends_update,
        )


def lower(
    schedule: Schedule, skips: Skips = (), ties: Skips = (), cut_every: int | None = None
) -> tuple[Sequence[Step], ...]:
    """Return every worker's steps for a schedule that :func:`check` has accepted.

    Args:
        schedule: the table.
        skips: skip connections between stages that are not neighbours, or that are: what passes
            there goes straight from the one to the other (torchgpipe, section 3.3).
        ties: stages that share a weight, of which nothing passes in a forward: each has a copy.
            Its gradient comes back as a skip connection's does.
        cut_every: microbatches between two places where a run may end and another go on from
            there, or None; see :func:`weight_slots`.

    Raises:
        ScheduleError: a backward would read a version that no longer lies where its forward read.
    """
    if schedule.period:
        first = lower(schedule.period, skips, ties, cut_every)
        # Else a repetition begins with its version where the one before it has left it.
        if all(step.slot == 0 for steps in first for step in steps):
            return tuple(map(alike, schedule.workers, first))
    into, out_of = _ways(schedule, skips, ties)
    update_of = schedule.update_of
    lowered: list[Sequence[Step]] = []
    for tasks in schedule.workers:
        last_of_batches, last_of_updates = batch_ends(tasks, schedule), update_ends(tasks, schedule)
        slots = weight_slots(tasks, cut_every).slots
        steps = []
        for position, (task, slot) in enumerate(zip(tasks, slots, strict=True)):
            op, stage, k, _ = task
            steps.append(
                Step(
                    task,
                    _at(into.get((op, stage), ()), k),
                    _at(out_of.get((op, stage), ()), k),
                    slot,
                    update_of[stage][k],
                    (stage, k) in last_of_batches,
                    position in last_of_updates,
                )
            )
        lowered.append(tuple(steps))
    return tuple(lowered)


_Ends = tuple[tuple[Message, int], ...]
"""Messages, each with the worker at its other end."""
_Ways = dict[tuple[Op, int], list[list[_Ends]]]
"""For each op and stage the ways that messages go; for each of these, its message of every
microbatch, alone in a tuple."""


def _later(ends: _Ends, microbatches: int) -> _Ends:
    """Return messages so many microbatches later."""
    if not ends:
        return ()
    return tuple([(message.later(microbatches), worker) for message, worker in ends])


def _at(ways: Sequence[Sequence[_Ends]], microbatch: int) -> _Ends:
    if len(ways) == 1:
        return ways[0][microbatch]
    return tuple(end for way in ways for end in way[microbatch])


def _ways(schedule: Schedule, skips: Skips, ties: Skips) -> tuple[_Ways, _Ways]:
    """Return what the tasks of each op and stage receive, and what they send."""
    graph = schedule.dependencies
    into: _Ways = defaultdict(list)
    out_of: _Ways = defaultdict(list)

    def ends(messages: Sequence[Message], others: Sequence[int]) -> list[_Ends]:
        workers = (graph.worker_of[number] for number in others)
        return [(end,) for end in zip(messages, workers, strict=True)]

    back = [Payload.GRADIENT] if schedule.trains else []
    both = [Payload.ACTIVATION, *back]
    each = [(stage, stage + 1, MAIN, both) for stage in range(schedule.stages - 1)]
    each += [(early, late, number, both) for number, (early, late) in enumerate(skips)]
    each += [(early, late, FIRST_TIE - number, back) for number, (early, late) in enumerate(ties)]
    for early, late, skip, payloads in each:
        for payload in payloads:
            source, destination = (early, late) if payload.step > 0 else (late, early)
            messages = [
                Message(payload, destination, k, skip) for k in range(schedule.microbatches)
            ]
            received = ends(messages, graph.senders[payload][source])
            sent = ends(messages, graph.receivers[payload][destination])
            for op in RECEIVERS[payload]:
                into[op, destination].append(received)
            for op in SENDERS[payload]:
                out_of[op, source].append(sent)
    return into, out_of


def loss_versions(schedule: Schedule) -> tuple[int, ...]:
    """Return the oldest version that the last stage reads for the losses of each update."""
    last = schedule.stages - 1
    if schedule.period:
        first, step = loss_versions(schedule.period), len(schedule.period.updates[last])
        return tuple(v + time * step for time in range(schedule.times) for v in first)
    read = {
        task.microbatch: task.version
        for tasks in schedule.workers
        for task in tasks
        if task.op is Op.FORWARD and task.stage == last
    }
    return tuple(min(read[k] for k in summed) for summed in schedule.updates[last])


def slot_count(steps: Sequence[Step], stage: int) -> int:
    """Return how many weight slots ``stage`` needs to run its part of a worker's ``steps``."""
    return 1 + max((step.slot for step in distinct(steps) if step.task.stage == stage), default=0)


def batch_ends(tasks: Sequence[Task], schedule: Schedule) -> set[tuple[int, int]]:
    """Return (stage, microbatch) of the last microbatch of each batch in a worker's list."""
    last: dict[tuple[int, int], int] = {}
    for op, stage, microbatch, _ in tasks:
        if op is Op.FORWARD:
            key = stage, schedule.batch_of[microbatch]
            last[key] = max(microbatch, last.get(key, 0))
    return {(stage, microbatch) for (stage, _), microbatch in last.items()}


def update_ends(tasks: Sequence[Task], schedule: Schedule) -> set[int]:
    """Return the positions of the last task in a worker's list that adds to each update's sum."""
    last = {
        (stage, schedule.update_of[stage][microbatch]): position
        for position, (op, stage, microbatch, _) in enumerate(tasks)
        if OPS[op].adds_gradient
    }
    return set(last.values())
