"""An order made pass by pass: whoever is free first takes the best of what is there."""

import math

from pipekit.searching.policies import Policy
from pipekit.searching.problem import Orders, Problem

_FORWARD, _INPUTS, _WEIGHTS = range(3)
_BRIM = 1 + 1e-12

_Choice = tuple[float, int, int, int]
"""When a pass can start, its worker, its place in KINDS and its stage."""


def greedy(problem: Problem, policy: Policy) -> Orders:
    """Return the orders that a policy leads to; no worker gets more than it has room for.

    A forward is taken only if room is left for one more on each of the worker's later stages, and
    for gradients.  So the oldest microbatch never waits for room, and sooner or later makes some.
    Where there is not room for a single one, the orders are not complete.

    Args:
        problem: to be solved; each stage is on one worker.
        policy: what is taken first.
    """
    return _Run(problem, policy).finish()


class _Run:
    def __init__(self, problem: Problem, policy: Policy) -> None:
        self._problem, self._policy = problem, policy
        self._homes = [row[0] for row in problem.homes]
        self._delays = [row[0] for row in problem.delays]
        stages, microbatches = problem.stages, problem.microbatches
        self._ends = [[[-1.0] * microbatches for _ in range(stages)] for _ in range(2)]
        self._free = [0.0] * problem.workers
        self._orders: Orders = [[] for _ in range(problem.workers)]
        self._done = [[0] * stages for _ in range(3)]  # passes, by op and stage
        self._own = [
            [s for s in range(stages) if self._homes[s] == w] for w in range(problem.workers)
        ]
        # What has to stay free on a worker when a stage of it has taken a forward.
        self._later = [
            sum(problem.kept[_FORWARD][other] for other in self._own[home] if other > stage)
            for stage, home in enumerate(self._homes)
        ]
        self._reserved = [0.0] * problem.workers
        self._reserve = [0.0] * stages
        for stage, home in enumerate(self._homes):
            freed = problem.gradients[stage] + problem.kept[_WEIGHTS][stage]
            self._reserve[stage] = max(problem.heights[_WEIGHTS][stage], freed)
            self._reserved[home] += self._reserve[stage]
        self._held = [0.0] * problem.workers

    def finish(self) -> Orders:
        choices = [self._choice(worker) for worker in range(self._problem.workers)]
        while able := [choice for choice in choices if choice]:
            start, worker, place, stage = min(able)
            self._take(start, worker, place, stage)
            choices[worker] = self._choice(worker)
            beside = stage + (1, -1, 0)[place]
            if place != _WEIGHTS and 0 <= beside < len(self._homes):
                other = self._homes[beside]
                choices[other] = self._choice(other)
        return self._orders

    def _choice(self, worker: int) -> _Choice | None:
        """Return what a worker takes next, or None if it has nothing."""
        free, policy = self._free[worker], self._policy
        forwards_first = policy.forwards_first[worker]
        forwards, inputs, weights = self._done
        waiting, oldest = 0, (math.inf, -1)
        # Of passes that others need: when each is ready, and what makes it come first.
        able: list[tuple[float, tuple[bool, int, int], int, int]] = []
        for stage in self._own[worker]:
            parts = inputs[stage] - weights[stage]
            if parts:
                waiting += parts
                oldest = min(oldest, (weights[stage], stage))
            ready = self._forward_ready(worker, stage)
            if ready >= 0:
                first = (not forwards_first, forwards[stage], -stage)
                able.append((ready, first, _FORWARD, stage))
            if inputs[stage] < forwards[stage]:
                ready = self._input_ready(stage)
                if ready >= 0:
                    able.append((ready, (forwards_first, inputs[stage], stage), _INPUTS, stage))
        if not able and not waiting:
            return None
        begin = min(able)[0] if able else math.inf
        if waiting:
            part = self._problem.seconds[_WEIGHTS][oldest[1]]
            if waiting > policy.waiting[worker] or begin > free + part * policy.patience[worker]:
                return free, worker, _WEIGHTS, oldest[1]
        start = max(free, begin)
        _, place, stage = min(each[1:] for each in able if each[0] <= start)
        return start, worker, place, stage

    def _forward_ready(self, worker: int, stage: int) -> float:
        """Return when a stage's next forward has its data; -1 if that is not known, or no room."""
        problem, forwards = self._problem, self._done[_FORWARD][stage]
        if forwards == problem.microbatches:
            return -1.0
        ready = 0.0
        if stage:
            end = self._ends[_FORWARD][stage - 1][forwards]
            if end < 0:
                return -1.0
            ready = end + self._delays[stage - 1]
        added = self._done[_WEIGHTS][stage]
        if forwards - added >= self._policy.depth[stage]:
            return -1.0
        if problem.reads and added < problem.reads.summed[stage][forwards]:
            return -1.0
        more = problem.kept[_FORWARD][stage] + self._later[stage] + self._reserved[worker]
        return ready if self._held[worker] + more <= problem.room[worker] * _BRIM else -1.0

    def _input_ready(self, stage: int) -> float:
        if stage + 1 == len(self._homes):
            return 0.0  # its forward has run
        end = self._ends[_INPUTS][stage + 1][self._done[_INPUTS][stage]]
        return end if end < 0 else end + self._delays[stage]

    def _take(self, start: float, worker: int, place: int, stage: int) -> None:
        problem, k = self._problem, self._done[place][stage]
        end = self._free[worker] = start + problem.seconds[place][stage]
        self._orders[worker].append((place * problem.stages + stage) * problem.microbatches + k)
        self._held[worker] += problem.kept[place][stage]
        self._done[place][stage] += 1
        if place != _WEIGHTS:
            self._ends[place][stage][k] = end
        elif k == 0:  # now the stage has gradients
            self._held[worker] += problem.gradients[stage]
            self._reserved[worker] -= self._reserve[stage]
