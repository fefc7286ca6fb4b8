"""Which task runs when where messages share links, and workers sum gradients or wait for all.

Sends never hold up the computing, as in the engine.  A recomputed forward runs before its gradient
is there (torchgpipe, section 3.2.3).  A stage's gradients are reduced bucket by bucket, one at a
time, each as soon as all its workers have it; the update waits for the last.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import pandas as pd

from pipekit.clusters import Cluster, flat
from pipekit.clusters.traffic import Flow, Traffic
from pipekit.schedules import Schedule, ScheduleError
from pipekit.simulation.costs import StageCosts
from pipekit.simulation.loads import WEIGHTS, Activities, Loads, Times
from pipekit.simulation.sums import add_sums
from pipekit.traces import TRANSFERS


def run(
    schedule: Schedule,
    costs: Sequence[StageCosts],
    load: Loads,
    cluster: Cluster | None,
    waits: Mapping[int, int] = MappingProxyType({}),
) -> Times:
    """Return when everything happens; ``waits`` names the update for which a task waits."""
    graph = schedule.dependencies
    activities = Activities(schedule, costs, load)
    messages = activities.messages
    after = [((sender, 0.0),) for sender in messages.sender.tolist()]
    sent = activities.add(np.zeros(len(after)), after)
    for message, receiver in zip(sent, messages.receiver.tolist(), strict=True):
        activities.needs[receiver] += ((message, 0.0),)
    add_sums(activities, schedule, costs, load, waits)
    followed = _Followed(activities, sent, cluster or flat(schedule.worker_count, math.inf))
    followed.run()
    starts, ends = followed.starts, followed.ends
    for number, _ in enumerate(graph.tasks):
        if math.isnan(starts[number]):
            raise ScheduleError(
                f"{graph.tasks[number]} waits for ever: stages that share weights update "
                f"together, which this schedule cannot; check(schedule, joint_updates=True) "
                f"says who waits for whom"
            )
    when = slice(sent.start, sent.stop)
    left, came, leaves = np.array(starts[when]), np.array(ends[when]), followed.ready[when]
    transfers = activities.transfers(left, came, np.array(leaves))
    if followed.summed:
        more = pd.DataFrame(followed.summed, columns=TRANSFERS)
        transfers = pd.concat([transfers, more], ignore_index=True) if len(sent) else more
    return activities.times(starts, ends, transfers)


class _Followed:
    """Activities in order of time: those of lists as soon as they can, others over shared links.

    Each is ``ready`` when all that it needs is over; its ``starts`` is NaN until it has begun, and
    at its ``ends`` its message is there.  ``summed`` has the TRANSFERS rows of sums.
    """

    def __init__(self, activities: Activities, sent: range, cluster: Cluster) -> None:
        count = len(activities.seconds)
        self.ready, self.starts, self.ends = ([each] * count for each in (0.0, math.nan, math.nan))
        self.summed: list[tuple[object, ...]] = []
        self._activities, self._sent, self._traffic = activities, sent, Traffic(cluster)
        self._left = [*map(len, activities.needs)]  # needs that are not over, as far as is known
        self._followers: list[list[tuple[int, float]]] = [[] for _ in activities.needs]
        # NOBODY is found at the end, and is never over.
        self._followers += [[], []]
        for number, needs in enumerate(activities.needs):
            for need, delay in needs:
                self._followers[need].append((number, delay))
        self._lane_of = {n: lane for lane, numbers in enumerate(activities.lists) for n in numbers}
        self._following, self._free = ([each] * len(activities.lists) for each in (0, 0.0))
        self._lanes = [*range(len(activities.lists))]  # that may go on
        # A heap of messages and sums that can begin: when, the sums before messages.
        self._able: list[tuple[float, bool, int]] = []

    def run(self) -> None:
        able, traffic = self._able, self._traffic
        self._go_on()
        while able or traffic.soonest < math.inf:
            if not able or traffic.soonest <= able[0][0]:
                traffic.finish_next()
            else:
                now, _, number = heapq.heappop(able)
                self._begin(number, now)
            self._go_on()

    def _go_on(self) -> None:
        seconds, starts = self._activities.seconds, self.starts
        while self._lanes:
            lane = self._lanes.pop()
            numbers, now = self._activities.lists[lane], self._free[lane]
            place = self._following[lane]
            while place < len(numbers) and not self._left[number := numbers[place]]:
                start = starts[number] = max(now, self.ready[number])
                now = self.ends[number] = start + seconds[number]
                place += 1
                self._over(number, start, now)
            self._following[lane], self._free[lane] = place, now

    def _over(self, number: int, start: float, end: float) -> None:
        """Note when an activity is over; a part of it may be over earlier, after it starts."""
        for follower, delay in self._followers[number]:
            when = max(start, end + delay)
            self.ready[follower] = max(self.ready[follower], when)
            self._left[follower] -= 1
            if self._left[follower]:
                continue
            if follower in self._lane_of:
                self._lanes.append(self._lane_of[follower])
            else:
                able = self.ready[follower], follower in self._sent, follower
                heapq.heappush(self._able, able)

    def _begin(self, number: int, now: float) -> None:
        then = partial(self._arrived, number)
        if number in self._sent:
            messages, place = self._activities.messages, number - self._sent.start
            ends = int(messages.source[place]), int(messages.destination[place])
            self._traffic.send(*ends, float(messages.size[place]), now, then)
        else:
            made = self._activities.sums[number]
            self._traffic.all_reduce(made.members, made.bytes, now, then)

    def _arrived(self, number: int, flow: Flow) -> None:
        self.starts[number], self.ends[number] = flow.start, flow.end
        if made := self._activities.sums.get(number):
            pairs = made.sent or self._traffic.pairs(made.members, made.bytes)
            about = WEIGHTS, made.stage, made.microbatch, flow.start, flow.end
            self.summed += [(*ends, *about, size) for *ends, size in pairs if made.bytes]
        self._over(number, flow.start, flow.arrival)
