"""Run a schedule without computing anything: who can go, when everything waits for its data.

A worker runs its list in order and waits for what a task needs; a message has one sender and one
receiver.  Such a network of processes (Kahn, 1974) reaches the same end whatever the timing, so
that one replay proves what every execution will do.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule, ScheduleError
from pipekit.schedules.task import Task

Owners = dict[tuple[Op, int], list[int]]
NOBODY = -1


def owners(schedule: Schedule) -> Owners:
    """Return ``{(op, stage): [worker that runs it for microbatch 0, 1, ...]}``, NOBODY for a gap.

    Raises:
        ScheduleError: a forward or backward stands in the table twice, below index 0, or beyond
            what so few tasks can be.
    """
    size = sum(map(len, schedule.workers))
    if max(schedule.stages, schedule.microbatches) > size:
        largest = max((t for tasks in schedule.workers for t in tasks), key=lambda t: max(t[1:3]))
        raise ScheduleError(
            f"{largest} cannot be: the table has only {size} tasks, fewer than its "
            f"{schedule.stages} stages and {schedule.microbatches} microbatches need"
        )
    table: Owners = defaultdict(lambda: [NOBODY] * schedule.microbatches)
    for worker, tasks in enumerate(schedule.workers):
        for task in tasks:
            op, stage, microbatch, version = task
            if stage < 0 or microbatch < 0 or version < 0:
                raise ScheduleError(f"{task!r} on worker {worker}: everything counts from 0")
            if op is Op.UPDATE:
                continue
            row = table[op, stage]
            if row[microbatch] != NOBODY:
                raise ScheduleError(
                    f"{task} stands in the table twice: on worker {row[microbatch]} and on "
                    f"worker {worker}"
                )
            row[microbatch] = worker
    return dict(table)


def consumer(task: Task, stages: int) -> tuple[Op, int] | None:
    """Return the (op, stage) that the output of a task is sent to, or None if it is not sent."""
    op, stage, _, _ = task
    if op is Op.FORWARD and stage + 1 < stages:
        return Op.FORWARD, stage + 1
    if op is Op.BACKWARD and stage > 0:
        return Op.BACKWARD, stage - 1
    return None


def producer(task: Task, stages: int) -> tuple[Op, int] | None:
    """Return the (op, stage) whose output a task receives, or None if it receives nothing."""
    op, stage, _, _ = task
    if op is Op.FORWARD and stage > 0:
        return Op.FORWARD, stage - 1
    if op is Op.BACKWARD and stage + 1 < stages:
        return Op.BACKWARD, stage + 1
    return None


def replay(
    schedule: Schedule, capacity: int | None = None, joint_updates: bool = False
) -> Iterator[tuple[int, int, Task]]:
    """Yield ``(worker, position, task)`` in an order in which the tasks can run.

    Args:
        schedule: the table.
        capacity: how many messages may be under way from one worker to another before its next
            send blocks (at least 1); None for no limit.
        joint_updates: whether the updates of a batch wait for one another on all stages, as they do
            if gradients are clipped by their norm over the whole model.  A worker's first one of
            them waits until all workers have come to theirs.

    Raises:
        ValueError: the capacity is below 1.
        ScheduleError: the workers wait for one another for ever; the message names who waits
            where, for which task.
    """
    if capacity is not None and capacity < 1:
        raise ValueError(f"capacity must be at least 1 message, not {capacity}")
    state = _State(schedule, capacity, joint_updates)
    positions = [0] * len(schedule.workers)
    remaining = sum(map(len, schedule.workers))
    while remaining:
        before = remaining
        for worker, tasks in enumerate(schedule.workers):
            position = positions[worker]
            while position < len(tasks) and state.missing(worker, tasks[position]) is None:
                if not state.room(worker, tasks[position]):
                    break
                state.run(worker, tasks[position])
                yield worker, position, tasks[position]
                position += 1
            remaining -= position - positions[worker]
            positions[worker] = position
        if remaining == before:
            raise ScheduleError(state.deadlock(positions))


class _State:
    """What has been computed, and what is under way, at a point of the replay."""

    def __init__(self, schedule: Schedule, capacity: int | None, joint_updates: bool) -> None:
        self.schedule, self.stages, self.capacity = schedule, schedule.stages, capacity
        self.joint_updates = joint_updates
        self.owners = owners(schedule)
        rows = range(self.stages)
        self.done = {
            op: [bytearray(schedule.microbatches) for _ in rows] for op in (Op.FORWARD, Op.BACKWARD)
        }
        self.update_of = schedule.update_of
        self.left = [Counter(stage) for stage in self.update_of]  # backwards, by stage and update
        self.under_way: dict[tuple[int, int], int] = defaultdict(int)
        self.made: Counter[tuple[int, int]] = Counter()  # updates, by worker and stage
        self.stages_of = [{task.stage for task in tasks} for tasks in schedule.workers]
        self.busy = {worker for worker, tasks in enumerate(schedule.workers) if tasks}
        self.arrived: dict[int, set[int]] = defaultdict(set)  # of these, by update

    def missing(self, worker: int, task: Task) -> Task | None:
        """Return a task that a worker's next one still waits for, or None."""
        op, stage, microbatch, version = task
        if op is Op.FORWARD:
            if stage and not self.done[op][stage - 1][microbatch]:
                return task._replace(stage=stage - 1)
        elif op is Op.BACKWARD:
            if not self.done[Op.FORWARD][stage][microbatch]:
                return task._replace(op=Op.FORWARD)
            if stage + 1 < self.stages and not self.done[op][stage + 1][microbatch]:
                return task._replace(stage=stage + 1)
        else:
            update = self.update_of[stage][microbatch]
            if self.joint_updates:
                return self._unsettled(worker, task._replace(version=update))
            if self.left[stage][update]:
                return Task(Op.BACKWARD, stage, self._late(stage, update), version)
        return None

    def room(self, worker: int, task: Task) -> bool:
        """Return whether the task's output can be sent now."""
        if self.capacity is None:
            return True
        receiver = self._other(consumer(task, self.stages), task.microbatch)
        if receiver is None or receiver == worker:
            return True
        return self.under_way[worker, receiver] < self.capacity

    def run(self, worker: int, task: Task) -> None:
        op, stage, microbatch, _ = task
        if op is Op.UPDATE:
            self.made[worker, stage] += 1
            return
        self.done[op][stage][microbatch] = 1
        if op is Op.BACKWARD:
            self.left[stage][self.update_of[stage][microbatch]] -= 1
        if self.capacity is not None:
            sender = self._other(producer(task, self.stages), microbatch)
            receiver = self._other(consumer(task, self.stages), microbatch)
            if sender is not None:
                self.under_way[sender, worker] -= 1
            if receiver is not None:
                self.under_way[worker, receiver] += 1

    def deadlock(self, positions: list[int]) -> str:
        """Say which workers wait, in which task, for what."""
        waits = []
        for worker, (tasks, position) in enumerate(
            zip(self.schedule.workers, positions, strict=True)
        ):
            if position == len(tasks):
                continue
            task = tasks[position]
            missing = self.missing(worker, task)
            if missing is None:
                waits.append(f"worker {worker} waits to send the output of {task}")
                continue
            owner = self._owner(missing)
            where = "which no worker has" if owner is None else f"which worker {owner} has"
            if owner == worker:
                where = "which comes later in its own list"
            waits.append(f"worker {worker} waits in {task} for {missing}, {where}")
        return "the schedule can never finish: " + "; ".join(waits)

    def _unsettled(self, worker: int, update: Task) -> Task | None:
        """Return what a worker waits for that makes an update together with all others, or None.

        Its stages settle it together, too: one may not be at an earlier update still.
        """
        _, _, microbatch, number = update
        for stage in sorted(self.stages_of[worker]):
            if self.made[worker, stage] < number - 1:
                return Task(Op.UPDATE, stage, microbatch, number - 1)
            if self.left[stage][number]:
                return Task(Op.BACKWARD, stage, self._late(stage, number), number)
        self.arrived[number].add(worker)
        absent = self.busy - self.arrived[number]
        return update._replace(stage=self.schedule.stage_of(min(absent))) if absent else None

    def _late(self, stage: int, update: int) -> int:
        """Return a microbatch whose backward an update still waits for."""
        first = next((s.start for s in self.schedule.updates[stage][update - 1 :]), None)
        if first is None:  # no worker has that update
            first = self.update_of[stage].index(update)
        return self.done[Op.BACKWARD][stage].index(0, first)

    def _owner(self, wanted: Task) -> int | None:
        """Return the worker that has a task, whichever version it reads."""
        number = 3 if wanted.op is Op.UPDATE else 2
        for worker, tasks in enumerate(self.schedule.workers):
            if any(t[:2] == wanted[:2] and t[number] == wanted[number] for t in tasks):
                return worker
        return None

    def _other(self, end: tuple[Op, int] | None, microbatch: int) -> int | None:
        if end is None or end not in self.owners:
            return None
        return self.owners[end][microbatch]
