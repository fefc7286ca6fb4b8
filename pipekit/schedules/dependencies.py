"""Which task needs which: the graph of a table, by the rules of its ops.

The proof, the clock, what workers run, traces and the simulation all read it.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from itertools import pairwise, starmap
from operator import index, itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipekit.schedules.items import Items
from pipekit.schedules.ops import OPS, PASSES, PLACES, WEIGHTS, Op, Payload
from pipekit.schedules.task import ScheduleError, Task

NOTHING = -1
"""In place of a task's number: there is nothing to wait for."""
NOBODY = -2
"""In place of a task's number: no worker has the task that is needed."""

Row = list[int]
"""For each microbatch the number of a stage's task, or NOBODY."""
Numbers = NDArray[np.int64]
_SPARSE = 10**6
"""Microbatches of all stages up to which most of a table may be empty, as it is while drawn."""


class Columns(NamedTuple):
    """Of each task, by its number: its worker, its op's place in OPS, and the rest of the task."""

    worker: Numbers
    op: Numbers
    stage: Numbers
    microbatch: Numbers
    version: Numbers

    def whose(self, is_so: Callable[[Op], object]) -> NDArray[np.bool_]:
        """Return for each task whether this is so of its op."""
        return np.array([bool(is_so(op)) for op in OPS])[self.op]


