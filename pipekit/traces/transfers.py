"""What runs beside the workers' own streams, as a trace's transfers."""

from collections.abc import Iterable

import pandas as pd

from pipekit.schedules import OPS, Task
from pipekit.traces.record import TRANSFERS


def moved(tasks: Iterable[tuple[int, Task, float, float, float]]) -> pd.DataFrame:
    """Return a row for each task of another stream; from the host and to it is from its worker.

    Args:
        tasks: each with its worker, its start, its end and the bytes that it moves; those of the
            workers' own streams are left out.
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
    if transfers is None:
        return pd.DataFrame(columns=TRANSFERS)
    return transfers[transfers["purpose"].isin({op.base_name.lower() for op in OPS if op.stream})]
