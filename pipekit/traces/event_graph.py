"""Which event of a trace needs which: the schedule's graph, found again in what happened."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from pipekit.schedules import Op, Schedule, Task
from pipekit.schedules.clock import Walk
from pipekit.schedules.dependencies import NOTHING
from pipekit.schedules.replay import Replay
from pipekit.traces.record import Times, whole

Needs = list[list[int]]


class EventGraph(NamedTuple):
    """A trace's events, and which of its rows each of them waits for."""

    frame: pd.DataFrame  # the events
    needs: Needs  # those whose output each needs
    waits: Needs  # the same, behind the event before it on its worker

    @property
    def latest(self) -> list[int]:
        """What each event waited for: of all that it needs what ended last; else NOTHING."""
        return last_of(self.waits, self.frame["end_s"].tolist())

    def makespan(self, durations: Times, gaps: Times | float = 0.0) -> float:
        """Return what the run would take with such events, each so long after it is ready."""
        over = [(number, 0.0) for number in range(len(self.needs))]
        needs = [tuple(over[need] for need in each) for each in self.needs]
        lists = [rows.tolist() for rows in self.frame.groupby("worker").indices.values()]
        return max(Walk(lists, (durations + gaps).tolist(), needs).run().free)


def event_graph(frame: pd.DataFrame) -> EventGraph:
    """Return the events of a trace that has some; ScheduleError if they cannot be a run's."""
    numbers = whole(frame, ["worker", "stage", "microbatch", "version"])
    worker, *columns = (numbers[name].tolist() for name in numbers)
    tasks = [*map(Task, map(Op.named, frame["op"]), *columns)]
    rows = np.argsort(worker, kind="stable").tolist()  # of the events, worker after worker
    ends = np.searchsorted(np.sort(worker), range(max(worker) + 2)).tolist()
    lists = [rows[slice(*each)] for each in pairwise(ends)]
    graph = Schedule(tuple(tuple(tasks[row] for row in each) for each in lists)).dependencies
    Replay(graph).require_done()
    needs: Needs = [[]] * len(rows)
    for number, source in enumerate(graph.source):
        is_pass = tasks[rows[number]].op.is_pass
        sources = [source] * (source != NOTHING) if is_pass else graph.summed(number)
        needs[rows[number]] = [rows[each] for each in sources]
    waits = [*needs]
    for own in lists:
        for before, row in pairwise(own):
            waits[row] = [before, *needs[row]]
    return EventGraph(frame.assign(**numbers).reset_index(drop=True), needs, waits)


def last_of(needs: Needs, ends: Sequence[float]) -> list[int]:
    """Return of each event's needs the one that ends last, or NOTHING."""
    return [max(each, key=ends.__getitem__, default=NOTHING) for each in needs]
