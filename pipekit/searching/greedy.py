"""An order made pass by pass: whoever is free first takes the best of what is there."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from pipekit.searching.problem import Orders, Problem

_FORWARD, _INPUTS, _WEIGHTS = range(3)


@dataclass(frozen=True)
class Policy:
    """What a free worker takes first.

    Attributes:
        ahead: forwards that a worker of ``p`` may have in flight, as a multiple of 1F1B's count
            on a straight pipeline; infinite: as many as it has room for.
        waiting: parts for the weights that may wait before one comes first.
        patience: for how long it waits for a pass that others need, in place of a part for the
            weights, as a share of that part.
        forwards_first: whether a forward comes before a part for the input.
    """

    ahead: float
    waiting: float
    patience: float
    forwards_first: bool


def policies(workers: int) -> Iterator[Policy]:
    """Yield the policies that are tried."""
    waiting = sorted({0, 1, workers // 2, workers})
    yield from (
        Policy(*each)
        for each in product((1, 2, math.inf), (*waiting, math.inf), (0, 0.5, 1), (False, True))
    )


def greedy(problem: Problem, policy: Policy) -> Orders:
    """Return the orders that a policy leads to; no worker gets more than it has room for.

    A microbatch begins on a worker only if there is room for all its forwards there and for those
    that are missing of the microbatches in flight, so that none ever waits for room.  Where there
    is not room for a single one, the orders are not complete.

    Args:
        problem: to be solved; each stage is on one worker.
        policy: what is taken first.
    """
    return _Run(problem, policy).finish()


class _Run:
    def __init__(self, problem: Problem, policy: Policy) -> None:
        self._problem, self._policy = problem, policy
        self._ends = [-1.0] * len(problem.takes)
        self._free = [0.0] * problem.workers
        self._orders: Orders = [[] for _ in range(problem.workers)]
        self._held = [0.0] * problem.workers
        self._in_flight = [0] * problem.workers
        self._next = [[0] * problem.stages for _ in range(3)]  # microbatch, by op and stage
        self._own = [
            [s for s in range(problem.stages) if problem.homes[s][0] == w]
            for w in range(problem.workers)
        ]

    def finish(self) -> Orders:
        choices = {worker: self._choice(worker) for worker in range(self._problem.workers)}
        while able := [choice for choice in choices.values() if choice]:
            start, worker, number = min(able)
            self._take(start, worker, number)
            for changed in self._concerned(worker, number):
                choices[changed] = self._choice(changed)
        return self._orders

    def _concerned(self, worker: int, number: int) -> set[int]:
        """Return the workers whose choice may be another one after a pass."""
        place, stage, _ = self._problem.parts(number)
        homes, beside = self._problem.homes, stage + {_FORWARD: 1, _INPUTS: -1}.get(place, 0)
        return {worker, homes[beside][0]} if 0 <= beside < len(homes) else {worker}

    def _choice(self, worker: int) -> tuple[float, int, int] | None:
        """Return (start, worker, pass) of what a worker takes next, or None if it has nothing."""
        found = list(self._candidates(worker))
        if not found:
            return None
        problem, policy, free = self._problem, self._policy, self._free[worker]
        weights = [each for each in found if each[1] == _WEIGHTS]
        others = [each for each in found if each[1] != _WEIGHTS]
        if weights and (not others or len(self._waiting(worker)) > policy.waiting):
            return free, worker, weights[0][2]
        soon = free + (problem.takes[weights[0][2]] * policy.patience if weights else math.inf)
        begin = min((ready for ready, _, _ in others), default=math.inf)
        if weights and begin > soon:
            return free, worker, weights[0][2]
        start = max(free, begin)
        able = [each for each in others if each[0] <= start]
        first = _FORWARD if policy.forwards_first else _INPUTS
        _, _, number = min(able, key=lambda c: (c[1] != first, *self._age(c[2])))
        return start, worker, number

    def _candidates(self, worker: int) -> Iterator[tuple[float, int, int]]:
        """Yield (ready, place, pass) of what a worker could take, now or later."""
        stages, microbatches = self._problem.stages, self._problem.microbatches
        needs = self._problem.needs
        for place, stage in product(range(3), self._own[worker]):
            k = self._next[place][stage]
            if k == microbatches:
                continue
            number = (place * stages + stage) * microbatches + k
            ready = 0.0
            for need, delay in needs[number]:
                end = self._ends[need]
                ready = math.inf if end < 0 else max(ready, end + delay)
                if ready == math.inf:
                    break
            if ready < math.inf and (place != _FORWARD or self._is_admitted(worker, stage)):
                yield ready, place, number

    def _is_admitted(self, worker: int, stage: int) -> bool:
        own = self._own[worker]
        if stage != own[0]:
            return True
        problem = self._problem
        straight = (problem.workers - worker) * self._policy.ahead * len(own)
        if self._in_flight[worker] and self._in_flight[worker] >= straight:
            return False
        begun, kept = self._next[_FORWARD][own[0]], problem.kept[_FORWARD]
        missing = sum((begun - self._next[_FORWARD][s]) * kept[s] for s in own)
        more = sum(kept[s] for s in own)
        return self._held[worker] + missing + more <= problem.room[worker] * (1 + 1e-12)

    def _age(self, number: int) -> tuple[int, int]:
        place, stage, microbatch = self._problem.parts(number)
        return microbatch, -stage if place == _FORWARD else stage

    def _waiting(self, worker: int) -> list[int]:
        inputs, weights = self._next[_INPUTS], self._next[_WEIGHTS]
        return [s for s in self._own[worker] for _ in range(inputs[s] - weights[s])]

    def _take(self, start: float, worker: int, number: int) -> None:
        problem = self._problem
        place, stage, _ = problem.parts(number)
        self._ends[number] = self._free[worker] = start + problem.takes[number]
        self._orders[worker].append(number)
        self._held[worker] += problem.kept[place][stage]
        self._in_flight[worker] += (place == _FORWARD) - (place == _WEIGHTS)
        self._next[place][stage] += 1
