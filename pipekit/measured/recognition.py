"""Which method a trace was recorded of: the named one whose workers run tasks in the same order.

Transfers that were recorded tell apart the methods that have the same passes in the same order.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from pipekit.measured.messages import packed
from pipekit.names import TABLES
from pipekit.schedules import OPS, Op, Schedule, ScheduleError
from pipekit.schedules.methods.by_name import TABLES as BY_NAME
from pipekit.traces import Trace
from pipekit.traces.record import moved, tasks_of
from pipekit.units import plural

UNKNOWN = "unknown"
_NEAR = 0.05  # an order is a method's if it differs in at most this share of the tasks
MOST_CHUNKS = 8  # of a sequence, where chunks are recorded as microbatches
_ENOUGH = 16  # of more steps and replicas some are looked at: the order is the same in each

Lists = tuple[tuple[tuple[str, int, int], ...], ...]  # for each worker (op, stage, microbatch)
Counts = tuple[int | tuple[int, ...], int]  # stages, or the workers of each, and microbatches
Move = tuple[str, int, int, int, int]  # purpose, source, destination, stage, microbatch


@dataclass(frozen=True)
class Recognition:
    """What the order of tasks says.

    Attributes:
        method: as ``pipekit schedule`` names it, or "unknown"; the first in docs/methods.md that
            has this order.
        also: the others: weight versions tell them apart, or transfers that were not recorded.
        schedule: the method's, of the microbatches of a step; None if it is unknown.
        stages, workers, microbatches: of one pipeline, in a step.
        chunks: parts of a sequence that each microbatch consists of.
        steps: how many there are in the trace.
        edits: tasks to be moved, over all workers, to get the method's order.
        tasks: of one pipeline, in a step (or in the whole trace, if steps overlap).
    """

    method: str
    also: tuple[str, ...]
    schedule: Schedule | None
    stages: int
    workers: int
    microbatches: int
    chunks: int
    steps: int
    edits: int
    tasks: int

    def __str__(self) -> str:
        if self.schedule is None:
            return "no named method has this order of tasks"
        names = " or ".join([self.method, *self.also])
        moved = f", {self.edits} of {self.tasks} tasks moved" if self.edits else ""
        places = f"{plural(self.stages, 'stage')} on {plural(self.workers, 'worker')}"
        parts = f" of {self.chunks} sequence chunks" if self.chunks > 1 else ""
        return f"{names}: {places}, {plural(self.microbatches, 'microbatch', 'es')}{parts}{moved}"


def recognise(trace: Trace) -> Recognition:
    """Return the method whose order of tasks a trace has, or which is nearest to it."""
    lists = _lists(trace)
    sizes = [len(tasks) for tasks in lists]
    numbers = {microbatch for tasks in lists for _, _, microbatch in tasks}
    stages = 1 + max(stage for tasks in lists for _, stage, _ in tasks)
    updates = [k for tasks in lists for op, s, k in tasks if op == Op.UPDATE.name and s == 0]
    batch = 1 + min(updates) if updates and trace.steps is None else len(numbers)
    first = int(trace.frame["microbatch"].min())
    moves = None if trace.transfers is None else _moves(tasks_of(trace.transfers), first)
    same: dict[tuple[int, int], list[tuple[str, Schedule | None]]] = {}
    for name, schedule in _candidates(lists, stages, batch, trace):
        finite = schedule.before(len(numbers))
        order = _of(finite, bool(updates))
        edits = min(_edits(lists, order), _edits(lists, _last_first(order)))
        if edits <= _NEAR * sum(sizes):
            workers = enumerate(finite.workers)
            tasks = ((worker, task, 0.0, 0.0, 0.0) for worker, own in workers for task in own)
            others = 0 if moves is None else len(moves ^ _moves(moved(tasks)))
            same.setdefault((edits, others), []).append((name, schedule))
    count = max(1, len(numbers) // max(batch, 1)) if trace.steps is None else len(trace.steps)
    nearest = edits, _ = min(same, default=(0, 0))
    (method, chosen), *rest = same.get(nearest, [(UNKNOWN, None)])
    chunks = chosen.chunks if chosen else trace.chunks
    shape = (stages, len(lists), batch // chunks, chunks, count)
    also = tuple(dict.fromkeys(name for name, _ in rest if name != method))
    return Recognition(method, also, chosen, *shape, edits, sum(sizes))


def _lists(trace: Trace) -> Lists:
    """Return what most pipelines do in a step, microbatches numbered from 0."""
    own = trace.steps is None  # else recorded ranks and microbatches may have any names
    frame, names = trace.frame, ("pipeline", "worker", "op", "stage", "microbatch")
    pipeline = 0 if own else packed(frame["step"], frame.get("replica", 0))
    frame = frame.assign(pipeline=pipeline)[frame["op"].isin([op.name for op in OPS])]
    chosen = np.unique(frame["pipeline"])
    frame = frame[frame["pipeline"].isin(chosen[:: max(1, len(chosen) // _ENOUGH)])]
    frame = frame.sort_values(["pipeline", "worker", "start_s", "end_s"], kind="stable")
    numbers = frame.groupby("pipeline")["microbatch"].rank("dense").astype(int) - 1
    columns = (frame.assign(microbatch=numbers)[name].tolist() for name in names)
    found: dict[int, dict[int, list[tuple[str, int, int]]]] = {}
    for which, worker, *task in zip(*columns, strict=True):
        lists = found.setdefault(which, {rank: [] for rank in range(trace.workers * own)})
        lists.setdefault(worker, []).append(tuple(task))

    def begins(tasks: Sequence[tuple[str, int, int]]) -> tuple[int, int]:
        microbatch, stage = min((microbatch, stage) for _, stage, microbatch in tasks)
        return stage, microbatch

    ordered = (
        each.values() if own else sorted(each.values(), key=begins) for each in found.values()
    )
    return Counter(tuple(map(tuple, lists)) for lists in ordered).most_common(1)[0][0]


def _moves(rows: pd.DataFrame, first: int = 0) -> set[Move]:
    columns = ("purpose", "source", "destination", "stage")
    places = (rows[name].tolist() for name in columns)
    return set(zip(*places, (rows["microbatch"] - first).tolist(), strict=True))


def _candidates(
    lists: Lists, stages: int, batch: int, trace: Trace
) -> Iterator[tuple[str, Schedule]]:
    homes: Mapping[int, set[int]] = {s: set() for s in range(stages)}
    for worker, tasks in enumerate(lists):
        for _, stage, _ in tasks:
            homes[stage].add(worker)
    replicas = [len(homes[stage]) for stage in range(stages)]
    copies = max(replicas)
    counts: list[Counts] = [(stages, batch)]
    counts += [(tuple(replicas), max(1, batch // copies))] if copies > 1 else []
    ops = {op for tasks in lists for op, _, _ in tasks}
    for name, entry in TABLES.items():
        if batch == 1 if entry.microbatches else batch > replicas[0]:
            continue
        if entry.ops and ops.isdisjoint(entry.ops):  # a short trace need not have all of them
            continue
        if "chunks" in entry.options:
            parts = range(2, 1 + MOST_CHUNKS) if trace.chunks == 1 else [trace.chunks]
            ways: list[tuple[Counts, dict[str, int]]] = [
                ((stages, batch // chunks), {"chunks": chunks})
                for chunks in parts
                if copies == 1 and batch % chunks == 0 and batch > chunks
            ]
        elif entry.takes_workers and stages > len(lists):
            ways = [((stages, batch), {"workers": len(lists)})]
        else:
            ways = [(each, {}) for each in counts]
        for each, options in ways:
            schedule = named(name, *each, **options)
            if schedule is None or schedule.worker_count != len(lists):
                continue
            if schedule.is_closed or trace.steps is None:
                yield name, schedule


@lru_cache(maxsize=64)
def named(
    name: str, stages: int | tuple[int, ...], microbatches: int, **options: int
) -> Schedule | None:
    """Return a method's schedule; None: it has none with these counts."""
    make = TABLES[name].load() if "chunks" in options else BY_NAME[name]
    try:
        schedule: Schedule = make(stages, microbatches, **options)
    except ScheduleError:
        return None
    return schedule


