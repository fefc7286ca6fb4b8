"""Which events a run's length hangs on: from the last one back, each time to what it waited for."""

import pandas as pd

from pipekit.schedules.dependencies import NOTHING
from pipekit.traces.event_graph import EventGraph
from pipekit.traces.record import COLUMNS


def critical_path(graph: EventGraph) -> pd.DataFrame:
    """Return the critical path; see :meth:`pipekit.traces.Trace.critical_path`."""
    starts, ends = graph.frame["start_s"].tolist(), graph.frame["end_s"].tolist()
    latest = graph.latest()
    number = max(range(len(ends)), key=ends.__getitem__)
    path, waited = [], []
    while number != NOTHING:
        path.append(number)
        before = latest[number]
        waited.append(
            max(0.0, starts[number] - (min(starts) if before == NOTHING else ends[before]))
        )
        number = before
    rows = graph.frame.loc[path[::-1], COLUMNS].reset_index(drop=True)
    return rows.assign(waited_s=waited[::-1])
