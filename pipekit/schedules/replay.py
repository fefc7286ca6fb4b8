"""Run a schedule without computing anything: who can go, when everything waits for its data.

A worker runs its list in order and waits for what a task needs; a message has one sender and one
receiver.  Such a network of processes (Kahn, 1974) reaches the same end whatever the timing, so
that one replay proves what every execution will do.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from pipekit.schedules.dependencies import NOBODY, Dependencies
from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.ops import ADDING, OPS, SENDERS, Op
from pipekit.schedules.table import Table
from pipekit.schedules.task import Task


def replay(
    schedule: Table, capacity: int | None = None, joint_updates: bool = False
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
    graph = schedule.dependencies
    for number in order(graph, capacity, joint_updates):
        worker = graph.worker_of[number]
        yield worker, number - graph.first[worker], graph.tasks[number]


def order(
    graph: Dependencies, capacity: int | None = None, joint_updates: bool = False
) -> Iterator[int]:
    """Yield the numbers of the tasks in an order in which they can run; see :func:`replay`."""
    state = _State(graph, capacity, joint_updates)
    following = graph.first[:-1]
    yield from _advance(state, following, graph.first[1:])
    if following != graph.first[1:]:
        raise state.deadlock(following)


def settles(
    graph: Dependencies,
    ends: Sequence[Sequence[int]],
    capacity: int | None = None,
    joint_updates: bool = False,
) -> bool:
    """Return whether workers that may go to some ends, one after another, fall into step.

    Args:
        graph: of the beginning of a schedule without end.
        ends: for each of its periods, the number behind each worker's last task of it.
        capacity, joint_updates: as in :func:`replay`.

    Returns:
        Whether behind two periods in a row each worker has as many tasks left.
    """
    state = _State(graph, capacity, joint_updates)
    following, behind = graph.first[:-1], None
    for stops in ends:
        for _ in _advance(state, following, stops):
            pass
        before, behind = behind, [stop - at for stop, at in zip(stops, following, strict=True)]
        if behind == before:
            return True
    return False


def _advance(state: "_State", following: list[int], stops: Sequence[int]) -> Iterator[int]:
    """Yield tasks that can run, up to where each worker stops, and move its next task on."""
    moved = True
    while moved:
        moved = False
        for worker, stop in enumerate(stops):
            first = number = following[worker]
            while number < stop and state.can_run(number):
                state.run(number)
                yield number
                number += 1
            following[worker] = number
            moved |= number > first


class _State:
    """What has been computed, and what is under way, at a point of the replay."""

    def __init__(self, graph: Dependencies, capacity: int | None, joint_updates: bool) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity must be at least 1 message, not {capacity}")
        self.graph, self.capacity, self.joint_updates = graph, capacity, joint_updates
        # The two more at the end are found at NOBODY, -2, which is never done, and at NOTHING, -1.
        self.done = bytearray(len(graph.tasks)) + b"\0\1"
        self.left = [Counter(stage) for stage in graph.update_of]  # to add, by stage and update
        self.under_way: Counter[tuple[int, int]] = Counter()
        self.made: Counter[tuple[int, int]] = Counter()  # updates, by worker and stage
        spans = [*zip(graph.first, graph.first[1:], strict=False)]
        self.stages_of = [{task.stage for task in graph.tasks[a:b]} for a, b in spans]
        self.busy = {worker for worker, (a, b) in enumerate(spans) if a < b}
        self.arrived: dict[int, set[int]] = defaultdict(set)  # of these, by update

    def can_run(self, number: int) -> bool:
        """Return whether all that a worker's next task needs is there, and room for its output."""
        graph = self.graph
        if not (self.done[graph.own[number]] and self.done[graph.source[number]]):
            return False
        partner = graph.partner[number]
        if partner > number and not (
            self.done[graph.own[partner]] and self.done[graph.source[partner]]
        ):
            return False
        if not OPS[graph.tasks[number].op].is_pass:
            return self._sum_is_there(number)
        return self.capacity is None or self._room(number)

    def run(self, number: int) -> None:
        graph = self.graph
        op, stage, microbatch, _ = graph.tasks[number]
        self.done[number] = 1
        rule = OPS[op]
        if rule.adds_gradient:
            self.left[stage][graph.update_of[stage][microbatch]] -= 1
        elif not rule.is_pass:
            self.made[graph.worker_of[number], stage] += 1
        if self.capacity is not None:
            self._move(graph.source[number], number, -1)
            self._move(number, graph.target[number], +1)

    def deadlock(self, following: list[int]) -> ScheduleError:
        """Return the error that says which workers wait, in which task, for what."""
        graph, waits = self.graph, []
        at_fault: list[tuple[Task, int | None]] = []
        for worker, (number, stop) in enumerate(zip(following, graph.first[1:], strict=True)):
            if number == stop:
                continue
            task = graph.tasks[number]
            at_fault.append((task, worker))
            missing = self._missing(number)
            if missing is None:
                waits.append(f"worker {worker} waits to send the output of {task}")
                continue
            owner = self._owner(missing)
            at_fault.append((missing, owner))
            where = "which no worker has" if owner is None else f"which worker {owner} has"
            if owner == worker:
                where = "which comes later in its own list"
            waits.append(f"worker {worker} waits in {task} for {missing}, {where}")
        return ScheduleError("the schedule can never finish: " + "; ".join(waits), at_fault)

    def _missing(self, number: int) -> Task | None:
        """Return a task that a worker's next one still waits for, or None."""
        if not OPS[self.graph.tasks[number].op].is_pass:
            return self._missing_sum(number)
        missing = self._missing_data(number)
        partner = self.graph.partner[number]
        return missing or (self._missing_data(partner) if partner > number else None)

    def _missing_data(self, number: int) -> Task | None:
        """Return a task whose output a pass still waits for, or None."""
        graph = self.graph
        task = graph.tasks[number]
        rule = OPS[task.op]
        if not self.done[graph.own[number]]:
            assert rule.own
            return self._named(graph.own[number], task._replace(op=rule.own))
        if not self.done[graph.source[number]]:
            assert rule.receives
            stage = task.stage - rule.receives.step
            other = task._replace(op=SENDERS[rule.receives][0], stage=stage)
            return self._named(graph.source[number], other)
        return None

    def _sum_is_there(self, number: int) -> bool:
        """Return whether an update can be made: whether :meth:`_missing_sum` has nothing to say."""
        update = self.graph.tasks[number]
        due = self.graph.update_of[update.stage][update.microbatch]
        if not self.joint_updates:
            return not self.left[update.stage][due]
        worker = self.graph.worker_of[number]
        for stage in self.stages_of[worker]:
            if self.made[worker, stage] < due - 1 or self.left[stage][due]:
                return False
        self.arrived[due].add(worker)
        return self.busy <= self.arrived[due]

    def _missing_sum(self, number: int) -> Task | None:
        """Return a task that an update still waits for, or None."""
        update = self.graph.tasks[number]
        stage = update.stage
        due = self.graph.update_of[stage][update.microbatch]
        if self.joint_updates:
            return self._unsettled(self.graph.worker_of[number], update._replace(version=due))
        return self._late(stage, due) if self.left[stage][due] else None

    def _unsettled(self, worker: int, update: Task) -> Task | None:
        """Return what a worker waits for that makes an update together with all others, or None.

        Its stages make it together, too: one may not be at an earlier update still.
        """
        _, _, microbatch, number = update
        for stage in sorted(self.stages_of[worker]):
            if self.made[worker, stage] < number - 1:
                return Task(Op.UPDATE, stage, microbatch, number - 1)
            if self.left[stage][number]:
                return self._late(stage, number)
        absent = self.busy - self.arrived[number]
        if not absent:
            return None
        return update._replace(stage=self.graph.tasks[self.graph.first[min(absent)]].stage)

    def _late(self, stage: int, update: int) -> Task:
        """Return a pass whose gradient an update still waits for."""
        adders, first = self.graph.adders[stage], self.graph.update_of[stage].index(update)
        microbatch = next(k for k in range(first, len(adders)) if not self.done[adders[k]])
        return self._named(adders[microbatch], Task(ADDING[0], stage, microbatch, update))

    def _named(self, number: int, otherwise: Task) -> Task:
        """Return the task of a number; of NOBODY, what it would be."""
        return otherwise if number == NOBODY else self.graph.tasks[number]

    def _owner(self, wanted: Task) -> int | None:
        """Return the worker that has a task, whichever version it reads."""
        key = 2 if OPS[wanted.op].is_pass else 3
        for number, task in enumerate(self.graph.tasks):
            if task[:2] == wanted[:2] and task[key] == wanted[key]:
                return self.graph.worker_of[number]
        return None

    def _room(self, number: int) -> bool:
        """Return whether a pass's output can be sent now."""
        link = self._link(number, self.graph.target[number])
        return link is None or self.under_way[link] < (self.capacity or 0)

    def _move(self, sender: int, receiver: int, messages: int) -> None:
        link = self._link(sender, receiver)
        if link is not None:
            self.under_way[link] += messages

    def _link(self, sender: int, receiver: int) -> tuple[int, int] | None:
        """Return the workers that a message goes between, or None if it stays on one."""
        if sender < 0 or receiver < 0:  # NOTHING or NOBODY
            return None
        link = self.graph.worker_of[sender], self.graph.worker_of[receiver]
        return None if link[0] == link[1] else link