class Dependencies:
    """The tasks of a table by number, worker after worker, and what each of them needs.

    In place of a number, NOTHING says that there is none, and NOBODY that no worker has the task.

    Attributes:
        tasks: all tasks.
        columns: the same, as arrays.
        worker_of: the worker of each.
        first: the number of each worker's first task; at the end, how many tasks there are.
        own: for each pass the one of its stage and microbatch that comes before it, say the forward
            of a backward.
        source: for each pass the one whose message it receives.
        target: likewise the one that receives its message.
        partner: for each task the one that it runs together with.
        ops: those of the tasks, passes and updates in any case, each with its place among them.
        others: what tasks need beside ``own`` and ``source``, if it is not before them in their own
            list.
        items: who gives and takes what, of a table with more ops than passes and updates.
        lists: the numbers of each worker's tasks in order; behind those of all workers, the ones
            that run on other streams, a list each.
        senders: for each payload and stage, which passes send it, or would at the pipeline's end.
        receivers: likewise, which receive it.
        adders: for each stage, which passes add to the gradient of its weights.
    """

    def __init__(
        self,
        workers: Sequence[Sequence[Task]],
        stages: int,
        microbatches: int,
        overlaps: Collection[tuple[Task, Task]] = (),
        chunks: int = 1,
    ) -> None:
        self.tasks = [task for tasks in workers for task in tasks]
        self.first = [0, *np.cumsum([len(tasks) for tasks in workers], dtype=int).tolist()]
        self.stages, self.microbatches = stages, microbatches
        size = len(self.tasks)
        places = map(PLACES.__getitem__, map(itemgetter(0), self.tasks))
        columns = (map(itemgetter(n), self.tasks) for n in (1, 2, 3))
        try:
            self.columns = Columns(
                np.repeat(np.arange(len(workers)), np.diff(self.first)),
                np.fromiter(places, np.int64, size),
                *(np.fromiter(map(index, each), np.int64, size) for each in columns),
            )
        except OverflowError:
            raise self._out_of_proportion() from None
        self.worker_of: Row = self.columns.worker.tolist()
        self._require_sizes()
        _, op, stage, microbatch, _ = self.columns
        here = {*PASSES, Op.UPDATE, *(OPS[place] for place in np.unique(op).tolist())}
        self.ops = {each: n for n, each in enumerate(sorted(here, key=PLACES.__getitem__))}
        rows = self._placed()
        self._rows: list[list[Row]] = rows.tolist()
        sending, receiving = (
            {payload: self._one_of(rows, way, payload) for payload in Payload}
            for way in ("sends", "receives")
        )
        self.senders, self.receivers = (
            {payload: found.tolist() for payload, found in each.items()}
            for each in (sending, receiving)
        )
        self.adders: list[Row] = self._one_of(rows, "adds_gradient", True).tolist()
        own, source, target = (np.full(size, NOTHING) for _ in range(3))
        for each in self.ops:
            mine = np.flatnonzero(op == PLACES[each])
            at, number = stage[mine], microbatch[mine]
            if each.own:
                own[mine] = rows[self.ops[each.own], at, number] if each.own in here else NOBODY
            if each.receives:
                _join(source, mine, at - each.receives.step, number, sending[each.receives])
            if each.sends:
                _join(target, mine, at + each.sends.step, number, receiving[each.sends])
        self.own: Row = own.tolist()
        self.source: Row = source.tolist()
        self.target: Row = target.tolist()
        self.partner = self._paired(overlaps)
        self.others: dict[int, list[int]] = defaultdict(list)
        self.items = Items(workers if len(here) > len(PASSES) + 1 else [])
        self.lists: list[Sequence[int]] = [range(*each) for each in pairwise(self.first)]
        if len(here) > len(PASSES) + 1:
            self._follow_items(workers)
        if chunks > 1:
            self._follow_chunks(chunks)
        for task, others in self.others.items():
            over = range(task)  # when it comes, if they are in its list
            self.others[task] = [
                n
                for n in others
                if n != NOTHING and (n not in over or self.lane[n] != self.lane[task])
            ]

    @cached_property
    def lane(self) -> Numbers:
        """For each task, in which of the lists it is."""
        found = np.empty(len(self.tasks), np.int64)
        for place, numbers in enumerate(self.lists):
            found[numbers] = place
        return found

    @cached_property
    def updates(self) -> tuple[tuple[range, ...], ...]:
        """For each stage, the microbatches that each of its updates sums."""
        stops: list[set[int]] = [{0} for _ in range(self.stages)]
        for number in self.of(lambda op: not op.is_pass):
            _, stage, microbatch, _ = self.tasks[number]
            stops[stage].add(microbatch + 1)
        return tuple(tuple(starmap(range, pairwise(sorted(each)))) for each in stops)

    @cached_property
    def update_of(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, which update sums each microbatch; see :attr:`.Schedule.update_of`."""
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
        return self._rows[self.ops[op]][stage]

    def _follow_items(self, workers: Sequence[Sequence[Task]]) -> None:
        """Note who needs what of whom where a table has more ops than passes and updates."""
        for number, giver in self.items.own.items():
            self.own[number] = giver
        for number, needed in self.items.others.items():
            self.others[number] += needed
        updates: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, (op, stage, _, version) in enumerate(self.tasks):
            if not op.is_pass:
                updates[stage, version].append(number)
        streams: dict[tuple[int, str], list[int]] = defaultdict(list)
        for worker, tasks in enumerate(workers):
            before = NOTHING  # of the worker's own stream
            for number, (op, stage, _, version) in enumerate(tasks, self.first[worker]):
                if op.moves is WEIGHTS:  # they come from all workers that have the stage
                    self.others[number] += updates[stage, version]
                if op.stream:
                    streams[worker, op.stream].append(number)
                    self.others[number].append(before)
                else:
                    streams[worker, ""].append(number)
                    before = number
        own: list[Sequence[int]] = [streams.pop((w, ""), []) for w in range(len(workers))]
        self.lists = [*own, *streams.values()]

    def _follow_chunks(self, chunks: int) -> None:
        """Let the chunks of a microbatch go forward in order, and backward in the reverse one."""
        for stage in range(self.stages):
            forwards = self.receivers[Payload.ACTIVATION][stage]
            for each, step in ((forwards, -1), (self.senders[Payload.GRADIENT][stage], 1)):
                for microbatch, number in enumerate(each):
                    before = microbatch + step
                    if number >= 0 and before // chunks == microbatch // chunks:
                        self.others[number].append(each[before] if before < len(each) else NOBODY)

    def of(self, is_so: Callable[[Op], object]) -> Sequence[int]:
        """Return the numbers of the tasks of whose op this is so."""
        if not any(map(is_so, self.ops)):
            return ()
        numbers: list[int] = np.flatnonzero(self.columns.whose(is_so)).tolist()
        return numbers

    def _require_sizes(self) -> None:
        _, _, *counts = self.columns
        below = np.flatnonzero(np.minimum.reduce(counts) < 0)
        if len(below):
            number = int(below[0])
            raise ScheduleError(
                f"{self.tasks[number]!r} on worker {self.worker_of[number]}: everything counts "
                f"from 0"
            )
        size, cells = len(self.tasks), self.stages * self.microbatches
        if max(self.stages, self.microbatches) > size or cells > max(size, _SPARSE):
            raise self._out_of_proportion()

    def _out_of_proportion(self) -> ScheduleError:
        size = len(self.tasks)
        number = max(range(size), key=lambda n: max(self.tasks[n][1:3]))
        return ScheduleError(
            f"{self.tasks[number]} cannot be: the table has only {size} tasks, fewer than its "
            f"{self.stages} stages and {self.microbatches} microbatches need"
        )

    def _placed(self) -> Numbers:
        passes = np.flatnonzero(self.columns.whose(lambda op: op.is_pass))
        place = np.zeros(len(OPS), np.int64)
        place[[PLACES[op] for op in self.ops]] = [*self.ops.values()]
        _, op, stage, microbatch, _ = (column[passes] for column in self.columns)
        at = place[op], stage, microbatch
        rows = np.full((len(self.ops), self.stages, self.microbatches), NOBODY)
        rows[at] = passes
        once = self.columns.whose(lambda op: op.is_once)[passes]
        for before in passes[(rows[at] != passes) & once].tolist():
            task = self.tasks[before]
            number = int(rows[self.ops[task.op], task.stage, task.microbatch])
            raise ScheduleError(
                f"{task} stands in the table twice: on worker {self.worker_of[before]} and on "
                f"worker {self.worker_of[number]}"
            )
        return rows

    def _one_of(self, rows: Numbers, attribute: str, value: object) -> Numbers:
        """Return for each stage and microbatch the number of the pass whose op has this value."""
        some = rows[[place for op, place in self.ops.items() if getattr(op, attribute) is value]]
        both = np.argwhere((some != NOBODY).sum(axis=0) > 1)
        if len(both):
            stage, microbatch = both[0]
            *_, first, second = sorted(some[:, stage, microbatch].tolist())
            raise ScheduleError(
                f"the table has both {self.tasks[first]} and {self.tasks[second]}: a backward "
                f"is whole, or one part for the input and one for the weights"
            )
        merged: Numbers = some.max(axis=0)  # NOBODY is the least
        return merged

    def _paired(self, overlaps: Collection[tuple[Task, Task]]) -> Row:
        partner = [NOTHING] * len(self.tasks)
        numbers = {task: number for number, task in enumerate(self.tasks)} if overlaps else {}
        # In an order, so that of several wrong pairs the same one is named in each run.
        for one, other in sorted(overlaps, key=lambda pair: numbers.get(pair[0], NOBODY)):
            first, second = numbers.get(one, NOBODY), numbers.get(other, NOBODY)
            side_by_side = first != NOBODY and second == first + 1
            if (
                not side_by_side
                or self.worker_of[first] != self.worker_of[second]
                or one.op is not Op.FORWARD
                or other.op.sends is not Payload.GRADIENT
            ):
                raise ScheduleError(
                    f"{one} and {other} cannot run together: only a forward can, with a backward "
                    f"(whole or for the input) right behind it on the same worker"
                )
            partner[first], partner[second] = second, first
        return partner


def _join(found: Numbers, tasks: Numbers, stage: Numbers, microbatch: Numbers, at: Numbers) -> None:
    """Note for tasks which pass of another stage each is joined to, where there is that stage."""
    there = (stage >= 0) & (stage < len(at))
    found[tasks[there]] = at[stage[there], microbatch[there]]
