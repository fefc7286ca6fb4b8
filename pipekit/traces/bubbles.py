"""The three bubbles: idle shares of the makespan, the workers' spans and the steady period."""

import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.schedules import Op

Column = NDArray[Any]
ALL = "all"
COLUMNS = ["makespan", "span", "steady"]


class _Own(NamedTuple):
    """One worker's events, an entry each."""

    starts: Column
    ends: Column
    versions: Column
    forwards: Column
    updates: Column


class _Worker(NamedTuple):
    """What one worker computes, and of how much time, for each of COLUMNS."""

    busy: list[float]
    time: list[float]


def bubbles(events: pd.DataFrame, workers: int, makespan_s: float) -> pd.DataFrame:
    """Return the idle shares of a trace's events; see :meth:`pipekit.traces.Trace.bubbles`."""
    columns = [events[name].to_numpy() for name in ("start_s", "end_s", "version")]
    columns += [(events["op"] == op.name).to_numpy() for op in (Op.FORWARD, Op.UPDATE)]
    worker = events["worker"].to_numpy()
    places = [np.flatnonzero(worker == number) for number in range(workers)]
    each = [_of(_Own(*(column[own] for column in columns)), makespan_s) for own in places]
    busy, time = (_with_sum(rows) for rows in ([o.busy for o in each], [o.time for o in each]))
    time[time == 0] = math.nan
    index = pd.Index([*range(workers), ALL], name="worker")
    return pd.DataFrame(1.0 - busy / time, index, COLUMNS)


def describe_bubbles(shares: pd.DataFrame) -> str:
    """Return the three bubbles of all workers in words, as titles and tables have them.

    Args:
        shares: what :func:`bubbles` returned.
    """
    names = {"makespan": "of makespan", "span": "of spans", "steady": "steady"}
    known = 100 * shares.loc[ALL].dropna()
    return "bubble " + ", ".join(f"{known[c]:z.1f} % {names[c]}" for c in COLUMNS if c in known)


def _with_sum(rows: list[list[float]]) -> Column:
    numbers = np.array(rows).reshape(-1, len(COLUMNS))
    return np.vstack([numbers, numbers.sum(axis=0)])


def _of(own: _Own, makespan_s: float) -> _Worker:
    busy = float((own.ends - own.starts).sum())
    span = float(own.ends.max() - own.starts.min()) if len(own.starts) else 0.0
    first, last = _steady(own)
    within = np.clip(own.ends, first, last) - np.clip(own.starts, first, last)
    return _Worker([busy, busy, float(within.sum())], [makespan_s, span, last - first])


def _steady(own: _Own) -> tuple[float, float]:
    """Return from when to when a worker is in its steady period; twice 0.0 if it never is."""
    made, numbers = np.unique(own.versions[own.updates], return_inverse=True)
    updates = np.full(len(made), -math.inf)  # of several stages' that make a version the last
    np.maximum.at(updates, numbers, own.ends[own.updates])
    updates = updates[updates <= own.starts[own.forwards].max(initial=-math.inf)]
    if len(updates) < 2:
        return 0.0, 0.0
    return float(updates.min()), float(updates.max())
