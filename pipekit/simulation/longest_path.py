"""Which task runs when, where no two messages meet on a link: every task as soon as it can.

A task then starts when its worker is free and its messages are there, so that one pass over the
tasks, in an order in which they can run, gives what :mod:`pipekit.simulation.events` gives, sooner.
Whether messages have met is seen afterwards, from when each was under way.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.clusters import Cluster
from pipekit.clusters.paths import Path, Paths
from pipekit.schedules import Schedule
from pipekit.simulation.columns import Numbers, columns
from pipekit.simulation.costs import StageCosts
from pipekit.simulation.work import Route, Times, recomputed, routes, seconds


class _Messages(NamedTuple):
    """All messages between workers in the order of the tasks that send them, an entry each.

    Attributes:
        route: its number among :func:`pipekit.simulation.work.routes`.
        microbatch: that it is of.
        sender: the number of the task that sends it.
        receiver: likewise.
    """

    route: Numbers
    microbatch: Numbers
    sender: Numbers
    receiver: Numbers


def run(
    schedule: Schedule, costs: Sequence[StageCosts], cluster: Cluster | None = None
) -> Times | None:
    """Return when everything happens, or None if messages meet on a link and share it.

    Args:
        schedule: the table; no stage is on several workers.
        costs: of its stages, which share no weights.
        cluster: None: links cost nothing.
    """
    graph, workers, sent = schedule.dependencies, len(schedule.workers), routes(schedule, costs)
    takes, again = seconds(schedule, costs), recomputed(schedule, costs)
    messages = _messages(schedule, sent)
    source, destination = (columns(schedule).worker[end] for end in messages[2:])
    # Messages from one worker to another are on one connection, and follow one another there.
    ends_of, line = np.unique(source * workers + destination, return_inverse=True)
    paths = _paths(cluster, [divmod(int(ends), workers) for ends in ends_of])
    sizes = np.array([float(route.size) for route in sent])[messages.route]
    lasting, latency = np.zeros(len(line)), np.zeros(len(line))
    if paths:
        flow, alone, latency = np.array([(p.flow, p.alone, p.latency_s) for p in paths])[line].T
        lasting = flow * sizes / alone

    starts, ends, arrival = [0.0] * len(takes), [0.0] * len(takes), [0.0] * len(takes)
    repeated: list[float | None] = [None] * len(takes)
    missing = np.bincount(messages.receiver, minlength=len(takes)).tolist()
    first = np.searchsorted(messages.sender, np.arange(len(takes) + 1)).tolist()
    receiver = messages.receiver.tolist()
    under_way = [*zip(line.tolist(), lasting.tolist(), latency.tolist(), strict=True)]
    left, came = [0.0] * len(receiver), [0.0] * len(receiver)
    clear = [0.0] * len(ends_of)  # when a connection's last message is through
    free, following, stops = [0.0] * workers, graph.first[:-1], graph.first[1:]
    remaining = len(takes)
    while remaining:
        for worker, stop in enumerate(stops):
            number, now = following[worker], free[worker]
            while number < stop and not missing[number]:
                if again[number]:
                    repeated[number] = now
                    now += costs[graph.tasks[number].stage].whole.forward_s
                start = starts[number] = max(now, arrival[number])
                now = ends[number] = start + takes[number]
                for each in range(first[number], first[number + 1]):
                    connection, lasts, late = under_way[each]
                    left[each] = max(now, clear[connection])
                    came[each] = clear[connection] = left[each] + lasts
                    to = receiver[each]
                    arrival[to] = max(arrival[to], came[each] + late)
                    missing[to] -= 1
                number += 1
            remaining -= number - following[worker]
            following[worker], free[worker] = number, now
    if _meet(paths, line, np.array(left), np.array(came)):
        return None
    spans = [slice(start, stop) for start, stop in zip(graph.first, stops, strict=False)]
    leave = np.lexsort((source, np.array(ends)[messages.sender]))
    transfers = {
        "source": source,
        "destination": destination,
        "purpose": np.array([route.purpose for route in sent], object)[messages.route],
        "stage": np.array([route.source for route in sent], np.int64)[messages.route],
        "microbatch": messages.microbatch,
        "start_s": np.array(left),
        "end_s": np.array(came),
        "bytes": sizes,
    }
    return Times(
        [starts[span] for span in spans],
        [ends[span] for span in spans],
        [repeated[span] for span in spans],
        pd.DataFrame({name: column[leave] for name, column in transfers.items()}),
    )


def _messages(schedule: Schedule, sent: Sequence[Route]) -> _Messages:
    graph, worker_of = schedule.dependencies, columns(schedule).worker
    found = [np.empty((4, 0), np.int64)]
    for number, route in enumerate(sent):
        senders = np.array(graph.senders[route.payload][route.source])
        receivers = np.array(graph.receivers[route.payload][route.destination])
        away = np.flatnonzero(worker_of[senders] != worker_of[receivers])
        found.append(np.array([np.full(len(away), number), away, senders[away], receivers[away]]))
    every = np.concatenate(found, axis=1)
    return _Messages(*every[:, np.argsort(every[2], kind="stable")])


def _paths(cluster: Cluster | None, ends: Sequence[tuple[int, int]]) -> list[Path]:
    """Return the path of each connection; none where links cost nothing."""
    if cluster is None:
        return []
    known = Paths(cluster)
    return [known.message(source, destination) for source, destination in ends]


def _meet(
    paths: Sequence[Path], line: Numbers, left: NDArray[np.float64], came: NDArray[np.float64]
) -> bool:
    """Return whether messages of two connections were on one port at once.

    Args:
        paths: of each connection.
        line: of each message, its connection.
        left: likewise, when it set out.
        came: likewise, when its last byte left.
    """
    users = defaultdict(list)
    for number, path in enumerate(paths):
        for port, _ in path.ports:
            users[port].append(number)
    for lines in users.values():
        own = np.flatnonzero(np.isin(line, lines) & (came > left))
        own = own[np.argsort(left[own])]
        before, after = own[:-1], own[1:]
        # One that sets out as another ends may be told of before it is, and counts as well.
        if np.any((line[before] != line[after]) & (left[after] <= came[before])):
            return True
    return False
