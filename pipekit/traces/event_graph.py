"""Which event of a trace needs which: the schedule's graph, found again in what happened."""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.schedules import OPS, Op, Schedule, Task
from pipekit.schedules.clock import Replay
from pipekit.schedules.dependencies import NOTHING
from pipekit.traces.record import RECOMPUTE

Times = NDArray[np.float64]
REMEMBERED = 4
"""Runs of which it need not be found again who waits for whom, when only their times change."""


class EventGraph(NamedTuple):
    """A trace's events in an order in which they can run, and what each waits for.

    Attributes:
        frame: the events.
        rows: of each, its row in the trace's own frame.
        before: the event before it on its worker, as a list of one or none.
        needs: the events on other workers, or on its own, whose output it needs.
        foreign: whether some of these are on other workers, so that it waits for messages.
    """

    frame: pd.DataFrame
    rows: list[int]
    before: list[list[int]]
    needs: list[list[int]]
    foreign: NDArray[np.bool_]

    def ready(self, ends: Sequence[float] | Times) -> Times:
        """Return when each event's worker was free and all that it needs was computed."""
        waits = zip(self.before, self.needs, strict=True)
        return np.array([max((ends[i] for i in b + n), default=0.0) for b, n in waits])

    def latest(self) -> list[int]:
        """Return what each event waited for: of all that it needs what ended last; else NOTHING."""
        ends = self.frame["end_s"].tolist()
        waits = zip(self.before, self.needs, strict=True)
        return [max(b + n, key=ends.__getitem__, default=NOTHING) for b, n in waits]

    def makespan(self, durations: Times, gaps: Times | float = 0.0) -> float:
        """Return what the run would take with such events, each so long after it is ready."""
        ends: list[float] = []
        seconds = (durations + gaps).tolist()
        for before, needs, lasting in zip(self.before, self.needs, seconds, strict=True):
            ends.append(max((ends[i] for i in before + needs), default=0.0) + lasting)
        return max(ends)


def event_graph(frame: pd.DataFrame) -> EventGraph:
    """Return a trace's events in order.

    Raises:
        ScheduleError: they cannot have happened.
    """
    # Whole numbers may have become floats, where frames were joined.
    numbers = frame[["worker", "stage", "microbatch", "version"]].astype(int)
    columns = (tuple(numbers[name].tolist()) for name in numbers)
    events, before, needs, foreign = _ordered(tuple(frame["op"].tolist()), *columns)
    return EventGraph(frame.iloc[events].reset_index(drop=True), events, before, needs, foreign)


@lru_cache(REMEMBERED)
def _ordered(
    ops: Sequence[str],
    workers: Sequence[int],
    stages: Sequence[int],
    microbatches: Sequence[int],
    versions: Sequence[int],
) -> tuple[list[int], list[list[int]], list[list[int]], NDArray[np.bool_]]:
    """Return rows, before, needs and foreign of :class:`EventGraph`: all that is without times."""
    tasks: dict[int, list[Task]] = defaultdict(list)
    rows: dict[int, list[int]] = defaultdict(list)  # of each worker's tasks
    again: dict[tuple[int, int, int], int] = {}
    for row, (name, worker, stage, microbatch, version) in enumerate(
        zip(ops, workers, stages, microbatches, versions, strict=True)
    ):
        if name == RECOMPUTE:
            again[worker, stage, microbatch] = row
            continue
        tasks[worker].append(Task(Op[name], stage, microbatch, version))
        rows[worker].append(row)
    every = range(1 + max(tasks))
    graph = Schedule(tuple(tuple(tasks[w]) for w in every)).dependencies
    row_of = [row for worker in every for row in rows[worker]]

    events: list[int] = []
    before: list[list[int]] = []
    needs: list[list[int]] = []
    foreign: list[bool] = []
    last: dict[int, list[int]] = defaultdict(list)
    event_of = [0] * len(row_of)

    def add(row: int, worker: int, sources: Sequence[int]) -> None:
        before.append(last[worker])
        needs.append([event_of[number] for number in sources])
        foreign.append(any(graph.worker_of[number] != worker for number in sources))
        last[worker] = [len(events)]
        events.append(row)

    for number in Replay(graph).order():
        op, stage, microbatch, _ = graph.tasks[number]
        worker, sources = graph.worker_of[number], [graph.source[number]]
        if OPS[op].own is Op.FORWARD and (worker, stage, microbatch) in again:
            add(again[worker, stage, microbatch], worker, [])
        if not OPS[op].is_pass:
            sources = [*graph.summed(number)]
        elif sources == [NOTHING]:
            sources = []
        event_of[number] = len(events)
        add(row_of[number], worker, sources)
    return events, before, needs, np.array(foreign)
