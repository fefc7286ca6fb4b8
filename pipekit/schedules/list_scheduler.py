"""One scheduler that chooses: the worker that is free first takes the best of what is there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Pass

SPLIT = (Op.FORWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)
"""The passes of a microbatch on a stage, in their order."""
_FORWARD, _INPUTS, _WEIGHTS = range(3)
_BRIM = 1 + 1e-12

_Choice = tuple[float, int, int, int]
"""When a pass can start, its worker, its place in SPLIT and its stage."""


@dataclass(frozen=True)
class Policy:
    """What a free worker takes first."""

    # of each stage, microbatches that have gone forward and not all the way back, at most;
    # infinite: as many as there is room for
    depth: Sequence[float]
    forwards_first: bool = False  # whether a forward comes before a part for the input
    waiting: float = 0  # parts for the weights that may wait before one comes first
    # for how long it waits for a pass that others need, in place of a part for the weights, as a
    # share of that part
    patience: float = 0


@dataclass(frozen=True)
class BatchPasses:
    """A batch's passes, in two parts each way back, and the room for activations and gradients."""

    homes: Sequence[int]  # the worker of each stage
    microbatches: int
    seconds: Sequence[Sequence[float]]  # of each op of SPLIT, by stage
    delays: Sequence[float]  # seconds from a stage to the next one, and back
    # bytes of activations that a worker keeps more after each op of SPLIT, by stage
    kept: Sequence[Sequence[float]]
    # bytes of each stage's gradients, from its first part for the weights on until the update
    gradients: Sequence[float]
    reserve: Sequence[float]  # bytes that have to stay free until then
    room: Sequence[float]  # bytes of each worker


def choose(passes: BatchPasses, policy: Policy) -> list[list[Pass]]:
    """Return the orders that a policy leads to; no worker gets more than it has room for.

    A forward is taken only if room is left for one more on each of the worker's later stages, and
    for gradients, so that the oldest microbatch never waits for room.  Where there is not room for
    a single one, the orders are not complete.
    """
    return _Run(passes, policy).finish()


class _Run:
    def __init__(self, passes: BatchPasses, policy: Policy) -> None:
        self._passes, self._policy = passes, policy
        stages, workers = range(len(passes.homes)), range(len(passes.room))
        self._ends = [[[-1.0] * passes.microbatches for _ in stages] for _ in range(2)]
        self._free = [0.0 for _ in workers]
        self._orders: list[list[Pass]] = [[] for _ in workers]
        self._done = [[0] * len(stages) for _ in SPLIT]
        self._stages = [[s for s in stages if passes.homes[s] == w] for w in workers]
        # What has to stay free on a worker when a stage of it has taken a forward.
        self._later = [
            sum(passes.kept[_FORWARD][other] for other in self._stages[home] if other > stage)
            for stage, home in enumerate(passes.homes)
        ]
        self._reserved = [sum(passes.reserve[s] for s in own) for own in self._stages]
        self._held = [0.0 for _ in workers]

    def finish(self) -> list[list[Pass]]:
        homes = self._passes.homes
        choices = [self._choice(worker) for worker in range(len(self._free))]
        while able := [choice for choice in choices if choice]:
            start, worker, place, stage = min(able)
            self._take(start, worker, place, stage)
            choices[worker] = self._choice(worker)
            beside = stage + (1, -1, 0)[place]
            if place != _WEIGHTS and 0 <= beside < len(homes):
                choices[homes[beside]] = self._choice(homes[beside])
        return self._orders

    def _choice(self, worker: int) -> _Choice | None:
        free, policy = self._free[worker], self._policy
        forwards_first = policy.forwards_first
        forwards, inputs, weights = self._done
        waiting, oldest = 0, (math.inf, -1)
        # Of passes that others need: when each is ready, and what makes it come first.
        able: list[tuple[float, tuple[bool, int, int], int, int]] = []
        for stage in self._stages[worker]:
            parts = inputs[stage] - weights[stage]
            if parts:
                waiting += parts
                oldest = min(oldest, (weights[stage], stage))
            if self._may_begin(worker, stage) and (ready := self._ready(_FORWARD, stage)) >= 0:
                first = (not forwards_first, forwards[stage], -stage)
                able.append((ready, first, _FORWARD, stage))
            if inputs[stage] < forwards[stage] and (ready := self._ready(_INPUTS, stage)) >= 0:
                able.append((ready, (forwards_first, inputs[stage], stage), _INPUTS, stage))
        if not able and not waiting:
            return None
        begin = min(able)[0] if able else math.inf
        if waiting:
            part = self._passes.seconds[_WEIGHTS][oldest[1]]
            if waiting > policy.waiting or begin > free + part * policy.patience:
                return free, worker, _WEIGHTS, oldest[1]
        start = max(free, begin)
        _, place, stage = min(each[1:] for each in able if each[0] <= start)
        return start, worker, place, stage

    def _may_begin(self, worker: int, stage: int) -> bool:
        """Return whether there is another microbatch for a stage, and room for it."""
        passes, forwards = self._passes, self._done[_FORWARD][stage]
        in_flight = forwards - self._done[_WEIGHTS][stage]
        if forwards == passes.microbatches or in_flight >= self._policy.depth[stage]:
            return False
        more = passes.kept[_FORWARD][stage] + self._later[stage] + self._reserved[worker]
        return self._held[worker] + more <= passes.room[worker] * _BRIM

    def _ready(self, place: int, stage: int) -> float:
        """Return when the next pass has what the stage beside it sends; -1 if that has not run."""
        beside = stage - 1 if place == _FORWARD else stage + 1
        if not 0 <= beside < len(self._passes.homes):
            return 0.0
        end = self._ends[place][beside][self._done[place][stage]]
        return end if end < 0 else end + self._passes.delays[min(stage, beside)]

    def _take(self, start: float, worker: int, place: int, stage: int) -> None:
        passes, k = self._passes, self._done[place][stage]
        end = self._free[worker] = start + passes.seconds[place][stage]
        self._orders[worker].append((SPLIT[place], stage, k))
        self._held[worker] += passes.kept[place][stage]
        self._done[place][stage] += 1
        if place != _WEIGHTS:
            self._ends[place][stage][k] = end
        elif k == 0:  # now the stage has gradients
            self._held[worker] += passes.gradients[stage]
            self._reserved[worker] -= passes.reserve[stage]
