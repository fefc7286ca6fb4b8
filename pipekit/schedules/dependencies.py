"""Which task needs which: the graph of a table, by the rules of its ops.

Everything that has to know in which order tasks can run, or who sends to whom, reads this graph:
the proof, the replay, the time slots, what workers run, traces and the simulation.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from itertools import pairwise, starmap

from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.ops import ADDING, OPS, PASSES, RECEIVERS, SENDERS, Op, Payload
from pipekit.schedules.task import Task

NOTHING = -1
"""In place of a task's number: there is nothing to wait for."""
NOBODY = -2
"""In place of a task's number: no worker has the task that is needed."""

Row = list[int]
"""For each microbatch the number of a stage's task, or NOBODY."""


class Dependencies:
    """The tasks of a table by number, worker after worker, and what each of them needs.

    Args:
        workers: every worker's tasks.
        stages: how many they have.
        microbatches: how many they have.
        overlaps: pairs of them that run together.

    Attributes:
        tasks: all tasks.
        worker_of: the worker of each.
        first: the number of each worker's first task; at the end, how many tasks there are.
        own: for each pass the one of its stage and microbatch that comes before it, say the forward
            of a backward; NOTHING for a forward and an update.
        source: for each pass the one whose message it receives, say that of the stage before;
            NOTHING if it is at that end of the pipeline.
        target: likewise the one that receives its message.
        partner: for each task the one that it runs together with, or NOTHING.
        senders: for each payload and stage, which passes send it, or would at the pipeline's end.
        receivers: likewise, which receive it.
        adders: for each stage, which passes add to the gradient of its weights.

    Raises:
        ScheduleError: a pass stands in the table twice, or a backward both whole and in parts; or
            something counts from below 0, or up to more than so few tasks can be; or tasks cannot
            run together.
    """

    def __init__(
        self,
        workers: Sequence[Sequence[Task]],
        stages: int,
        microbatches: int,
        overlaps: Collection[tuple[Task, Task]] = (),
    ) -> None:
        self.tasks = [task for tasks in workers for task in tasks]
        self.worker_of = [worker for worker, tasks in enumerate(workers) for _ in tasks]
        self.first = [0]
        for tasks in workers:
            self.first.append(self.first[-1] + len(tasks))
        self.stages, self.microbatches = stages, microbatches
        self._require_sizes()
        self._nobody = [NOBODY] * microbatches
        self._rows = self._placed()
        self._merged: dict[tuple[tuple[Op, ...], int], Row] = {}
        every = range(stages)
        self.senders = {p: [self._one_of(SENDERS[p], s) for s in every] for p in Payload}
        self.receivers = {p: [self._one_of(RECEIVERS[p], s) for s in every] for p in Payload}
        self.adders = [self._one_of(ADDING, s) for s in every]
        self.own = self._owned()
        self.source, self.target = self._linked()
        self.partner = self._paired(overlaps)

    @cached_property
    def updates(self) -> tuple[tuple[range, ...], ...]:
        """For each stage, the microbatches that each of its updates sums."""
        ends: list[set[int]] = [{0} for _ in range(self.stages)]
        for op, stage, microbatch, _ in self.tasks:
            if not OPS[op].is_pass:
                ends[stage].add(microbatch + 1)
        return tuple(tuple(starmap(range, pairwise(sorted(each)))) for each in ends)

    @cached_property
    def update_of(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, which update sums each microbatch, from 1.

        Those after a stage's last update have the number of the one that is missing.
        """
        numbers = []
        for stage in self.updates:
            summed = [number for number, each in enumerate(stage, start=1) for _ in each]
            numbers.append((*summed, *[len(stage) + 1] * (self.microbatches - len(summed))))
        return tuple(numbers)

    def summed(self, update: int) -> Sequence[int]:
        """Return the numbers of the passes whose gradients the update of this number sums."""
        _, stage, microbatch, _ = self.tasks[update]
        microbatches = self.updates[stage][self.update_of[stage][microbatch] - 1]
        return self.adders[stage][microbatches.start : microbatches.stop]

    def row(self, op: Op, stage: int) -> Row:
        """Return the numbers of a stage's passes of an op, by microbatch."""
        return self._rows[op].get(stage, self._nobody)

    def placed(self, *numbers: int) -> list[tuple[Task, int | None]]:
        """Return tasks with their workers, as a ScheduleError takes them."""
        return [(self.tasks[number], self.worker_of[number]) for number in numbers]

    def _require_sizes(self) -> None:
        for worker, (start, stop) in enumerate(pairwise(self.first)):
            for task in self.tasks[start:stop]:
                if task.stage < 0 or task.microbatch < 0 or task.version < 0:
                    raise ScheduleError(
                        f"{task!r} on worker {worker}: everything counts from 0", [(task, worker)]
                    )
        size = len(self.tasks)
        if max(self.stages, self.microbatches) > size:
            number = max(range(size), key=lambda n: max(self.tasks[n][1:3]))
            raise ScheduleError(
                f"{self.tasks[number]} cannot be: the table has only {size} tasks, fewer than its "
                f"{self.stages} stages and {self.microbatches} microbatches need",
                self.placed(number),
            )

    def _placed(self) -> dict[Op, dict[int, Row]]:
        """Return the numbers of the passes by op, stage and microbatch."""
        rows: dict[Op, dict[int, Row]] = {op: {} for op in PASSES}
        for number, (op, stage, microbatch, _) in enumerate(self.tasks):
            if op not in rows:
                continue
            row = rows[op].get(stage)
            if row is None:
                row = rows[op][stage] = self._nobody.copy()
            before = row[microbatch]
            if before != NOBODY:
                raise ScheduleError(
                    f"{self.tasks[number]} stands in the table twice: on worker "
                    f"{self.worker_of[before]} and on worker {self.worker_of[number]}",
                    self.placed(before, number),
                )
            row[microbatch] = number
        return rows

    def _one_of(self, ops: tuple[Op, ...], stage: int) -> Row:
        """Return for each microbatch the number of the pass that is of one of the ops.

        Raises:
            ScheduleError: a microbatch has several of them.
        """
        if (ops, stage) in self._merged:
            return self._merged[ops, stage]
        found = [self._rows[op][stage] for op in ops if stage in self._rows[op]]
        merged = found[0] if found else self._nobody
        for row in found[1:]:
            both = [(a, b) for a, b in zip(merged, row, strict=True) if NOBODY not in (a, b)]
            if both:
                first, second = sorted(both[0])
                raise ScheduleError(
                    f"the table has both {self.tasks[first]} and {self.tasks[second]}: a backward "
                    f"is whole, or one part for the input and one for the weights",
                    self.placed(first, second),
                )
            merged = [max(a, b) for a, b in zip(merged, row, strict=True)]  # NOBODY is the least
        self._merged[ops, stage] = merged
        return merged

    def _owned(self) -> Row:
        own = [NOTHING] * len(self.tasks)
        for op, rows in self._rows.items():
            before = OPS[op].own
            if before is not None:
                for stage, row in rows.items():
                    _join(own, zip(row, self.row(before, stage), strict=True))
        return own

    def _linked(self) -> tuple[Row, Row]:
        source, target = [NOTHING] * len(self.tasks), [NOTHING] * len(self.tasks)
        for payload in Payload:
            for stage in range(self.stages):
                behind = stage + payload.step
                if 0 <= behind < self.stages:
                    senders, receivers = (
                        self.senders[payload][stage],
                        self.receivers[payload][behind],
                    )
                    _join(target, zip(senders, receivers, strict=True))
                    _join(source, zip(receivers, senders, strict=True))
        return source, target

    def _paired(self, overlaps: Collection[tuple[Task, Task]]) -> Row:
        partner = [NOTHING] * len(self.tasks)
        numbers = {task: number for number, task in enumerate(self.tasks)} if overlaps else {}
        for one, other in overlaps:
            first, second = numbers.get(one, NOBODY), numbers.get(other, NOBODY)
            side_by_side = first != NOBODY and second == first + 1
            if (
                not side_by_side
                or self.worker_of[first] != self.worker_of[second]
                or one.op is not Op.FORWARD
                or OPS[other.op].own is not Op.FORWARD
            ):
                raise ScheduleError(
                    f"{one} and {other} cannot run together: that can a forward and, right behind "
                    f"it on the same worker, a backward, whole or for the input",
                    [(one, None), (other, None)],
                )
            partner[first], partner[second] = second, first
        return partner


def _join(ends: Row, pairs: Iterable[tuple[int, int]]) -> None:
    """Note for each task that is there which other task belongs to it."""
    for number, other in pairs:
        if number != NOBODY:
            ends[number] = other
