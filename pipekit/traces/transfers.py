"""What runs beside the workers' own streams, as a trace's transfers."""

from collections.abc import Callable, Iterable

import pandas as pd

from pipekit.schedules import Task
from pipekit.traces.record import TRANSFERS


def moved(
    tasks: Iterable[tuple[int, Task, float, float]], size: Callable[[Task], float] = lambda _: 0.0
) -> pd.DataFrame:
    """Return a row for each task of another stream; from the host and to it is from its worker.

    Args:
        tasks: each with its worker, its start and its end; those of the workers' own streams are
            left out.
        size: the bytes of what it moves.
    """
    rows = []
    for worker, task, start, end in tasks:
        op, stage, microbatch, _ = task
        if op.stream:
            peer = worker if op.peer is None else op.peer
            ends = (worker, peer) if op.leaves else (peer, worker)
            purpose = op.base_name.lower()
            rows.append((*ends, purpose, stage, microbatch, start, end, size(task)))
    return pd.DataFrame(rows, columns=TRANSFERS)
