"""The three bubbles: idle shares of the makespan, the workers' spans and the steady period."""

import math

import numpy as np
import pandas as pd

from pipekit.schedules import Op

ALL = "all"
COLUMNS = ["makespan", "span", "steady"]


def bubbles(events: pd.DataFrame, workers: int, makespan_s: float) -> pd.DataFrame:
    """Return the idle shares of a trace's events; see :meth:`pipekit.traces.Trace.bubbles`."""
    rows = []
    for worker in range(workers):
        here = events[events["worker"] == worker]
        starts, ends = here["start_s"].to_numpy(), here["end_s"].to_numpy()
        first, last = _steady(here)
        within = np.clip(ends, first, last) - np.clip(starts, first, last)
        busy, span = (ends - starts).sum(), ends.max() - starts.min() if len(here) else 0.0
        rows.append([busy, busy, within.sum(), makespan_s, span, last - first])
    each = np.array(rows, dtype=float).reshape(-1, 2 * len(COLUMNS))
    busy, time = np.hsplit(np.vstack([each, each.sum(axis=0)]), 2)
    time[time == 0] = math.nan
    index = pd.Index([*range(workers), ALL], name="worker")
    return pd.DataFrame(1.0 - busy / time, index, COLUMNS)


def _steady(events: pd.DataFrame) -> tuple[float, float]:
    """Return from when to when a worker is in its steady period; twice 0.0 if it never is."""
    last_forward = events.loc[events["op"] == Op.FORWARD.name, "start_s"].max()
    updates = events[events["op"] == Op.UPDATE.name]
    # Of several stages' updates that make a version, the last one counts.
    made = updates.groupby("version")["end_s"].max()
    made = made[made <= last_forward]
    return (float(made.min()), float(made.max())) if len(made) > 1 else (0.0, 0.0)


def describe_bubbles(shares: pd.DataFrame) -> str:
    """Return the three bubbles of all workers in words, as titles and tables have them.

    Args:
        shares: what :func:`bubbles` returned.
    """
    names = {"makespan": "of makespan", "span": "of spans", "steady": "steady"}
    known = 100 * shares.loc[ALL].dropna()
    return "bubble " + ", ".join(f"{known[c]:z.1f} % {names[c]}" for c in COLUMNS if c in known)
