"""The seconds of a training step: passes and transfers of our own table, replayed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import add

from pipekit.names import METHODS
from pipekit.profiling.layer_profile import INPUT_PART
from pipekit.schedules import Op, Schedule
from pipekit.schedules.clock import Walk, graph_needs
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
        """Seconds that a step of 1F1B takes at least: a worker's passes, and the way to and fro."""
        least = apart = 0.0
        links = (*(self.transfer_s or (0.0,) * (len(self.forward_s) - 1)), 0.0)
        passes = zip(self.forward_s, self.backward_s, links, strict=True)
        for own, (forward, backward, link) in zip(self.busy_s, passes, strict=False):
            least = max(least, apart + self.microbatches * own)
            apart += forward + backward + 2 * link
        return least + self.after_s

    @property
    def busy_s(self) -> list[float]:
        """Seconds of a microbatch's passes on each worker, to which stages are dealt in turn."""
        workers = self.workers or len(self.forward_s)
        return [
            sum(self.forward_s[worker::workers]) + sum(self.backward_s[worker::workers])
            for worker in range(workers)
        ]

    def _replayed(self, tasks: "list[Task]") -> float:
        """Return when the last task is over: each runs as soon as the table lets it."""
        links = self.transfer_s or (0.0,) * len(self.forward_s)
        waits = [0.0] * len(self.forward_s)
        if self.blocking:
            for boundary, link in enumerate(self.transfer_s):
                waits[boundary] += link
                waits[boundary + 1] += link
        passes = [
            *map(add, self.forward_s, waits),
            *map(add, self.backward_s, waits),
            *(INPUT_PART * own + wait for own, wait in zip(self.backward_s, waits, strict=True)),
            *((1 - INPUT_PART) * own for own in self.backward_s),
            0.0,
        ]
        delays = (*((0.0,) * len(links) if self.blocking else links), 0.0)
        ends = [0.0] * (len(tasks) + 1)
        for number, kind, before, needed, boundary in tasks:
            start, came = ends[before], ends[needed] + delays[boundary]
            ends[number] = (start if start > came else came) + passes[kind]
        return max(ends)


@lru_cache(maxsize=4096)
def in_flight(
    method: str, stages: int, microbatches: int, workers: int | None = None
) -> Sequence[int]:
    """Return the most microbatches in flight of each worker's stages together, from the table."""
    workers = workers or stages
    few = min(microbatches, (_ROUNDS - 1) * workers + microbatches % workers)
    table = one_batch(method, stages, workers, few).workers
    return [max(accumulate(task.op.in_flight for task in own)) for own in table]


Task = tuple[int, int, int, int, int]
"""Its number, its kind, the task before it on its worker, the one of another worker that it needs,
and the boundary between them; the last number and the last boundary mean none."""


@lru_cache(maxsize=512)
def _table(method: str, stages: int, workers: int, microbatches: int) -> list[Task]:
    """Return the tasks of one batch in an order in which they can run."""
    graph = one_batch(method, stages, workers, microbatches).dependencies
    size = len(graph.tasks)
    lists = [[*range(*each)] for each in pairwise(graph.first)]
    needs = graph_needs(graph)
    order = Walk(lists, [1.0] * size, needs).run().sequence
    first = set(graph.first)
    found = []
    for number in order:
        task = graph.tasks[number]
        needed, boundary, kind = max((need for need, _ in needs[number]), default=-1), -1, -1
        if task.op in PASSES:
            kind = PASSES.index(task.op) * stages + task.stage
            boundary = -1 if needed < 0 else min(task.stage, graph.tasks[needed].stage)
        before = size if number in first else number - 1
        found.append((number, kind, before, needed if needed >= 0 else size, boundary))
    return found


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
