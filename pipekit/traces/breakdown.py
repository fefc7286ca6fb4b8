"""Where a run's time went: shares of all of it, and the three bubbles."""

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.schedules import Op
from pipekit.traces.event_graph import EventGraph
from pipekit.traces.record import RECOMPUTE, Times

CATEGORIES = ["computation", "recompute", "update", "imbalance", "bubble", "communication", "other"]
ALL = "all"
BUBBLES = ["makespan", "span", "steady"]
_BUSY = {Op.UPDATE.name: "update", RECOMPUTE: "recompute"}
"""What an event counts as, if not as computation."""


def breakdown(run: EventGraph, workers: int, span_s: tuple[float, float]) -> pd.DataFrame:
    """Split a run's time between its two ends; see :meth:`pipekit.traces.Trace.breakdown`."""
    begin, end = span_s
    frame = run.frame.assign(duration=run.frame["end_s"] - run.frame["start_s"])
    ends, durations = (frame["end_s"] - begin).to_numpy(), frame["duration"].to_numpy()
    ready = np.append(ends, 0.0)[run.latest]  # NOTHING is the last place
    gaps, worker = np.maximum(ends - durations - ready, 0), frame["worker"].tolist()
    # Which wait for messages.
    needs = zip(worker, run.needs, strict=True)
    foreign = [any(worker[need] != own for need in each) for own, each in needs]

    by_op, count = frame.groupby("op"), frame.groupby(["op", "worker"])["duration"]
    mean = frame.groupby(["worker", "stage", "op"])["duration"].transform("mean")
    # All workers that have an op take equally long for all of it.
    total = by_op["duration"].transform("sum")
    even_share = total / by_op["worker"].transform("nunique") / count.transform("count")
    # Each of these runs lacks one cause of idleness more than the one before it.
    runs = [
        end - begin,
        run.makespan(durations, np.where(foreign, gaps, 0)),
        run.makespan(durations),
        run.makespan(mean.to_numpy()),
        run.makespan(even_share.to_numpy()),
    ]
    whole, with_messages, without, even, balanced = np.minimum.accumulate(runs)

    categories = frame["op"].map(lambda op: _BUSY.get(op, "computation"))
    seconds = frame["duration"].groupby([frame["worker"], categories]).sum().unstack(fill_value=0.0)
    seconds = seconds.reindex(columns=CATEGORIES, fill_value=0.0)
    idle = (even - seconds.sum(axis=1)).clip(lower=0)
    in_balance = max(0.0, balanced * len(seconds) - seconds.to_numpy().sum())
    part = min(1.0, in_balance / idle.sum()) if idle.sum() else 0.0
    seconds["bubble"], seconds["imbalance"] = idle * part, idle * (1 - part)
    seconds["communication"] = with_messages - without
    seconds["other"] = (whole - with_messages) + (without - even)
    seconds = seconds.reindex(range(workers), fill_value=0.0)
    seconds.loc[seconds.sum(axis=1) == 0, "bubble"] = whole
    seconds.loc[ALL] = seconds.sum()
    shares = 100 * seconds.div(seconds.sum(axis=1), axis=0)
    return shares.rename_axis(index="worker", columns=None)


def bubbles(events: pd.DataFrame, workers: int, makespan_s: float) -> pd.DataFrame:
    """Return the idle shares of a trace's events; see :meth:`pipekit.traces.Trace.bubbles`."""
    rows = np.zeros((workers, 2 * len(BUBBLES)))
    rows[:, 3] = makespan_s
    columns = [events[name].to_numpy() for name in ("op", "start_s", "end_s", "version")]
    for worker, places in events.groupby("worker").indices.items():
        op, starts, ends, versions = (column[places] for column in columns)
        first, last = _steady(op, starts.astype(float), ends.astype(float), versions)
        within = np.clip(ends, first, last) - np.clip(starts, first, last)
        busy, span = (ends - starts).sum(), ends.max() - starts.min()
        rows[int(worker)] = [busy, busy, within.sum(), makespan_s, span, last - first]
    busy, time = np.hsplit(np.vstack([rows, rows.sum(axis=0)]), 2)
    time[time == 0] = math.nan
    index = pd.Index([*range(workers), ALL], name="worker")
    return pd.DataFrame(1.0 - busy / time, index, BUBBLES)


def _steady(
    op: NDArray[np.object_], starts: Times, ends: Times, versions: NDArray[np.int64]
) -> tuple[float, float]:
    """Return from when to when a worker is in its steady period; twice 0.0 if it never is."""
    last_forward = starts[op == Op.FORWARD.name].max(initial=-math.inf)
    updates = op == Op.UPDATE.name
    # Of several stages' updates that make a version, the last one counts.
    each, which = np.unique(versions[updates], return_inverse=True)
    made = np.full(len(each), -math.inf)
    np.maximum.at(made, which, ends[updates])
    made = made[made <= last_forward]
    return (float(made.min()), float(made.max())) if len(made) > 1 else (0.0, 0.0)


def describe_bubbles(shares: pd.DataFrame) -> str:
    """Return the three bubbles that :func:`bubbles` found, of all workers, in words."""
    names = {"makespan": "of makespan", "span": "of spans", "steady": "steady"}
    known = 100 * shares.loc[ALL].dropna()
    return "bubble " + ", ".join(f"{known[c]:z.1f} % {names[c]}" for c in BUBBLES if c in known)
