"""Which task runs when: every worker follows its list, computes alone, and waits for its data.

Sends never hold up the computing, as in the engine.  A recomputed forward runs before its gradient
is there (torchgpipe, section 3.2.3).  The gradients of a stage on several workers are reduced
bucket by bucket, one at a time, each as soon as all of them have it; the update waits for the last.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import permutations
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from pipekit.clusters import Cluster, flat
from pipekit.clusters.traffic import Flow, Traffic
from pipekit.profiling import LayerProfile
from pipekit.schedules import OPS, Op, Schedule, ScheduleError
from pipekit.schedules.dependencies import NOBODY, NOTHING
from pipekit.schedules.lowering.lower import update_ends
from pipekit.schedules.lowering.sums import sums
from pipekit.schedules.ops import receivers, senders
from pipekit.simulation.costs import StageCosts
from pipekit.simulation.loads import WEIGHTS, Loads, Route, Times, routes
from pipekit.simulation.sums import SumsInOrder, TiedSums
from pipekit.traces import TRANSFERS

_UNKNOWN = -1.0
_START, _END, _DESTINATION = map(TRANSFERS.index, ("start_s", "end_s", "destination"))


def run(
    schedule: Schedule,
    costs: Sequence[StageCosts],
    load: Loads,
    cluster: Cluster | None,
    overlap: float | None = None,
    waits: Mapping[int, int] = MappingProxyType({}),
) -> Times:
    """Return when everything happens; ``waits`` names the update for which a task waits."""
    return _LinkedRun(schedule, costs, load, cluster, overlap, waits).finish()


class _LinkedRun:
    """The state of a run; tasks go by their numbers in the schedule's graph."""

    def __init__(
        self,
        schedule: Schedule,
        costs: Sequence[StageCosts],
        load: Loads,
        cluster: Cluster | None,
        overlap: float | None,
        waits: Mapping[int, int],
    ) -> None:
        self.costs, self.graph = costs, schedule.dependencies
        self.tasks, self.update_of = self.graph.tasks, schedule.update_of
        self.seconds: list[float] = load.seconds.tolist()
        self.again: list[float] = load.again.tolist()
        self.times: list[float] = load.times.tolist()
        # Of each task the one that it runs together with, so that one waits for the data of both.
        self.partner = [NOTHING] * len(self.tasks) if overlap is None else self.graph.partner
        for number, partner in enumerate(self.partner):
            if partner != NOTHING:
                self.seconds[number] *= overlap or 0.0
                self.times[number] *= overlap or 0.0
        self.routes, messages = _of_tasks(routes(schedule, costs), len(costs))
        workers = len(schedule.workers)
        self.traffic = Traffic(cluster or flat(workers, math.inf))
        # A lane is a worker, or another stream of one.
        self.lists, lanes = self.graph.lists, len(self.graph.lists)
        self.following, self.free, self.computing = [0] * lanes, [0.0] * lanes, [False] * lanes
        self.beside: dict[int, list[int]] = defaultdict(list)  # the other lanes of its worker
        for one, other in permutations(range(lanes), 2) if lanes > workers else ():
            if self._worker(one) == self._worker(other):
                self.beside[one].append(other)
        # Of each task: how many of its messages are not there, and when the last of the others was.
        self.unsent = [messages[op][stage] for op, stage, _, _ in self.tasks]
        self.arrival = [0.0] * len(self.tasks)
        # The tasks after which a worker has added all its gradients to a sum with others.
        self.complete = {
            first + position
            for first, tasks in zip(self.graph.first, schedule.workers, strict=False)
            for position in update_ends(tasks, schedule)
            if costs[tasks[position].stage].buckets
        }
        self.sums = sums(schedule)
        self.tied = TiedSums(costs)
        self.updates = schedule.updates
        self.waits, self.busy = waits, sum(map(bool, schedule.workers))
        # When each worker came to an update, by its number; workers that wait for all of them.
        self.arrived: dict[int, dict[int, float]] = defaultdict(dict)
        self.waiting: dict[int, list[int]] = defaultdict(list)
        self.in_order = [SumsInOrder(cost) for cost in costs]
        # Of each stage and update the last task on each worker that adds a gradient for it.
        self.last: dict[tuple[int, int], list[int]] = defaultdict(list)
        # A heap: when a worker's task ends, (when, worker, ()); when gradients can be summed, or
        # are, (when, NOBODY, (stage, update, bucket)); when a tie's are, (number, update) there.
        self.events: list[tuple[float, int, tuple[int, ...]]] = []
        self.starts, self.ends = [math.nan] * len(self.tasks), [math.nan] * len(self.tasks)
        self.repeated = [math.nan] * len(self.tasks)
        # As TRANSFERS; a flow's times stand there once it has ended.
        self.transfers: list[list[Any]] = []

    def finish(self) -> Times:
        for lane in range(len(self.lists)):
            self._advance(lane)
        events, traffic = self.events, self.traffic
        while events or traffic.soonest < math.inf:
            if not events or traffic.soonest <= events[0][0]:
                traffic.finish_next()
                continue
            now, lane, summed = heapq.heappop(events)
            if len(summed) == 2:
                self._end_share(*summed, now)
                continue
            if summed:
                self._sum(now, *summed)
                continue
            number = self._next(lane)
            self.following[lane] += 1
            self.computing[lane] = False
            if self.partner[number] <= number:
                self._send_all(lane, number, now)
            for each in (lane, *self.beside[lane]):
                self._advance(each)
        columns = zip(*self.transfers, strict=True) if self.transfers else [()] * len(TRANSFERS)
        transfers = pd.DataFrame(dict(zip(TRANSFERS, columns, strict=True)))
        for number, start in enumerate(self.starts):
            if math.isnan(start):
                raise ScheduleError(
                    f"{self.tasks[number]} waits for ever: stages that share weights update "
                    f"together, which this schedule cannot; check(schedule, joint_updates=True) "
                    f"says who waits for whom",
                    self.graph.placed(number),
                )
        starts, ends, again = map(np.array, (self.starts, self.ends, self.repeated))
        return Times(starts, ends, again, transfers)

    def _worker(self, lane: int) -> int:
        return self.graph.worker_of[self.lists[lane][0]] if self.lists[lane] else lane

    def _next(self, lane: int) -> int:
        """Return the task that a lane comes to, or NOBODY at its end."""
        place, numbers = self.following[lane], self.lists[lane]
        return numbers[place] if place < len(numbers) else NOBODY

    def _advance(self, worker: int) -> None:
        """Start a lane's next task, if it is idle and knows when its data arrives."""
        number = self._next(worker)
        if self.computing[worker] or number == NOBODY:
            return
        op, stage, _, version = self.tasks[number]
        if op.is_pass:
            ready = _UNKNOWN if self.unsent[number] else self.arrival[number]
            partner = self.partner[number]
            if partner > number and ready != _UNKNOWN:
                ready = _UNKNOWN if self.unsent[partner] else max(ready, self.arrival[partner])
        else:
            ready = self._summed(stage, version)
            if ready != _UNKNOWN and self.tied.concern(worker):
                ready = self._shared(worker, version, max(self.free[worker], ready))
            if self.waits and ready != _UNKNOWN:
                self._arrive(worker, version, max(self.free[worker], ready))
        if number in self.graph.others and ready != _UNKNOWN:
            over = [self.ends[n] for n in self.graph.others[number]]
            ready = _UNKNOWN if any(map(math.isnan, over)) else max(ready, *over, 0.0)
        if number in self.waits and ready != _UNKNOWN:
            last = self._all_arrived(worker, self.waits[number])
            ready = _UNKNOWN if last == _UNKNOWN else max(ready, last)
        again = self.again[number]
        if not math.isnan(again) and math.isnan(self.repeated[number]):  # else done, while waiting
            self.repeated[number] = self.free[worker]
            self.free[worker] += again
        if ready == _UNKNOWN:
            return
        start = max(self.free[worker], ready)
        end = self.free[worker] = start + self.seconds[number]
        self.computing[worker] = True
        self.starts[number], self.ends[number] = start, end
        heapq.heappush(self.events, (end, worker, ()))
        if number in self.complete:
            self._computing(number)

    def _arrive(self, worker: int, update: int, when: float) -> None:
        """Note that a worker has come to an update; once all have, those who wait go on."""
        arrived = self.arrived[update]
        if worker in arrived:
            return
        arrived[worker] = when
        if len(arrived) == self.busy:
            for other in self.waiting.pop(update, ()):
                self._advance(other)

    def _all_arrived(self, worker: int, update: int) -> float:
        """Return when the last worker has come to an update, if that is known."""
        arrived = self.arrived[update]
        if len(arrived) == self.busy:
            return max(arrived.values())
        self.waiting[update].append(worker)
        return _UNKNOWN

    def _send_all(self, worker: int, number: int, now: float) -> None:
        """Send what a task has computed, and before it what the one has that it ran with."""
        for each in filter(lambda n: n != NOTHING, (self.partner[number], number)):
            op, stage, microbatch, _ = self.tasks[each]
            for route in self.routes[op][stage]:
                self._send(route, microbatch, worker, now)

    def _send(self, route: Route, microbatch: int, worker: int, now: float) -> None:
        """Send what a worker's task has computed."""
        payload, source, destination, size, purpose = route
        number = self.graph.receivers[payload][destination][microbatch]
        receiver = self.graph.worker_of[number]
        if receiver == worker:
            self._received(number, now)
            return
        row = [worker, receiver, purpose, source, microbatch, now, now, size]
        self.transfers.append(row)
        self.traffic.send(worker, receiver, size, now, partial(self._arrived, number, row))

    def _arrived(self, number: int, row: list[Any], flow: Flow) -> None:
        """Note that a task's message is there."""
        row[_START], row[_END] = flow.start, flow.end
        self._received(number, flow.arrival)
        self._go_on(row[_DESTINATION], number)

    def _received(self, number: int, when: float) -> None:
        self.unsent[number] -= 1
        self.arrival[number] = max(self.arrival[number], when)

    def _go_on(self, receiver: int, number: int) -> None:
        """Start a task whose data has arrived, if its worker waits for it."""
        if self._next(receiver) in (number, self.partner[number]):
            self._advance(receiver)

    def _summed(self, stage: int, version: int) -> float:
        """Return when an update's gradients are summed, if that is known."""
        pending = self.in_order[stage]
        if not self.costs[stage].buckets:
            return 0.0
        return pending.done[version] if version < len(pending.done) else _UNKNOWN

    def _shared(self, worker: int, update: int, now: float) -> float:
        """Return when a worker has what it shares for an update, if that is known."""
        for number in self.tied.come(worker, update, now):
            self._share(number, update, now)
        return self.tied.done.get((worker, update), _UNKNOWN)

    def _share(self, number: int, update: int, now: float) -> None:
        """Give the sum of one tie's gradients to all workers that have a copy."""
        tie = self.tied.ties[number]
        last = self.updates[tie.stage][update - 1][-1]
        rows = [
            [source, destination, WEIGHTS, tie.stage, last, now, now, size]
            for (source, destination), size in tie.sent.items()
        ]
        self.transfers += rows
        then = partial(self._arrived_share, number, update, rows)
        self.traffic.all_reduce(tie.members, tie.bytes, now, then)

    def _arrived_share(self, number: int, update: int, rows: list[list[Any]], flow: Flow) -> None:
        for row in rows:
            row[_START], row[_END] = flow.start, flow.end
        heapq.heappush(self.events, (flow.arrival, NOBODY, (number, update)))

    def _end_share(self, number: int, update: int, now: float) -> None:
        """Go on with the ties behind one, and with the workers that have had their last."""
        for following in self.tied.shared(number, update, now):
            self._share(following, update, now)
        for worker in self.tied.ties[number].members:
            if (worker, update) in self.tied.done:
                self._advance(worker)

    def _computing(self, number: int) -> None:
        """Note that a last backward begins; once all have, it is known what comes when."""
        _, stage, microbatch, _ = self.tasks[number]
        update = self.update_of[stage][microbatch]
        cost, last = self.costs[stage], self.last[stage, update]
        last.append(number)
        if len(last) == len(self.sums[stage][update - 1].contributors):
            for place, bucket in enumerate(cost.buckets):
                to_come = cost.layers[: bucket[-1]]  # behind the last of the bucket
                now = max(self._computed(each, to_come) for each in last)
                heapq.heappush(self.events, (now, NOBODY, (stage, update, place)))

    def _computed(self, number: int, to_come: Sequence[LayerProfile]) -> float:
        """Return when a backward has all gradients but those of the layers to come."""
        left = sum(layer.seconds(self.tasks[number].op) for layer in to_come)
        return max(self.starts[number], self.ends[number] - left * self.times[number])

    def _sum(self, now: float, stage: int, update: int, bucket: int) -> None:
        """Go on with a stage's sums: one has become possible, or is done."""
        pending, cost = self.in_order[stage], self.costs[stage]
        if pending.running == (update, bucket):
            pending.running = None
            pending.finished(now)
            if bucket == len(cost.buckets) - 1:
                for worker in cost.workers:
                    self._advance(worker)
        else:
            pending.ready.add((update, bucket))
        following = pending.following()
        if pending.running is None and following in pending.ready:
            pending.ready.remove(following)
            pending.running = following
            self._begin_sum(stage, *following, now)

    def _begin_sum(self, stage: int, update: int, bucket: int, now: float) -> None:
        """Send a bucket's gradients over the links, and go on with the sums when they are there."""
        cost = self.costs[stage]
        size = cost.bucket_bytes(cost.buckets[bucket])
        last = self.updates[stage][update - 1][-1]
        rows = [
            [source, destination, WEIGHTS, stage, last, now, now, each]
            for source, destination, each in self.traffic.pairs(cost.workers, size)
            if size
        ]
        self.transfers += rows
        then = partial(self._end_sum, (stage, update, bucket), rows)
        self.traffic.all_reduce(cost.workers, size, now, then)

    def _end_sum(self, summed: tuple[int, ...], rows: list[list[Any]], flow: Flow) -> None:
        for row in rows:
            row[_START], row[_END] = flow.start, flow.end
        heapq.heappush(self.events, (flow.arrival, NOBODY, summed))


def _of_tasks(
    every: Sequence[Route], stages: int
) -> tuple[dict[Op, list[list[Route]]], dict[Op, list[int]]]:
    """Return, by op and stage, what a task sends, and how many messages it receives."""
    sent: dict[Op, list[list[Route]]] = {op: [[] for _ in range(stages)] for op in OPS}
    received = {op: [0] * stages for op in OPS}
    for route in every:
        for op in senders(route.payload):
            sent[op][route.source].append(route)
        for op in receivers(route.payload):
            received[op][route.destination] += 1
    return sent, received
