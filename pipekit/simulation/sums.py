"""When workers sum gradients: a stage's over its copies, and of weights that stages share.

As the engine does it (:mod:`pipekit.engine.updates.all_reduce`), every worker of a tie
waits, before its first update of a version, until all of them have come to theirs, and has its ties
one after the other.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from pipekit.simulation.costs import StageCosts, ties_of


class SumsInOrder:
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


class SharedSum(NamedTuple):
    """What one tie sends at an update.

    Attributes:
        stage: the first that has the weights, and the sum of their gradients.
        members: the workers that have a copy.
        bytes: of the weights.
        sent: bytes by sender and receiver.
    """

    stage: int
    members: tuple[int, ...]
    bytes: float
    sent: Mapping[tuple[int, int], float]


class TiedSums:
    """Which ties' gradients are being shared.

    Attributes:
        ties: by number; none whose copies are all on one worker.
        done: when a worker had all that it shares for an update, by (worker, update).
    """

    def __init__(self, costs: Sequence[StageCosts]) -> None:
        self.ties: list[SharedSum] = []
        for tie in ties_of(costs):
            workers = [worker for stage in tie.layers for worker in costs[stage].workers]
            members = tuple(dict.fromkeys(workers))
            if len(members) > 1:
                sent = _sent(members, tie.bytes)
                self.ties.append(SharedSum(tie.layers[0], members, tie.bytes, sent))
        self._of_worker: dict[int, list[int]] = defaultdict(list)
        for number, shared in enumerate(self.ties):
            for worker in shared.members:
                self._of_worker[worker].append(number)
        self.done: dict[tuple[int, int], float] = {}
        # How many of its ties a worker has had for an update; who waits for one.
        self._place: dict[tuple[int, int], int] = {}
        self._present: dict[tuple[int, int], int] = defaultdict(int)

    def concern(self, worker: int) -> bool:
        """Return whether a worker shares anything with others."""
        return worker in self._of_worker

    def come(self, worker: int, update: int, now: float) -> Iterator[int]:
        """Note that a worker has come to an update; yield the tie for which it was the last."""
        if (worker, update) not in self._place:
            self._place[worker, update] = 0
            yield from self._next(worker, update, now)

    def shared(self, number: int, update: int, now: float) -> Iterator[int]:
        """Note that all members have a tie's gradients; yield the ties that can be shared now."""
        for worker in self.ties[number].members:
            self._place[worker, update] += 1
            yield from self._next(worker, update, now)

    def _next(self, worker: int, update: int, now: float) -> Iterator[int]:
        place, numbers = self._place[worker, update], self._of_worker[worker]
        if place == len(numbers):
            self.done[worker, update] = now
            return
        number = numbers[place]
        self._present[number, update] += 1
        if self._present[number, update] == len(self.ties[number].members):
            yield number


def _sent(members: tuple[int, ...], size: float) -> dict[tuple[int, int], float]:
    """Return who sends whom how many bytes: the first its sum by parts, and each then its part."""
    part = size / len(members)
    return {
        (source, destination): part * (2 if source == members[0] else 1)
        for source, destination in permutations(members, 2)
    }
