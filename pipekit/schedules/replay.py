"""Replays of a table: who waits for whom, and when every task runs, with nothing computed."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import sub

import numpy as np
from numpy.typing import NDArray

from pipekit.schedules.clock import PAPER_SLOTS, Need, Walk, graph_needs
from pipekit.schedules.dependencies import NOBODY, NOTHING, Dependencies
from pipekit.schedules.ops import Op, senders
from pipekit.schedules.table import Table
from pipekit.schedules.task import ScheduleError, Task


class Replay(Walk):
    """Runs a table without computing anything, to see who waits for whom.

    ``capacity`` and ``joint_updates`` are those of :func:`pipekit.schedules.check`.
    """

    def __init__(
        self, graph: Dependencies, capacity: int | None = None, joint_updates: bool = False
    ) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity must be at least 1 message, not {capacity}")
        self.graph, needs = graph, graph_needs(graph)
        lists = [*map(list, graph.lists)]
        for number, partner in enumerate(graph.partner):
            if partner > number:
                needs[number] = _of_both(graph, needs, number)
        if capacity is not None:
            for number, other in _blocked_by(graph, capacity):
                needs[number] += ((other, 0.0),)
        # What each meeting waits for, with its name.
        self._met: dict[int, list[tuple[int, Task]]] = {}
        if joint_updates:
            self._let_meet(lists, needs)
        super().__init__(lists, [0.0] * len(needs), needs)

    def order(self) -> Iterator[int]:
        """Yield the numbers of the tasks in an order in which they can run."""
        size = len(self.graph.tasks)
        self.run()
        yield from (number for number in self.sequence if number < size)
        self.require_done()

    def require_done(self) -> None:
        """Raise ScheduleError unless everything can run; see :meth:`order`."""
        if not self.run().is_done:
            raise self._deadlock()

    def settles(self, stops: Sequence[Sequence[int]]) -> bool:
        """Return whether workers have as many tasks left behind two periods in a row.

        ``stops`` has for each period the number behind each worker's last task of it.
        """
        behind, workers = None, len(self.graph.first) - 1
        places = [{number: at for at, number in enumerate(each, 1)} for each in self.lists]
        for period in stops:
            limits = [_last(each, stop) for each, stop in zip(places, period, strict=False)]
            self.run([*limits, *map(len, self.lists[workers:])])
            before, behind = behind, [*map(sub, limits, self.following)]
            if behind == before:
                return True
        return False

    def _let_meet(self, lists: list[list[int]], needs: list[Need]) -> None:
        """Put a meeting before each worker's first update of a batch, which waits for them all.

        A worker comes to it when all gradients of its stages are there, and their updates made.
        """
        graph = self.graph
        meetings: dict[int, dict[int, int]] = defaultdict(dict)  # by update and worker
        behind: dict[int, int] = {}  # the update behind each meeting
        for worker, tasks in enumerate(lists):
            stages = sorted({graph.tasks[number].stage for number in tasks})
            made: dict[int, list[int]] = {stage: [] for stage in stages}
            for number in tasks:
                if self._due(number):
                    made[graph.tasks[number].stage].append(number)
            lists[worker] = []
            for number in tasks:
                due = self._due(number)
                if due and worker not in meetings[due]:
                    meeting = meetings[due][worker] = len(needs)
                    lists[worker].append(meeting)
                    waits = self._met[meeting] = []
                    for stage in stages:
                        if due > 1 and made[stage]:  # else another worker makes them
                            update = Task(Op.UPDATE, stage, graph.tasks[number].microbatch, due - 1)
                            before = made[stage][due - 2 : due - 1] or [NOBODY]
                            waits.append((before[0], update))
                        waits += self._summed(stage, due)
                    needs.append(tuple((need, 0.0) for need, _ in waits))
                    behind[meeting] = number
                lists[worker].append(number)
        busy = _busy(graph, lists)
        for here in meetings.values():
            all_of_them = tuple((here.get(worker, NOBODY), 0.0) for worker in busy)
            for meeting in here.values():
                needs[behind[meeting]] = all_of_them

    def _due(self, number: int) -> int:
        """Return which update a task makes; 0 if it is a pass."""
        op, stage, microbatch, _ = self.graph.tasks[number]
        return 0 if op.is_pass else self.graph.update_of[stage][microbatch]

    def _summed(self, stage: int, update: int) -> list[tuple[int, Task]]:
        """Return the passes whose gradients an update sums, or one would, each with its name."""
        graph = self.graph
        summed = [*graph.updates[stage]]
        summed.append(range(summed[-1].stop if summed else 0, graph.microbatches))
        return [
            self._named(graph.adders[stage][k], Task(Op.BACKWARD, stage, k, update))
            for k in (summed[update - 1] if update <= len(summed) else ())
        ]

    def _deadlock(self) -> ScheduleError:
        """Return the error that says which workers wait, in which task, for what."""
        graph, waits = self.graph, []
        at_fault: list[tuple[Task, int | None]] = []
        for things, following in zip(self.lists, self.following, strict=True):
            if following == len(things):
                continue
            thing = things[following]
            number = things[following + 1] if thing in self._met else thing
            task, worker = graph.tasks[number], graph.worker_of[number]
            at_fault.append((task, worker))
            missing = self._missing(thing)
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

    def _missing(self, thing: int) -> Task | None:
        """Return a task that a worker's next thing still waits for, or None."""
        return next((name for n, name in self._awaited(thing) if self.ends[n] < 0), None)

    def _awaited(self, thing: int) -> Iterator[tuple[int, Task]]:
        """Yield all that a thing waits for, each with its name."""
        graph = self.graph
        if thing in self._met:
            yield from self._met[thing]
        elif due := self._due(thing):
            task = graph.tasks[thing]
            if not self._met:
                yield from self._summed(task.stage, due)
                return
            busy = _busy(graph, self.lists)
            for worker, (number, _) in zip(busy, self.needs[thing], strict=True):
                stage = graph.tasks[graph.first[worker]].stage
                yield number, task._replace(version=due, stage=stage)
        else:
            yield from self._data(thing)
            if graph.partner[thing] > thing:
                yield from self._data(graph.partner[thing])

    def _data(self, number: int) -> Iterator[tuple[int, Task]]:
        """Yield the tasks whose output a pass needs, each with its name."""
        graph, task = self.graph, self.graph.tasks[number]
        if own := task.op.own:
            yield self._named(graph.own[number], task._replace(op=own))
        if payload := task.op.receives:
            stage = task.stage - payload.step
            sent = task._replace(op=senders(payload)[0], stage=stage)
            yield self._named(graph.source[number], sent)
        yield from (self._named(other, task) for other in graph.others.get(number, ()))

    def _named(self, number: int, otherwise: Task) -> tuple[int, Task]:
        """Return the number of a task and its name; that of NOBODY is what it would be."""
        return number, otherwise if number == NOBODY else self.graph.tasks[number]

    def _owner(self, wanted: Task) -> int | None:
        """Return the worker that has a task, whichever version it reads."""
        key = 2 if wanted.op.is_pass else 3
        for number, task in enumerate(self.graph.tasks):
            if task[:2] == wanted[:2] and task[key] == wanted[key]:
                return self.graph.worker_of[number]
        return None


