"""Where a run's time went: compute, recomputation, imbalance, bubble, communication."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.schedules import Op, Schedule, Task
from pipekit.schedules.replay import producer, replay

if TYPE_CHECKING:
    from pipekit.traces import Trace

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
    "FORWARD": "computation",
    "BACKWARD": "computation",
    "RECOMPUTE": "recompute",
    "UPDATE": "update",
}

_Times = NDArray[np.float64]


def breakdown(trace: "Trace") -> pd.DataFrame:
    """Split a trace's time; see :meth:`pipekit.traces.Trace.breakdown`."""
    if not trace.makespan_s:
        raise ValueError("there is no time to split: the trace has no event that takes any")
    order = _order(trace.frame)
    frame = order.frame
    ends = (frame["end_s"] - frame["start_s"].min()).to_numpy()
    frame = frame.assign(duration=frame["end_s"] - frame["start_s"])
    durations = frame["duration"].to_numpy()
    gaps = np.maximum(ends - durations - order.ready(ends), 0)

    # Each of these runs lacks one cause of idleness more than the one before it.
    runs = [
        trace.makespan_s,
        order.makespan(durations, np.where(order.foreign, gaps, 0)),
        order.makespan(durations),
        order.makespan(_mean(frame)),
        order.makespan(_balanced(frame)),
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
    seconds = seconds.reindex(range(trace.workers), fill_value=0.0)
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
    rows: dict[tuple[int, Task], int] = {}
    again: dict[tuple[int, int, int], int] = {}
    # Whole numbers may have become floats: simulate() joins the frames of idle workers.
    numbers = frame[["worker", "stage", "microbatch", "version"]].astype(int)
    for row, (op, worker, stage, microbatch, version) in enumerate(
        zip(frame["op"], *(numbers[column] for column in numbers), strict=True)
    ):
        if op not in Op.__members__:  # a recomputation: part of its backward's task
            again[worker, stage, microbatch] = row
            continue
        task = Task(Op[op], stage, microbatch, version)
        tasks[worker].append(task)
        rows[worker, task] = row
    schedule = Schedule(tuple(tuple(tasks[w]) for w in range(1 + max(tasks))))

    order: list[int] = []
    before: list[list[int]] = []
    needs: list[list[int]] = []
    foreign: list[bool] = []
    last: dict[int, list[int]] = defaultdict(list)
    made: dict[tuple[Op, int, int], tuple[int, int]] = {}  # event and worker of each pass

    def add(row: int, worker: int, sources: list[tuple[int, int]]) -> None:
        before.append(last[worker])
        needs.append([event for event, _ in sources])
        foreign.append(any(other != worker for _, other in sources))
        last[worker] = [len(order)]
        order.append(row)

    for worker, _, task in replay(schedule):
        op, stage, microbatch, _ = task
        if op is Op.BACKWARD and (worker, stage, microbatch) in again:
            add(again[worker, stage, microbatch], worker, [])
        source = producer(task, schedule.stages)
        if op is Op.UPDATE:
            summed = schedule.updates[stage][schedule.update_of[stage][microbatch] - 1]
            sources = [made[Op.BACKWARD, stage, k] for k in summed]
        else:
            sources = [made[*source, microbatch]] if source else []
        add(rows[worker, task], worker, sources)
        made[op, stage, microbatch] = last[worker][0], worker
    return _Order(frame.iloc[order].reset_index(drop=True), before, needs, np.array(foreign))


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
