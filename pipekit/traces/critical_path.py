"""Which events a run's length hangs on: from the last one back, each time to what it waited for."""

import pandas as pd

from pipekit.traces.event_graph import event_graph
from pipekit.traces.record import COLUMNS


def critical_path(events: pd.DataFrame) -> pd.DataFrame:
    """Return the critical path; see :meth:`pipekit.traces.Trace.critical_path`."""
    if events.empty:
        return events.assign(waited_s=[])
    graph = event_graph(events)
    starts, ends = graph.frame["start_s"].tolist(), graph.frame["end_s"].tolist()
    number = max(range(len(ends)), key=ends.__getitem__)
    path, waited = [], []
    while True:
        path.append(number)
        sources = [*graph.before[number], *graph.needs[number]]
        if not sources:
            waited.append(starts[number] - min(starts))
            break
        latest = max(sources, key=ends.__getitem__)
        waited.append(max(0.0, starts[number] - ends[latest]))
        number = latest
    rows = graph.frame.loc[path[::-1], COLUMNS].reset_index(drop=True)
    return rows.assign(waited_s=waited[::-1])