def _busy(graph: Dependencies, lists: Sequence[Sequence[int]]) -> list[int]:
    """Return the workers that have anything to do on their own streams."""
    return [worker for worker, _ in enumerate(graph.first[1:]) if lists[worker]]


def _last(places: Mapping[int, int], stop: int) -> int:
    """Return the place in a list of the last number below ``stop``, not counting other streams."""
    number = stop - 1
    while number >= 0 and number not in places:
        number -= 1
    return places.get(number, 0)


def slots(
    schedule: Table,
    durations: Mapping[Op, float] = PAPER_SLOTS,
    overlap: float | None = None,
) -> list[NDArray[np.float64]]:
    """Return, for each worker, an array [tasks, 2] of start and end slots, from 0.

    Every task starts as soon as its worker is free and its data is there; sending takes no time,
    and neither does summing the gradients of a stage's workers, for which their updates wait.

    Args:
        schedule: the table.
        durations: slots of each op; by default a backward takes two, as in PipeDream-2BW's Figure
            2, its two parts one each, and an update none.  What is not named is by default, too.
        overlap: what tasks that run together take (``schedule.overlaps``), as a share of what they
            take one after the other.  They begin when all data is there, and what they give is
            there at their end; in the result each has its share of their time.  None: they run
            one after the other, as any tasks.

    Raises:
        ScheduleError: the workers would wait for one another for ever.
    """
    graph = schedule.dependencies
    seconds = [op.slots_in(durations) for op, *_ in graph.tasks]
    needs = graph_needs(graph)
    if overlap is not None:
        together(graph, seconds, needs, overlap)
    clock = timed(graph, seconds, needs)
    times = np.array([clock.starts, clock.ends[: len(seconds)]]).T
    return np.split(times, graph.first[1:-1]) if graph.first[1:] else []


def timed(graph: Dependencies, seconds: Sequence[float], needs: Sequence[Need]) -> Walk:
    """Return the clock of a table's tasks; raise ScheduleError if they can never finish."""
    clock = Walk(graph.lists, seconds, needs).run()
    if not clock.is_done:
        Replay(graph).require_done()  # says who waits for whom
    return clock


def together(graph: Dependencies, seconds: list[float], needs: list[Need], overlap: float) -> None:
    """Let pairs of tasks begin when the data of both is there, and give theirs at their end."""
    later = [max(number, partner) for number, partner in enumerate(graph.partner)]
    for number, each in enumerate(needs):
        needs[number] = tuple((later[n] if n >= 0 else n, delay) for n, delay in each)
    for number, partner in enumerate(graph.partner):
        if partner != NOTHING:
            seconds[number] *= overlap
        if partner > number:
            needs[number], needs[partner] = _of_both(graph, needs, number), ()


def _of_both(graph: Dependencies, needs: Sequence[Need], first: int) -> Need:
    """Return what both tasks of a pair need, which can be neither of them."""
    second = graph.partner[first]
    is_circle = first in (graph.own[second], graph.source[second])
    return (*needs[first], *needs[second], *([(NOBODY, 0.0)] if is_circle else []))


def _blocked_by(graph: Dependencies, capacity: int) -> Iterator[tuple[int, int]]:
    """Yield passes whose message finds a full link, and the receipt before it that makes room."""
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    received: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, (source, target) in enumerate(zip(graph.source, graph.target, strict=True)):
        here = graph.worker_of[number]
        if target >= 0 and graph.worker_of[target] != here:
            sent[here, graph.worker_of[target]].append(number)
        if source >= 0 and graph.worker_of[source] != here:
            received[graph.worker_of[source], here].append(number)
    for link, sending in sent.items():
        yield from zip(sending[capacity:], received[link], strict=False)
