"""What a trace consists of, and a schedule's tasks as its rows.

The files that the class Trace itself stands on read it here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.schedules import OPS, Schedule, Task
from pipekit.traces.memory import Memory

Times = NDArray[np.float64]

COLUMNS = ["worker", "stage", "op", "microbatch", "version", "start_s", "end_s", "bytes"]
TRANSFERS = ["source", "destination", "purpose", "stage", "microbatch", "start_s", "end_s", "bytes"]
RECOMPUTE = "RECOMPUTE"
"""In the column of ops: a forward that is run again, as part of its backward's task."""
_NONE = pd.DataFrame(columns=TRANSFERS)


@dataclass(frozen=True)
class TraceRecord:
    """What a :class:`pipekit.traces.Trace` consists of, described there."""

    frame: pd.DataFrame
    label: str
    name: str
    workers: int
    unit: str = "s"
    transfers: pd.DataFrame | None = None
    memory: Memory | None = None
    origin_ns: int | None = None
    other: pd.DataFrame | None = None
    steps: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()
    chunks: int = 1


def events_of(
    schedule: Schedule, starts: Times, ends: Times, size: Times | int = 0
) -> pd.DataFrame:
    """Return a row for each task of the workers' own streams, the rows numbered as all tasks are.

    Each begins at ``starts``, ends at ``ends`` and sends ``size`` bytes [tasks] to other workers.
    """
    task = schedule.dependencies.columns
    frame = pd.DataFrame(
        {
            "worker": task.worker,
            "stage": task.stage,
            "op": np.array([op.name for op in OPS], dtype=object)[task.op],
            "microbatch": task.microbatch,
            "version": task.version,
            "start_s": starts,
            "end_s": ends,
            "bytes": size,
        }
    )
    return frame[~task.whose(lambda op: op.stream)]


def whole(frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Return columns of whole numbers, which may be floats, where frames were joined."""
    numbers = frame[names].astype(int)
    if (wrong := (numbers != frame[names]).any()).any():
        raise ValueError(f"a trace's {wrong.idxmax()} must be a whole number in each row")
    return numbers


def moved(tasks: Iterable[tuple[int, Task, float, float, float]]) -> pd.DataFrame:
    """Return a row for each task of another stream, of worker, task, start, end and bytes moved.

    From the host and to it is from its worker.
    """
    rows = []
    for worker, task, start, end, size in tasks:
        op, stage, microbatch, _ = task
        if op.stream:
            peer = worker if op.peer is None else op.peer
            ends = (worker, peer) if op.leaves else (peer, worker)
            purpose = op.base_name.lower()
            rows.append((*ends, purpose, stage, microbatch, start, end, size))
    return pd.DataFrame(rows, columns=TRANSFERS)


def tasks_of(transfers: pd.DataFrame | None) -> pd.DataFrame:
    """Return those of a trace's transfers that are tasks of its schedule, and no messages."""
    named = {op.name.lower() for op in OPS if op.stream and op.peer is None}
    if transfers is None or named.isdisjoint(transfers["purpose"].tolist()):
        return _NONE
    return transfers[transfers["purpose"].isin(named)]
