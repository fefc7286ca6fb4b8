"""Where a run's time went: compute, recomputation, imbalance, bubble, communication."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.schedules import OPS, PASSES, Op, Schedule, Task
from pipekit.schedules.dependencies import NOTHING
from pipekit.schedules.replay import order
from pipekit.traces.record import RECOMPUTE

CATEGORIES = [
    "computation",
    "recompute",
    "update",
    "imbalance",
    "bubble",
    "communication",
    "other",
]
ALL = "all"
_BUSY = {
    **{op.name: "computation" if op in PASSES else "update" for op in OPS},
    RECOMPUTE: "recompute",
}

_Times = NDArray[np.float64]


def breakdown(events: pd.DataFrame, workers: int, makespan_s: float) -> pd.DataFrame:
    """Split the time of a trace's events; see :meth:`pipekit.traces.Trace.breakdown`."""
    if not makespan_s:
        raise ValueError("there is no time to split: the trace has no event that takes any")
    run = _order(events)
    frame = run.frame
    ends = (frame["end_s"] - frame["start_s"].min()).to_numpy()
    frame = frame.assign(duration=frame["end_s"] - frame["start_s"])
    durations = frame["duration"].to_numpy()
    gaps = np.maximum(ends - durations - run.ready(ends), 0)

    # Each of these runs lacks one cause of idleness more than the one before it.
    runs = [
        makespan_s,
        run.makespan(durations, np.where(run.foreign, gaps, 0)),
        run.makespan(durations),
        run.makespan(_mean(frame)),
        run.makespan(_balanced(frame)),
    ]
    whole, with_messages, without, even, balanced = np.minimum.accumulate(runs)

    categories = frame["op"].map(_BUSY)
    seconds = frame["duration"].groupby([frame["worker"], categories]).sum().unstack(fill_value=0.0)
    seconds = seconds.reindex(columns=CATEGORIES, fill_value=0.0)
    idle = (even - seconds.sum(axis=1)).clip(lower=0)
    in_balance = max(0.0, balanced * len(seconds) - seconds.to_numpy().sum())
    part = min(1.0, in_balance / idle.sum()) if idle.sum() else 0.0
    seconds["bubble"], seconds["imbalance"] = idle * part, idle * (1 - part)
    seconds["communication"] = with_messages - without
    seconds["other"] = (whole - with_messages) + (without - even)
    seconds = seconds.reindex(range(workers), fill_value=0.0)
    seconds.loc[seconds.sum(axis=1) == 0, "bubble"] = whole
    seconds.loc[ALL] = seconds.sum()
    shares = 100 * seconds.div(seconds.sum(axis=1), axis=0)
    return shares.rename_axis(index="worker", columns=None)


class _Order(NamedTuple):
    """A trace's events in an order in which they can run, and what each waits for.

    Attributes:
        frame: the events.
        before: the event before it on its worker, as a list of one or none.
        needs: the events on other workers, or on its own, whose output it needs.
        foreign: whether some of these are on other workers, so that it waits for messages.
    """

    frame: pd.DataFrame
    before: list[list[int]]
    needs: list[list[int]]
    foreign: NDArray[np.bool_]

    def ready(self, ends: Sequence[float] | _Times) -> _Times:
        """Return when each event's worker was free and all that it needs was computed."""
        waits = zip(self.before, self.needs, strict=True)
        return np.array([max((ends[i] for i in b + n), default=0.0) for b, n in waits])

    def makespan(self, durations: _Times, gaps: _Times | float = 0.0) -> float:
        """Return what the run would take with such events, each so long after it is ready."""
        ends: list[float] = []
        seconds = (durations + gaps).tolist()
        for before, needs, lasting in zip(self.before, self.needs, seconds, strict=True):
            ends.append(max((ends[i] for i in before + needs), default=0.0) + lasting)
        return max(ends)


def _order(frame: pd.DataFrame) -> _Order:
    """Return a trace's events in order.

    Raises:
        ScheduleError: they cannot have happened.
    """
    tasks: dict[int, list[Task]] = defaultdict(list)
    rows: dict[int, list[int]] = defaultdict(list)  # of each worker's tasks
    again: dict[tuple[int, int, int], int] = {}
    # Whole numbers may have become floats: simulate() joins the frames of idle workers.
    numbers = frame[["worker", "stage", "microbatch", "version"]].astype(int)
    for row, (op, worker, stage, microbatch, version) in enumerate(
        zip(frame["op"], *(numbers[column].tolist() for column in numbers), strict=True)
    ):
        if op == RECOMPUTE:
            again[worker, stage, microbatch] = row
            continue
        tasks[worker].append(Task(Op[op], stage, microbatch, version))
        rows[worker].append(row)
    workers = range(1 + max(tasks))
    graph = Schedule(tuple(tuple(tasks[w]) for w in workers)).dependencies
    row_of = [row for worker in workers for row in rows[worker]]

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

    for number in order(graph):
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
    return _Order(frame.iloc[events].reset_index(drop=True), before, needs, np.array(foreign))


def _mean(frame: pd.DataFrame) -> _Times:
    """Return each event's duration as the mean of its worker's events of that stage and op."""
    groups = frame.groupby(["worker", "stage", "op"])["duration"]
    means: _Times = groups.transform("mean").to_numpy()
    return means


def _balanced(frame: pd.DataFrame) -> _Times:
    """Return durations with which all workers that have an op take equally long for all of it."""
    total = frame.groupby("op")["duration"].transform("sum")
    workers = frame.groupby("op")["worker"].transform("nunique")
    count = frame.groupby(["op", "worker"])["duration"].transform("count")
    each: _Times = (total / workers / count).to_numpy()
    return each
