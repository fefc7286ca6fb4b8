"""The three bubbles: idle shares of the makespan, the workers' spans and the steady period."""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from pipekit.schedules import Op

ALL = "all"
COLUMNS = ["makespan", "span", "steady"]


class _Worker(NamedTuple):
    """What one worker computes, and of how much time, for each of COLUMNS."""

    busy: list[float]
    time: list[float]


def bubbles(events: pd.DataFrame, workers: int, makespan_s: float) -> pd.DataFrame:
    """Return the idle shares of a trace's events; see :meth:`pipekit.traces.Trace.bubbles`."""
    of_worker = dict(iter(events.groupby("worker")))
    each = [_of(of_worker.get(worker, events.iloc[:0]), makespan_s) for worker in range(workers)]
    busy = pd.DataFrame([worker.busy for worker in each], columns=COLUMNS)
    time = pd.DataFrame([worker.time for worker in each], columns=COLUMNS)
    busy.loc[ALL], time.loc[ALL] = busy.sum(), time.sum()
    return (1.0 - busy / time.replace(0.0, math.nan)).rename_axis(index="worker")


def describe_bubbles(shares: pd.DataFrame) -> str:
    """Return the three bubbles of all workers in words, as titles and tables have them.

    Args:
        shares: what :func:`bubbles` returned.
    """
    names = {"makespan": "of makespan", "span": "of spans", "steady": "steady"}
    known = 100 * shares.loc[ALL].dropna()
    return "bubble " + ", ".join(f"{known[c]:z.1f} % {names[c]}" for c in COLUMNS if c in known)


def _of(events: pd.DataFrame, makespan_s: float) -> _Worker:
    starts, ends = events["start_s"].to_numpy(), events["end_s"].to_numpy()
    busy = float((ends - starts).sum())
    span = float(ends.max() - starts.min()) if len(events) else 0.0
    first, last = _steady(events)
    within = np.clip(ends, first, last) - np.clip(starts, first, last)
    return _Worker([busy, busy, float(within.sum())], [makespan_s, span, last - first])


def _steady(events: pd.DataFrame) -> tuple[float, float]:
    """Return from when to when a worker is in its steady period; twice 0.0 if it never is."""
    forwards = events.loc[events["op"] == Op.FORWARD.name, "start_s"]
    updates = events[events["op"] == Op.UPDATE.name].groupby("version")["end_s"].max()
    updates = updates[updates <= forwards.max()] if len(forwards) else updates[:0]
    if len(updates) < 2:
        return 0.0, 0.0
    return float(updates.min()), float(updates.max())