def _of(schedule: Schedule, updates: bool) -> Lists:
    return tuple(
        tuple(
            (task.op.name, task.stage, task.microbatch)
            for task in tasks
            if not task.op.stream and (updates or task.op is not Op.UPDATE)
        )
        for tasks in schedule.workers
    )


def _last_first(lists: Lists) -> Lists:
    """Turn backwards around that follow all forwards (GPipe, Figure 2; torch ScheduleLoopedBFS)."""
    unturned = (Op.FORWARD.name, Op.UPDATE.name)
    for tasks in lists:
        kinds = [op for op, _, _ in tasks if op != Op.UPDATE.name]
        if kinds != sorted(kinds, key=Op.FORWARD.name.__ne__):
            return lists
    last = max(k for tasks in lists for _, _, k in tasks)
    return tuple(
        tuple((op, s, k if op in unturned else last - k) for op, s, k in tasks) for tasks in lists
    )


def _edits(ours: Lists, theirs: Lists) -> int:
    """Return how many tasks have to be moved; all, if workers have other tasks."""
    moved = 0
    for mine, other in zip(ours, theirs, strict=True):
        if mine == other:
            continue
        place = {task: number for number, task in enumerate(other)}
        if len(mine) != len(other) or set(mine) != set(place):
            return sum(map(len, ours)) + 1
        ends: list[int] = []  # as long as the longest part that is in order, and need not move
        for task in mine:
            at = bisect_right(ends, place[task])
            ends[at : at + 1] = [place[task]]
        moved += len(mine) - len(ends)
    return moved
