"""Which task runs when: every worker follows its list, computes alone, and waits for its data.

Sends never hold up the computing, as in the engine.  A recomputed forward runs before its gradient
is there (torchgpipe, section 3.2.3).  The gradients of a stage on several workers are reduced
bucket by bucket, one at a time, each as soon as all of them have it; the update waits for the last.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from pipekit.clusters import Cluster
from pipekit.clusters.traffic import Traffic, Transfer, all_reduce_bytes
from pipekit.schedules import MAIN, OPS, Message, Op, Payload, Schedule, lower, sums
from pipekit.schedules.dependencies import NOBODY
from pipekit.simulation.costs import StageCosts, skips_of

_UNKNOWN = -1.0
_PURPOSE = {payload: payload.value for payload in Payload}  # .value takes as long as a send


class Times(NamedTuple):
    """What happened when, in seconds.

    Attributes:
        starts: ``starts[w][i]``: when task ``i`` of worker ``w`` began to compute.
        ends: likewise, when it had computed.
        recomputed: likewise, when the recomputation before it began, or None.
        transfers: (source, destination, purpose, stage, microbatch, start, end, bytes) of each
            message, as in :attr:`pipekit.traces.Trace.transfers`.
    """

    starts: list[list[float]]
    ends: list[list[float]]
    recomputed: list[list[float | None]]
    transfers: list[tuple[int, int, str, int, int, float, float, float]]


def run(schedule: Schedule, costs: Sequence[StageCosts], cluster: Cluster | None) -> Times:
    """Return when everything happens; ``cluster`` None: links cost nothing."""
    return _Run(schedule, costs, cluster).finish()


class _Run:
    """The state of a run; tasks go by their numbers in the schedule's graph."""

    def __init__(
        self, schedule: Schedule, costs: Sequence[StageCosts], cluster: Cluster | None
    ) -> None:
        self.costs, self.skips, self.graph = costs, skips_of(costs), schedule.dependencies
        ends = [(skip.source, skip.destination) for skip in self.skips]
        self.steps = [step for steps in lower(schedule, ends) for step in steps]
        self.traffic = None if cluster is None else Traffic(cluster)
        self.seconds = [{op: cost.seconds(op) for op in Op} for cost in costs]
        workers = len(schedule.workers)
        self.following, self.stops = self.graph.first[:-1], self.graph.first[1:]
        self.free, self.computing = [0.0] * workers, [False] * workers
        self.newest_slot: list[dict[int, int]] = [{} for _ in range(workers)]  # by stage
        # Of each task: how many of its messages are not under way, and when the last one arrives.
        self.unsent = [len(step.receives) for step in self.steps]
        self.arrival = [0.0] * len(self.steps)
        self.sums = sums(schedule)
        self.updates = schedule.updates
        self.lanes = [_Lane(cost) for cost in costs]
        # When the last task that adds a gradient for an update began, and its op, of each worker.
        self.last: dict[tuple[int, int], list[tuple[float, Op]]] = defaultdict(list)
        # A heap: when a worker's task ends, (when, worker, ()); when gradients can be summed, or
        # are, (when, NOBODY, (stage, update, bucket)).
        self.events: list[tuple[float, int, tuple[int, ...]]] = []
        self.times = Times(
            [[] for _ in range(workers)],
            [[] for _ in range(workers)],
            [[] for _ in range(workers)],
            [],
        )

    def finish(self) -> Times:
        for worker in range(len(self.free)):
            self._advance(worker)
        while self.events:
            now, worker, summed = heapq.heappop(self.events)
            if summed:
                self._sum(now, *summed)
                continue
            step = self.steps[self.following[worker]]
            self.following[worker] += 1
            self.computing[worker] = False
            for message, receiver in step.sends:
                self._send(message, step.task.stage, worker, receiver, now)
            self._advance(worker)
        return self.times

    def _advance(self, worker: int) -> None:
        """Start a worker's next task, if it is idle and knows when its data arrives."""
        number = self.following[worker]
        if self.computing[worker] or number == self.stops[worker]:
            return
        step = self.steps[number]
        op, stage, _, version = step.task
        rule, cost = OPS[op], self.costs[stage]
        duration = self.seconds[stage][op]
        if rule.is_pass:
            ready = _UNKNOWN if self.unsent[number] else self.arrival[number]
        else:
            ready = self._summed(stage, version)
            if step.slot != self.newest_slot[worker].get(stage, 0):
                duration += cost.whole.copy_s
        recomputed = self.times.recomputed[worker]
        if len(recomputed) == number - self.graph.first[worker]:  # else done, while waiting
            again = rule.own is Op.FORWARD and step.recomputed(cost.recompute)
            recomputed.append(self.free[worker] if again else None)
            if again:
                self.free[worker] += cost.whole.forward_s
        if ready == _UNKNOWN:
            return
        start = max(self.free[worker], ready)
        end = self.free[worker] = start + duration
        self.computing[worker] = True
        if not rule.is_pass:
            self.newest_slot[worker][stage] = step.slot
        self.times.starts[worker].append(start)
        self.times.ends[worker].append(end)
        heapq.heappush(self.events, (end, worker, ()))
        if step.ends_update and cost.buckets:
            self._computing(stage, step.update, op, start)

    def _send(self, message: Message, sender: int, worker: int, receiver: int, now: float) -> None:
        """Send what a task of stage ``sender`` has computed."""
        payload, stage, microbatch, skip = message
        number = self.graph.receivers[payload][stage][microbatch]
        self.unsent[number] -= 1
        if receiver == worker:
            self.arrival[number] = max(self.arrival[number], now)
            return
        if skip != MAIN:
            size = self.skips[skip].bytes
        elif payload is Payload.ACTIVATION:
            size = self.costs[stage].input_bytes
        else:
            size = self.costs[stage].whole.output_bytes
        sent = Transfer(now, now, now)
        if self.traffic is not None:
            sent = self.traffic.send(worker, receiver, size, now)
        self.times.transfers.append(
            (worker, receiver, _PURPOSE[payload], sender, microbatch, sent.start, sent.end, size)
        )
        self.arrival[number] = max(self.arrival[number], sent.arrival)
        if number == self.following[receiver]:
            self._advance(receiver)

    def _summed(self, stage: int, version: int) -> float:
        """Return when an update's gradients are summed, if that is known."""
        lane = self.lanes[stage]
        if not self.costs[stage].buckets:
            return 0.0
        return lane.done[version] if version < len(lane.done) else _UNKNOWN

    def _computing(self, stage: int, update: int, op: Op, start: float) -> None:
        """Note the start of a last backward; once all have theirs, it is known what comes when."""
        cost, last = self.costs[stage], self.last[stage, update]
        last.append((start, op))
        if len(last) == len(self.sums[stage][update - 1].contributors):
            for number, bucket in enumerate(cost.buckets):
                behind = cost.layers[bucket[-1] :]  # the last of the bucket, and all before it
                now = max(begun + sum(layer.seconds(o) for layer in behind) for begun, o in last)
                heapq.heappush(self.events, (now, NOBODY, (stage, update, number)))

    def _sum(self, now: float, stage: int, update: int, bucket: int) -> None:
        """Go on with a stage's sums: one has become possible, or is done."""
        lane, cost = self.lanes[stage], self.costs[stage]
        if lane.running == (update, bucket):
            lane.running = None
            lane.finished(now)
            if bucket == len(cost.buckets) - 1:
                for worker in cost.workers:
                    self._advance(worker)
        else:
            lane.ready.add((update, bucket))
        following = lane.following()
        if lane.running is None and following in lane.ready:
            lane.ready.remove(following)
            lane.running = following
            done = now
            if self.traffic is not None:
                size = cost.bucket_bytes(cost.buckets[following[1]])
                done = self._all_reduce(stage, following[0], size, now)
            heapq.heappush(self.events, (done, NOBODY, (stage, *following)))

    def _all_reduce(self, stage: int, update: int, size: float, now: float) -> float:
        assert self.traffic is not None
        workers = self.costs[stage].workers
        start, end, arrival = self.traffic.all_reduce(workers, size, now)
        each = all_reduce_bytes(size, len(workers))
        last = self.updates[stage][update - 1][-1]
        for place, worker in enumerate(workers):
            neighbour = workers[(place + 1) % len(workers)]
            self.times.transfers.append(
                (worker, neighbour, "weights", stage, last, start, end, each)
            )
        return arrival


class _Lane:
    """The sums of one stage's gradients: one at a time, in an order that its workers agree on.

    Attributes:
        ready: (update, bucket) of those that can be summed.
        running: likewise, that is being summed.
        done: when each update's were all summed; version 0 needs none.
    """

    def __init__(self, cost: StageCosts) -> None:
        self._buckets = len(cost.buckets)
        self.ready: set[tuple[int, int]] = set()
        self.running: tuple[int, int] | None = None
        self.done = [0.0]
        self._bucket = 0

    def following(self) -> tuple[int, int]:
        """Return (update, bucket) of the next sum."""
        return len(self.done), self._bucket

    def finished(self, now: float) -> None:
        """Note that a sum is done."""
        self._bucket += 1
        if self._bucket == self._buckets:
            self._bucket = 0
            self.done.append(now)
