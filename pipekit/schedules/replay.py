"""Replays of a table: who waits for whom, and when every task runs, with nothing computed."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import sub

import numpy as np
from numpy.typing import NDArray

from pipekit.schedules.clock import PAPER_SLOTS, Need, Walk, graph_needs
from pipekit.schedules.dependencies import NOBODY, NOTHING, Dependencies
from pipekit.schedules.ops import Op
from pipekit.schedules.table import Table
from pipekit.schedules.task import ScheduleError, Task
from pipekit.units import require_amount


class Replay(Walk):
    """Runs a table without computing anything, to see who waits for whom.

    ``joint_updates`` is as in :func:`pipekit.schedules.check`.
    """

    def __init__(self, graph: Dependencies, joint_updates: bool = False) -> None:
        self.graph, needs = graph, graph_needs(graph)
        lists: list[Sequence[int]] = [*graph.lists]
        for number, partner in enumerate(graph.partner):
            if partner > number:
                needs[number] = _of_both(graph, needs, number)
        # What each worker's first update of a version waits for, with its name.
        self._met: dict[int, list[tuple[int, Task]]] = {}
        if joint_updates:
            lists.append(self._meetings(needs))
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
        for period in stops:
            limits = [*map(bisect_left, self.lists[:workers], period)]
            self.run([*limits, *map(len, self.lists[workers:])])
            before, behind = behind, [*map(sub, limits, self.following)]
            if behind == before:
                return True
        return False

    def _meetings(self, needs: list[Need]) -> range:
        """Let workers' first updates of a version wait for a meeting of all of them.

        It comes when all that the version sums is there, all updates before have been made, and
        every worker has come to its own.
        """
        graph, first = self.graph, len(needs)
        updates: dict[int, list[int]] = defaultdict(list)  # by version
        for number in graph.of(lambda op: not op.is_pass):
            updates[self._due(number)].append(number)
        for version, made in sorted(updates.items()):
            firsts = {graph.worker_of[number]: number for number in reversed(made)}
            waits = [(number, graph.tasks[number]) for number in updates[version - 1]]
            for stage in range(graph.stages):
                waits += self._summed(stage, version)
            for worker, own in enumerate(graph.lists[: len(graph.first) - 1]):
                if own:
                    update = graph.tasks[made[0]]._replace(stage=graph.tasks[own[0]].stage)
                    place = bisect_left(own, firsts[worker]) if worker in firsts else 0
                    before = own[place - 1] if place else NOTHING
                    waits.append((before if worker in firsts else NOBODY, update))
            for number in firsts.values():
                needs[number] += ((len(needs), 0.0),)
                self._met[number] = waits
            needs.append(tuple((need, 0.0) for need, _ in waits))
        return range(first, len(needs))

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
        graph, waits = self.graph, []
        for numbers, following in zip(graph.lists, self.following, strict=False):
            if following == len(numbers):
                continue
            number = numbers[following]
            task, worker = graph.tasks[number], graph.worker_of[number]
            missing = next(name for n, name in self._awaited(number) if self.ends[n] < 0)
            owner = self._owner(missing)
            where = "which no worker has" if owner is None else f"which worker {owner} has"
            if owner == worker:
                where = "which comes later in its own list"
            waits.append(f"worker {worker} waits in {task} for {missing}, {where}")
        return ScheduleError("the schedule can never finish: " + "; ".join(waits))

    def _awaited(self, number: int) -> Iterator[tuple[int, Task]]:
        graph, partner = self.graph, self.graph.partner[number]
        yield from self._met.get(number, ())
        if due := self._due(number):
            yield from self._summed(graph.tasks[number].stage, due)
        for each in (number, partner) if partner > number else (number,):
            task = graph.tasks[each]
            if own := task.op.own:
                yield self._named(graph.own[each], task._replace(op=own))
            if payload := task.op.receives:
                sender = next(op for op in graph.ops if op.sends is payload)
                sent = task._replace(op=sender, stage=task.stage - payload.step)
                yield self._named(graph.source[each], sent)
            yield from (self._named(other, task) for other in graph.others.get(each, ()))

    def _named(self, number: int, otherwise: Task) -> tuple[int, Task]:
        """Return the number of a task and its name; that of NOBODY is what it would be."""
        return number, otherwise if number == NOBODY else self.graph.tasks[number]

    def _owner(self, wanted: Task) -> int | None:
        key = 2 if wanted.op.is_pass else 3
        for number, task in enumerate(self.graph.tasks):
            if task[:2] == wanted[:2] and task[key] == wanted[key]:
                return self.graph.worker_of[number]
        return None


def slots(
    schedule: Table,
    durations: Mapping[Op, float] = PAPER_SLOTS,
    overlap: float | None = None,
) -> list[NDArray[np.float64]]:
    """Return, for each worker, an array [tasks, 2] of start and end slots, from 0.

    Every task starts as soon as its worker is free and its data is there.  Sending takes no time,
    and neither does summing a stage's gradients over its workers, for which updates wait.

    Args:
        schedule: the table.
        durations: slots of each op; what is not named takes :data:`.PAPER_SLOTS`.
        overlap: what tasks that run together take (``schedule.overlaps``), as a share of what they
            take one after the other.  They begin when all data is there, and what they give is
            there at their end; each is given its share of their time.  None: one after the other.

    Raises:
        ScheduleError: the workers would wait for one another for ever.
        ValueError: a number is negative or not finite.
    """
    for op, each in durations.items():
        require_amount(f"durations[{op.name}]", each)
    require_amount("overlap", overlap or 0)
    graph = schedule.dependencies
    seconds = [durations.get(op, op.slots) for op, *_ in graph.tasks]
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
