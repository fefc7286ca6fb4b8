"""Which event of a trace needs which: the schedule's graph, found again in what happened."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.schedules import Op, Schedule, Task
from pipekit.schedules.clock import Walk
from pipekit.schedules.dependencies import NOTHING
from pipekit.schedules.replay import Replay
from pipekit.traces.record import Times, whole

REMEMBERED = 4
"""Runs of which it need not be found again who waits for whom, when only their times change."""


class EventGraph(NamedTuple):
    """A trace's events in an order in which they can run, and what each waits for."""

    frame: pd.DataFrame  # the events
    rows: list[int]  # of each, its row in the trace's own frame
    before: list[int]  # the event before it on its worker, or NOTHING
    needs: list[list[int]]  # the events whose output it needs
    # whether some of these are on other workers, so that it waits for messages
    foreign: NDArray[np.bool_]

    def waits(self) -> Iterator[list[int]]:
        """Yield all that each event waits for, its worker's event before it first."""
        for before, needs in zip(self.before, self.needs, strict=True):
            yield needs if before == NOTHING else [before, *needs]

    def ready(self, ends: Times) -> Times:
        """Return when each event's worker was free and all that it needs was computed."""
        return np.array([max((ends[i] for i in each), default=0.0) for each in self.waits()])

    def latest(self) -> list[int]:
        """Return what each event waited for: of all that it needs what ended last; else NOTHING."""
        ends = self.frame["end_s"].tolist()
        return [max(each, key=ends.__getitem__, default=NOTHING) for each in self.waits()]

    def makespan(self, durations: Times, gaps: Times | float = 0.0) -> float:
        """Return what the run would take with such events, each so long after it is ready."""
        over = [(number, 0.0) for number in range(len(self.rows))]
        needs = [tuple(over[need] for need in each) for each in self.needs]
        worker = self.frame["worker"].to_numpy()
        lists = [np.flatnonzero(worker == each).tolist() for each in np.unique(worker)]
        return max(Walk(lists, (durations + gaps).tolist(), needs).run().free)


def event_graph(frame: pd.DataFrame) -> EventGraph:
    """Return a trace's events in order."""
    numbers = whole(frame, ["worker", "stage", "microbatch", "version"])
    columns = (tuple(numbers[name].tolist()) for name in numbers)
    events, before, needs, foreign = _ordered(tuple(frame["op"].tolist()), *columns)
    ordered = frame.assign(**numbers).iloc[events].reset_index(drop=True)
    return EventGraph(ordered, events, before, needs, foreign)


@lru_cache(REMEMBERED)
def _ordered(
    ops: Sequence[str],
    workers: Sequence[int],
    stages: Sequence[int],
    microbatches: Sequence[int],
    versions: Sequence[int],
) -> tuple[list[int], list[int], list[list[int]], NDArray[np.bool_]]:
    """Return rows, before, needs and foreign of :class:`EventGraph`: all that is without times."""
    tasks: dict[int, list[Task]] = defaultdict(list)
    rows: dict[int, list[int]] = defaultdict(list)  # of each worker's tasks
    for row, (name, worker, stage, microbatch, version) in enumerate(
        zip(ops, workers, stages, microbatches, versions, strict=True)
    ):
        tasks[worker].append(Task(Op.named(name), stage, microbatch, version))
        rows[worker].append(row)
    every = range(1 + max(tasks))
    graph = Schedule(tuple(tuple(tasks[w]) for w in every)).dependencies
    row_of = [row for worker in every for row in rows[worker]]

    order = [*Replay(graph).order()]
    event_of = {number: event for event, number in enumerate(order)}
    before: list[int] = []
    needs: list[list[int]] = []
    foreign: list[bool] = []
    last = [NOTHING] * len(every)
    for event, number in enumerate(order):
        op, worker, source = graph.tasks[number].op, graph.worker_of[number], graph.source[number]
        received = [] if source == NOTHING else [source]
        sources = received if op.is_pass else graph.summed(number)
        before.append(last[worker])
        needs.append([event_of[each] for each in sources])
        foreign.append(any(graph.worker_of[each] != worker for each in sources))
        last[worker] = event
    return [row_of[number] for number in order], before, needs, np.array(foreign)
