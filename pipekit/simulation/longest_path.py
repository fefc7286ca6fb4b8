"""Which task runs when, where no one waits for another's link: every task as soon as it can.

A task then starts when its worker is free and its data computed, so that one pass over the tasks,
in an order in which they can run, gives what :mod:`pipekit.simulation.events` gives, sooner.  What
comes over a skip connection is never awaited: it was sent before what comes from the stage beside.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pipekit.schedules import Schedule
from pipekit.simulation.costs import StageCosts
from pipekit.simulation.work import Route, Times, recomputed, routes, seconds
from pipekit.traces import TRANSFERS

_UNKNOWN = -1.0


def run(schedule: Schedule, costs: Sequence[StageCosts]) -> Times:
    """Return when everything happens, if links cost nothing and no stage is on several workers."""
    graph, sent = schedule.dependencies, routes(schedule, costs)
    takes, again = seconds(schedule, costs), recomputed(schedule, costs)
    starts = [0.0] * len(takes)
    # The two more at the end are found at NOBODY, -2, which never ends, and at NOTHING, -1.
    ends = [_UNKNOWN] * len(takes) + [_UNKNOWN, 0.0]
    repeated: list[float | None] = [None] * len(takes)
    source, free = graph.source, [0.0] * len(schedule.workers)
    following, stops = graph.first[:-1], graph.first[1:]
    remaining = len(takes)
    while remaining:
        for worker, stop in enumerate(stops):
            number, now = following[worker], free[worker]
            while number < stop:
                ready = ends[source[number]]
                if ready == _UNKNOWN:
                    break
                if again[number]:
                    repeated[number] = now
                    now += costs[graph.tasks[number].stage].whole.forward_s
                start = starts[number] = max(now, ready)
                now = ends[number] = start + takes[number]
                number += 1
            remaining -= number - following[worker]
            following[worker], free[worker] = number, now
    spans = [slice(first, stop) for first, stop in zip(graph.first, stops, strict=False)]
    return Times(
        [starts[span] for span in spans],
        [ends[span] for span in spans],
        [repeated[span] for span in spans],
        _transfers(schedule, sent, ends),
    )


def _transfers(schedule: Schedule, sent: Sequence[Route], ends: Sequence[float]) -> pd.DataFrame:
    """Return all messages between workers in the order in which they leave."""
    graph = schedule.dependencies
    worker_of, when = np.array(graph.worker_of), np.array(ends)
    frames = []
    for payload, source, destination, size, purpose in sent:
        senders = np.array(graph.senders[payload][source])
        receivers = np.array(graph.receivers[payload][destination])
        microbatches = np.flatnonzero(worker_of[senders] != worker_of[receivers])
        senders, receivers = senders[microbatches], receivers[microbatches]
        frames.append(
            pd.DataFrame(
                {
                    "source": worker_of[senders],
                    "destination": worker_of[receivers],
                    "purpose": purpose,
                    "stage": source,
                    "microbatch": microbatches,
                    "start_s": when[senders],
                    "end_s": when[senders],
                    "bytes": size,
                }
            )
        )
    if not frames:
        return pd.DataFrame(columns=TRANSFERS)
    return pd.concat(frames, ignore_index=True).sort_values(
        ["start_s", "source"], kind="stable", ignore_index=True
    )[TRANSFERS]
