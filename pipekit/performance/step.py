"""The seconds of a training step: passes and transfers of our own table, replayed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from pipekit.names import METHODS
from pipekit.profiling.layer_profile import INPUT_PART
from pipekit.schedules import Op, Schedule
from pipekit.schedules.clock import Walk, graph_needs
from pipekit.schedules.dependencies import NOTHING
from pipekit.schedules.ops import PASSES

_ROUNDS = 8  # microbatches a worker up to which a table is replayed whole; beyond, rounds repeat


@dataclass(frozen=True)
class TrainingStep:
    """What one training step of a pipeline consists of; ValueError if entries are missing."""

    forward_s: tuple[float, ...]  # of a microbatch's pass, by (virtual) stage
    backward_s: tuple[float, ...]
    microbatches: int  # of each replica and step
    transfer_s: tuple[float, ...] = ()  # of an activation, and of a gradient, between stages
    blocking: bool = False  # whether a transfer holds both workers, or delays the pass behind it
    method: str = "flush"  # a name of pipekit.names.METHODS
    workers: int | None = None  # how many share the stages; None: one a stage
    after_s: float = 0.0  # after the last pass: gradients between replicas, the optimizer

    def __post_init__(self) -> None:
        stages = len(self.forward_s)
        if len(self.backward_s) != stages or len(self.transfer_s) not in (0, stages - 1):
            raise ValueError(
                f"a step of {stages} stages needs {stages} backwards and {stages - 1} transfers, "
                f"not {len(self.backward_s)} and {len(self.transfer_s)}"
            )

    @property
    def seconds(self) -> float:
        """Seconds from the first forward to the end of the step."""
        workers = self.workers or len(self.forward_s)
        counts = self.method, len(self.forward_s), workers
        whole = self.microbatches
        if whole <= _ROUNDS * workers:
            return self._replayed(_table(*counts, whole)) + self.after_s
        rounds = whole // workers - _ROUNDS + 1
        fewer = whole - rounds * workers
        short, longer = (self._replayed(_table(*counts, each)) for each in (fewer, fewer + workers))
        return short + rounds * (longer - short) + self.after_s

    @property
    def least_s(self) -> float:
        """Seconds that a step takes at least: the passes of the busiest worker."""
        return self.microbatches * max(self.busy_s) + self.after_s

    @property
    def busy_s(self) -> list[float]:
        """Seconds of a microbatch's passes on each worker, to which stages are dealt in turn."""
        workers = self.workers or len(self.forward_s)
        return [
            sum(self.forward_s[worker::workers]) + sum(self.backward_s[worker::workers])
            for worker in range(workers)
        ]

    def _replayed(self, table: "_Table") -> float:
        """Return when the last task is over: each runs as soon as the table lets it."""
        links = np.array(self.transfer_s or (0.0,) * (len(self.forward_s) - 1))
        waits = np.zeros(len(self.forward_s))
        if self.blocking:
            waits[:-1] += links
            waits[1:] += links
            links = 0 * links
        forward, backward = np.array(self.forward_s), np.array(self.backward_s)
        passes = (forward + waits, backward + waits, INPUT_PART * backward + waits)
        seconds = np.concatenate([*passes, (1 - INPUT_PART) * backward, [0.0]])[table.kinds]
        delays = np.append(links, 0.0)[table.boundaries]
        needs = [*zip(zip(table.needed, delays.tolist(), strict=True), strict=True)]
        return max(Walk(table.lists, seconds.tolist(), needs).run().free)


@lru_cache(maxsize=4096)
def in_flight(
    method: str, stages: int, microbatches: int, workers: int | None = None
) -> Sequence[int]:
    """Return the most microbatches in flight of each worker's stages together, from the table."""
    workers = workers or stages
    few = min(microbatches, (_ROUNDS - 1) * workers + microbatches % workers)
    table = one_batch(method, stages, workers, few).workers
    return [max(accumulate(task.op.in_flight for task in own)) for own in table]


class _Table(NamedTuple):
    """Each worker's tasks by number, and by number what they take and need."""

    lists: list[list[int]]
    kinds: list[int]  # of the passes that take equally long; the last one's take nothing
    needed: list[int]  # the task of another worker
    boundaries: list[int]  # that lies between; the last one is no boundary


@lru_cache(maxsize=512)
def _table(method: str, stages: int, workers: int, microbatches: int) -> _Table:
    graph = one_batch(method, stages, workers, microbatches).dependencies
    table = _Table([[*range(*each)] for each in pairwise(graph.first)], [], [], [])
    for task, needs in zip(graph.tasks, graph_needs(graph), strict=True):
        needed = max((need for need, _ in needs), default=NOTHING)
        crosses = task.op in PASSES and needed != NOTHING
        kind = PASSES.index(task.op) * stages + task.stage if task.op in PASSES else -1
        table.kinds.append(kind)
        table.needed.append(needed)
        table.boundaries.append(min(task.stage, graph.tasks[needed].stage) if crosses else -1)
    return table


@lru_cache(maxsize=512)
def one_batch(method: str, stages: int, workers: int, microbatches: int) -> Schedule:
    """Return the table of one batch; ValueError if it has none of passes and updates alone."""
    METHODS.require(method)
    if not METHODS[method].microbatches:
        raise ValueError(f"{method} updates after each microbatch: choose a method that flushes")
    options = {"workers": workers} if METHODS[method].takes_workers else {}
    schedule: Schedule = METHODS.load(method)(stages, microbatches, **options)
    if schedule.worker_count != workers:
        raise ValueError(
            f"{method} puts {stages} stages on {schedule.worker_count} workers, not {workers}"
        )
    one = schedule.take(1)
    if one.chunks > 1 or not one.ops.issubset((*PASSES, Op.UPDATE)):
        raise ValueError(
            f"{method} has more than passes of whole microbatches, which have no seconds here: "
            f"simulate it, with Costs of what else it does"
        )
    return one
