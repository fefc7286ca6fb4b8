"""A schedule's tasks as rows of a trace: events, and what runs beside the workers' own streams."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from pipekit.schedules import OPS, Schedule, Task
from pipekit.traces.event_graph import Times
from pipekit.traces.record import TRANSFERS

_NONE = pd.DataFrame(columns=TRANSFERS)


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
