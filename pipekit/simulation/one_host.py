"""Which task runs when, where all workers share one host and nothing else carries their messages.

Threads and processes have no links between them: a worker itself lays what it sends where the other
one finds it, or copies it from there, and computes nothing meanwhile.  What it takes beside the
profiled passes is measured on the host.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

from pipekit.schedules import OPS, Op, Schedule
from pipekit.simulation.costs import StageCosts
from pipekit.simulation.work import Route, Times, recomputed, routes_of_tasks, seconds
from pipekit.traces import TRANSFERS


@dataclass(frozen=True)
class Host:
    """What workers of one host take beside their profiled passes, in seconds measured there.

    Attributes:
        pass_s: of each pass more than in a loop of one thread: it finds caches colder, since the
            worker has waited, run the engine's own code, and perhaps come to another core.
        task_s: of the engine, around each task.
        batch_s: to read a batch, on the first stage and on the last.
        send_s: to hand a message to another worker,
        send_byte_s: and for each of its bytes.
        receive_s: to take a message,
        receive_byte_s: and for each of its bytes.
        wake_s: until a worker goes on that has waited for a message.

    Raises:
        ValueError: a number is negative or not finite.
    """

    pass_s: float = 0.0
    task_s: float = 0.0
    batch_s: float = 0.0
    send_s: float = 0.0
    send_byte_s: float = 0.0
    receive_s: float = 0.0
    receive_byte_s: float = 0.0
    wake_s: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not 0 <= value < math.inf:
                raise ValueError(
                    f"a host's {item.name} must be 0 or a positive number of seconds, not {value}"
                )


def run(schedule: Schedule, costs: Sequence[StageCosts], host: Host) -> Times:
    """Return when everything happens.

    Args:
        schedule: the table.
        costs: of its stages.
        host: what else takes time.

    Raises:
        ValueError: stages are on several workers, or share weights.
    """
    if any(cost.buckets or cost.ties for cost in costs):
        raise ValueError(
            "what sums of gradients between workers cost on one host has not been measured: leave "
            "host out, or simulate without replicas and ties"
        )
    return _Run(schedule, costs, host).finish()


class _Run:
    """The state of a run; tasks go by their numbers in the schedule's graph."""

    def __init__(self, schedule: Schedule, costs: Sequence[StageCosts], host: Host) -> None:
        self.graph, self.costs, self.host = schedule.dependencies, costs, host
        self.seconds, self.again = seconds(schedule, costs), recomputed(schedule, costs)
        self.routes, messages = routes_of_tasks(schedule, costs)
        # Of each task: how many of its messages are not there, when the last of the others was, and
        # what it takes to take them.
        self.unsent = [messages[op][stage] for op, stage, _, _ in self.graph.tasks]
        self.arrival = [0.0] * len(self.unsent)
        self.receiving = [0.0] * len(self.unsent)
        self.reads = {
            (Op.FORWARD, stage, batch[0])
            for batch in schedule.batches
            for stage in (0, len(costs) - 1)
        }
        workers = len(schedule.workers)
        self.following, self.stops = self.graph.first[:-1], self.graph.first[1:]
        self.free = [0.0] * workers
        self.starts: list[list[float]] = [[] for _ in range(workers)]
        self.ends: list[list[float]] = [[] for _ in range(workers)]
        self.repeated: list[list[float | None]] = [[] for _ in range(workers)]
        self.transfers: list[list[Any]] = []  # as TRANSFERS

    def finish(self) -> Times:
        while any(now < stop for now, stop in zip(self.following, self.stops, strict=True)):
            for worker, stop in enumerate(self.stops):
                while (number := self.following[worker]) < stop and not self.unsent[number]:
                    self._run(worker, number)
                    self.following[worker] += 1
        frame = pd.DataFrame(self.transfers, columns=TRANSFERS)
        in_order = frame.sort_values(["start_s", "source"], kind="stable", ignore_index=True)
        return Times(self.starts, self.ends, self.repeated, in_order)

    def _run(self, worker: int, number: int) -> None:
        """Run a worker's next task, whose messages have all been sent."""
        host, now = self.host, self.free[worker]
        op, stage, microbatch, _ = self.graph.tasks[number]
        self.repeated[worker].append(now if self.again[number] else None)
        if self.again[number]:
            now += self.costs[stage].whole.forward_s
        if self.arrival[number] > now:
            now = self.arrival[number] + host.wake_s
        now += host.task_s + self.receiving[number]
        if (op, stage, microbatch) in self.reads:
            now += host.batch_s
        self.starts[worker].append(now)
        now += self.seconds[number] + (host.pass_s if OPS[op].is_pass else 0.0)
        self.ends[worker].append(now)
        for route in self.routes[op][stage]:
            now = self._send(worker, route, microbatch, now)
        self.free[worker] = now

    def _send(self, worker: int, route: Route, microbatch: int, now: float) -> float:
        """Hand a message over; return when that is done."""
        payload, source, destination, size, purpose = route
        number = self.graph.receivers[payload][destination][microbatch]
        receiver, end = self.graph.worker_of[number], now
        if receiver != worker:
            end += self.host.send_s + self.host.send_byte_s * size
            self.receiving[number] += self.host.receive_s + self.host.receive_byte_s * size
            self.transfers.append([worker, receiver, purpose, source, microbatch, now, end, size])
        self.arrival[number] = max(self.arrival[number], end)
        self.unsent[number] -= 1
        return end
