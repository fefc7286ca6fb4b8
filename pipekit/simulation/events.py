"""Which task runs when: every worker follows its list, computes alone, and waits for its data.

Sends never hold up the computing, as in the engine.  A recomputed forward runs before its gradient
is there (torchgpipe, section 3.2.3).  The gradients of a stage on several workers are reduced layer
by layer, each as soon as all of them have it; the update waits for the last.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from pipekit.clusters import Cluster
from pipekit.clusters.traffic import Traffic, Transfer
from pipekit.costs import StageCosts
from pipekit.schedules import Op, Schedule, Step, lower, sums

_NOT_SENT = -1.0


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
    def __init__(
        self, schedule: Schedule, costs: Sequence[StageCosts], cluster: Cluster | None
    ) -> None:
        self.steps, self.costs = lower(schedule), costs
        self.traffic = None if cluster is None else Traffic(cluster)
        workers, microbatches = len(self.steps), schedule.microbatches
        self.position, self.free = [0] * workers, [0.0] * workers
        self.computing = [False] * workers
        self.newest_buffer: list[dict[int, int]] = [{} for _ in range(workers)]  # by stage
        self.forward_arrivals = [[_NOT_SENT] * microbatches for _ in costs]
        self.backward_arrivals = [[_NOT_SENT] * microbatches for _ in costs]
        self.sums = sums(schedule)
        self.updates = schedule.updates
        self.reduced = [[0.0] for _ in costs]  # when, by stage and version
        self.starts: dict[tuple[int, int], list[float]] = defaultdict(list)  # of last backwards
        self.ends: list[tuple[float, int]] = []  # a heap: (when, worker)
        self.times = Times(
            [[] for _ in range(workers)],
            [[] for _ in range(workers)],
            [[] for _ in range(workers)],
            [],
        )

    def finish(self) -> Times:
        for worker in range(len(self.steps)):
            self._advance(worker)
        while self.ends:
            now, worker = heapq.heappop(self.ends)
            step = self.steps[worker][self.position[worker]]
            self.position[worker] += 1
            self.computing[worker] = False
            if step.destination is not None:
                self._send(step, worker, step.destination, now)
            self._advance(worker)
        return self.times

    def _advance(self, worker: int) -> None:
        """Start a worker's next task, if it is idle and knows when its data arrives."""
        position = self.position[worker]
        if self.computing[worker] or position == len(self.steps[worker]):
            return
        step = self.steps[worker][position]
        op, stage, microbatch, version = step.task
        cost = self.costs[stage]
        if op is Op.FORWARD:
            duration, arrivals = cost.whole.forward_s, self.forward_arrivals
        elif op is Op.BACKWARD:
            duration, arrivals = cost.whole.backward_s, self.backward_arrivals
        else:
            duration = cost.whole.update_s
            if step.buffer != self.newest_buffer[worker].get(stage, 0):
                duration += cost.whole.copy_s
        if op is Op.UPDATE:
            ready = self._summed(stage, version)
        else:
            ready = 0.0 if step.source is None else arrivals[stage][microbatch]
        recomputed = self.times.recomputed[worker]
        if len(recomputed) == position:  # else it was done already, while waiting
            again = op is Op.BACKWARD and step.recomputed(cost.recompute)
            recomputed.append(self.free[worker] if again else None)
            if again:
                self.free[worker] += cost.whole.forward_s
        if ready == _NOT_SENT:
            return
        start = max(self.free[worker], ready)
        end = self.free[worker] = start + duration
        self.computing[worker] = True
        if op is Op.UPDATE:
            self.newest_buffer[worker][stage] = step.buffer
        self.times.starts[worker].append(start)
        self.times.ends[worker].append(end)
        heapq.heappush(self.ends, (end, worker))
        if step.ends_update and len(cost.workers) > 1:
            self.starts[stage, step.update].append(start)
            self._reduce(stage)

    def _send(self, step: Step, worker: int, receiver: int, now: float) -> None:
        op, stage, microbatch, _ = step.task
        if op is Op.FORWARD:
            size, purpose = self.costs[stage].whole.output_bytes, "activation"
            arrivals = self.forward_arrivals[stage + 1]
        else:
            size, purpose = self.costs[stage].input_bytes, "gradient"
            arrivals = self.backward_arrivals[stage - 1]
        if receiver == worker:
            arrivals[microbatch] = now
            return
        sent = Transfer(now, now, now)
        if self.traffic is not None:
            sent = self.traffic.send(worker, receiver, size, now)
        self.times.transfers.append(
            (worker, receiver, purpose, stage, microbatch, sent.start, sent.end, size)
        )
        arrivals[microbatch] = sent.arrival
        self._advance(receiver)

    def _summed(self, stage: int, version: int) -> float:
        """Return when an update's gradients are summed, if that is known."""
        if len(self.costs[stage].workers) == 1:
            return 0.0
        reduced = self.reduced[stage]
        return reduced[version] if version < len(reduced) else _NOT_SENT

    def _reduce(self, stage: int) -> None:
        """Reduce the gradients of a stage's next updates, as far as their starts are known.

        One after the other, as the workers do; each from when all that contribute to it have the
        start of their last backward.
        """
        cost, reduced = self.costs[stage], self.reduced[stage]
        while len(reduced) <= len(self.sums[stage]):
            update = len(reduced)
            starts = self.starts[stage, update]
            if len(starts) < len(self.sums[stage][update - 1].contributors):
                return
            now = done = max(starts)
            for layer in reversed(cost.layers):
                now += layer.backward_s
                done = max(done, now)
                if self.traffic is not None and layer.parameter_bytes:
                    done = self._all_reduce(stage, update, layer.parameter_bytes, now)
            reduced.append(done)
            for worker in cost.workers:
                self._advance(worker)

    def _all_reduce(self, stage: int, update: int, size: float, now: float) -> float:
        assert self.traffic is not None
        workers = self.costs[stage].workers
        start, end, arrival = self.traffic.all_reduce(workers, size, now)
        each = 2 * size * (len(workers) - 1) / len(workers)
        last = self.updates[stage][update - 1][-1]
        for place, worker in enumerate(workers):
            neighbour = workers[(place + 1) % len(workers)]
            self.times.transfers.append(
                (worker, neighbour, "weights", stage, last, start, end, each)
            )
        return arrival
