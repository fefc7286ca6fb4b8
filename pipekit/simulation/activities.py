"""What takes time, by number: tasks, forwards that run again, messages, and what else is added."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from pipekit.schedules import Schedule
from pipekit.schedules.clock import Need
from pipekit.simulation.costs import StageCosts
from pipekit.simulation.loads import Loads, Numbers, Route, Seconds, Times, routes


class Messages(NamedTuple):
    """All messages between workers in the order of the tasks that send them, an entry each."""

    route: Numbers  # its number among :func:`pipekit.simulation.loads.routes`
    microbatch: Numbers  # that it is of
    sender: Numbers  # the number of the task that sends it
    receiver: Numbers  # likewise
    source: Numbers  # the workers of these
    destination: Numbers
    size: Seconds  # in bytes


class GradientSum(NamedTuple):
    """A sum of gradients over workers."""

    members: tuple[int, ...]  # the workers
    bytes: float  # of the gradients
    stage: int  # that has the weights; of several, the first
    microbatch: int  # the last that is summed
    # sender, receiver and bytes; empty: as an all-reduce sends them
    sent: Sequence[tuple[int, int, float]] = ()


class Activities:
    """What takes time, by number: tasks first, then what is added.

    Attributes:
        lists: of each worker, and of each stream beside it.
        seconds: of each activity.
        needs: likewise.
        sent: what stages send to one another.
        messages: these, of each microbatch.
        sums: by their numbers.
    """

    def __init__(self, schedule: Schedule, costs: Sequence[StageCosts], load: Loads) -> None:
        graph = schedule.dependencies
        self.sent = routes(schedule, costs)
        self.messages = _messages(schedule, self.sent)
        self.seconds: list[float] = load.seconds.tolist()
        self.needs: list[Need] = [()] * len(self.seconds)
        for number, others in graph.others.items():
            self.needs[number] = tuple((n, 0.0) for n in others)
        self.lists: list[list[int]] = [*map(list, graph.lists)]
        self.sums: dict[int, GradientSum] = {}
        self._before = np.full(len(self.seconds), -1)
        repeated = np.flatnonzero(~np.isnan(load.again))
        if len(repeated):
            self._before[repeated] = self.add(load.again[repeated])
            self.put(self._before)

    def add(self, seconds: Seconds, needs: Sequence[Need] = ()) -> range:
        """Add activities, and return their numbers."""
        first = len(self.seconds)
        self.seconds += seconds.tolist()
        self.needs += needs or [()] * len(seconds)
        return range(first, len(self.seconds))

    def add_sum(self, made: GradientSum, needs: Need) -> int:
        """Add a sum, which takes as long as links say, and return its number."""
        (number,) = self.add(np.zeros(1), [needs])
        self.sums[number] = made
        return number

    def put(self, before: Numbers) -> None:
        """Let workers run activities before tasks; -1 where there is none."""
        size = len(before)
        self.lists = [
            [each for n in own for each in ((before[n], n) if n < size else (n,)) if each >= 0]
            for own in self.lists
        ]

    def times(
        self, starts: Sequence[float], ends: Sequence[float], transfers: pd.DataFrame
    ) -> Times:
        """Return when all tasks ran, of all activities' starts and ends."""
        size, began = len(self._before), np.array(starts)
        again = np.where(self._before >= 0, began[self._before], np.nan)
        return Times(began[:size], np.array(ends[:size]), again, transfers)

    def transfers(self, left: Seconds, came: Seconds, leaves: Seconds) -> pd.DataFrame:
        """Return the messages as a trace has them, in the order in which they could leave."""
        messages, sent = self.messages, self.sent
        order = np.lexsort((messages.source, leaves))
        purposes = np.array([route.purpose for route in sent], object)
        columns = {
            "source": messages.source,
            "destination": messages.destination,
            "purpose": purposes[messages.route],
            "stage": np.array([route.source for route in sent], np.int64)[messages.route],
            "microbatch": messages.microbatch,
            "start_s": left,
            "end_s": came,
            "bytes": messages.size,
        }
        return pd.DataFrame({name: column[order] for name, column in columns.items()})


def _messages(schedule: Schedule, sent: Sequence[Route]) -> Messages:
    graph = schedule.dependencies
    worker_of = graph.columns.worker
    found = [np.empty((4, 0), np.int64)]
    for number, route in enumerate(sent):
        senders = np.array(graph.senders[route.payload][route.source])
        receivers = np.array(graph.receivers[route.payload][route.destination])
        away = np.flatnonzero(worker_of[senders] != worker_of[receivers])
        found.append(np.array([np.full(len(away), number), away, senders[away], receivers[away]]))
    every = np.concatenate(found, axis=1)
    route, microbatch, sender, receiver = every[:, np.argsort(every[2], kind="stable")]
    sizes = np.array([float(route.size) for route in sent])
    workers = worker_of[sender], worker_of[receiver]
    return Messages(route, microbatch, sender, receiver, *workers, sizes[route])
