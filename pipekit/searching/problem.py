"""What is searched for: an order of every worker's passes in a batch, and what it costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from pipekit.clusters import Cluster
from pipekit.schedules import OPS, Op, Schedule
from pipekit.schedules.flushed import Pass
from pipekit.simulation.costs import StageCosts

SPLIT = (Op.FORWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)
"""The passes of a search: every backward is in its two parts."""

Orders = list[list[int]]
"""Every worker's passes of a batch, by their numbers, in order."""


@dataclass(frozen=True)
class Timing:
    """When an order has its passes, by their numbers.

    Attributes:
        ends: of each pass; -1 if it never runs, since workers wait for one another.
        makespan: when the last one ends; infinite if one never runs.
    """

    ends: list[float]
    makespan: float


@dataclass(frozen=True)
class Problem:
    """Seconds and bytes of every pass, and where it runs.

    A pass has the number ``(place of the op in SPLIT * stages + stage) * microbatches + its own``.

    Attributes:
        homes: the worker of each stage and microbatch, ``homes[stage][microbatch]``.
        seconds: of each op of SPLIT and stage, ``seconds[place][stage]``.
        whole: likewise of a whole backward, by stage: what its parts take if they are neighbours;
            None: each takes its own time there, too.
        kept: bytes of activations that a worker keeps more after each op of SPLIT and stage.
        delays: seconds from a stage's forward's end until the next one has its activation, and from
            that one's gradient's until the stage has it: ``delays[stage][microbatch]``.
        room: bytes of activations that each worker has room for.
    """

    homes: tuple[tuple[int, ...], ...]
    seconds: tuple[tuple[float, ...], ...]
    whole: tuple[float, ...] | None
    kept: tuple[tuple[float, ...], ...]
    delays: tuple[tuple[float, ...], ...]
    room: tuple[float, ...]

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        costs: Sequence[StageCosts],
        cluster: Cluster | None,
        room: Sequence[float],
        whole: bool,
    ) -> "Problem":
        """Return the problem of a schedule's passes on its workers.

        Args:
            schedule: of one batch.
            costs: of its stages.
            cluster: the links, each taken to be free when a message comes; None: they cost nothing.
            room: see above.
            whole: whether parts of a backward that are neighbours are one.
        """
        graph = schedule.dependencies
        homes = [
            tuple(graph.worker_of[number] for number in graph.row(Op.FORWARD, stage))
            for stage in range(schedule.stages)
        ]

        def takes(source: int, destination: int, size: float) -> float:
            if cluster is None or source == destination:
                return 0.0
            level = cluster.level_between(source, destination)
            return level.latency_s + size / level.used_bandwidth

        def bytes_kept(op: Op, cost: StageCosts) -> float:
            whole, part = cost.received_bytes + cost.kept_bytes, cost.whole.input_only_bytes
            return OPS[op].activation_bytes(whole, part)

        return cls(
            tuple(homes),
            tuple(tuple(cost.seconds(op) for cost in costs) for op in SPLIT),
            tuple(cost.seconds(Op.BACKWARD) for cost in costs) if whole else None,
            tuple(tuple(bytes_kept(op, cost) for cost in costs) for op in SPLIT),
            tuple(
                tuple(takes(a, b, cost.whole.output_bytes) for a, b in zip(*pair, strict=True))
                for pair, cost in zip(pairwise(homes), costs, strict=False)
            ),
            tuple(room),
        )

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.homes)

    @property
    def microbatches(self) -> int:
        """How many microbatches there are."""
        return len(self.homes[0])

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return len(self.room)

    @cached_property
    def takes(self) -> list[float]:
        """Seconds of each pass."""
        return [seconds for op in self.seconds for seconds in op for _ in range(self.microbatches)]

    @cached_property
    def keeps(self) -> list[float]:
        """Bytes of activations that a worker keeps more after each pass, or less."""
        return [more for op in self.kept for more in op for _ in range(self.microbatches)]

    @cached_property
    def needs(self) -> list[tuple[tuple[int, float], ...]]:
        """For each pass those that it needs, each with the seconds until its data is there."""
        return [self._needs(number) for number in range(len(self.takes))]

    @cached_property
    def bound(self) -> float:
        """A time that no order is shorter than.

        Every worker has all its passes to do, none before a microbatch can have come to it; and one
        microbatch has to go all the way there and back.
        """
        forward, inputs, weights = self.seconds
        least = [min(self.whole[s], i) if self.whole else i for s, i in enumerate(inputs)]
        both = [i + w for i, w in zip(inputs, weights, strict=True)]
        backward = [min(pair) for pair in zip(both, self.whole or both, strict=True)]
        work, there = [0.0] * self.workers, [math.inf] * self.workers
        for k in range(self.microbatches):
            arrival = 0.0
            for stage, home in enumerate(row[k] for row in self.homes):
                work[home] += forward[stage] + backward[stage]
                there[home] = min(there[home], arrival)
                arrival += forward[stage]
                arrival += self.delays[stage][k] if stage < self.stages - 1 else 0.0
        alone = sum(forward) + sum(least) + 2 * sum(min(row) for row in self.delays)
        return max(alone, *(a + b for a, b in zip(work, there, strict=True) if a))

    def parts(self, number: int) -> tuple[int, int, int]:
        """Return a pass's place in SPLIT, its stage and its microbatch."""
        rest, microbatch = divmod(number, self.microbatches)
        place, stage = divmod(rest, self.stages)
        return place, stage, microbatch

    def number(self, op: Op, stage: int, microbatch: int) -> int:
        """Return the number of a pass."""
        return (SPLIT.index(op) * self.stages + stage) * self.microbatches + microbatch

    def timing(self, orders: Orders) -> Timing:
        """Return when every pass ends, each as soon as its worker is free and its data there."""
        takes, needs, whole = self.takes, self.needs, self.whole
        count, inputs = self.microbatches, self.stages * self.microbatches
        ends = [-1.0] * len(takes)
        free, following = [0.0] * len(orders), [0] * len(orders)
        moved = True
        while moved:
            moved = False
            for worker, order in enumerate(orders):
                position, now = following[worker], free[worker]
                for number in order[position:]:
                    start = now
                    for need, delay in needs[number]:
                        end = ends[need]
                        if end < 0:
                            start = -1.0
                            break
                        if end + delay > start:
                            start = end + delay
                    if start < 0:
                        break
                    position += 1
                    if (
                        number >= 2 * inputs
                        and whole
                        and position > 1
                        and (order[position - 2] == number - inputs)
                    ):
                        now = ends[number] = ends[number - inputs]  # as one: it has run already
                        continue
                    now = ends[number] = start + takes[number]
                    if (
                        whole
                        and inputs <= number < 2 * inputs
                        and position < len(order)
                        and (order[position] == number + inputs)
                    ):
                        now = ends[number] = start + whole[(number - inputs) // count]
                if position > following[worker]:
                    moved = True
                    following[worker], free[worker] = position, now
        done = all(at == len(order) for at, order in zip(following, orders, strict=True))
        return Timing(ends, max(free) if done else math.inf)

    def has(self, orders: Orders) -> bool:
        """Return whether orders have every pass, on its worker."""
        complete = len(orders) == self.workers and sum(map(len, orders)) == len(self.takes)
        return complete and all(
            self.homes[stage][microbatch] == worker
            for worker, order in enumerate(orders)
            for _, stage, microbatch in map(self.parts, order)
        )

    def fits(self, worker: int, order: Sequence[int]) -> bool:
        """Return whether a worker has room for what it keeps, in this order."""
        keeps = self.keeps
        held = accumulate(keeps[number] for number in order)
        return max(held, default=0.0) <= self.room[worker] * (1 + 1e-12)

    def orders(self, schedule: Schedule) -> Orders:
        """Return a schedule's orders, whole backwards in their two parts."""
        found: Orders = []
        for tasks in schedule.workers:
            order: list[int] = []
            for op, stage, microbatch, _ in tasks:
                if op is Op.BACKWARD:
                    ops: tuple[Op, ...] = SPLIT[1:]
                else:
                    ops = (op,) if OPS[op].is_pass else ()
                order += [self.number(each, stage, microbatch) for each in ops]
            found.append(order)
        return found

    def passes(self, orders: Orders) -> list[list[Pass]]:
        """Return orders as passes; parts of a backward that are one are whole."""
        found: list[list[Pass]] = []
        for order in orders:
            row: list[Pass] = []
            for number in order:
                place, stage, microbatch = self.parts(number)
                inputs = (Op.BACKWARD_INPUT, stage, microbatch)
                if self.whole and SPLIT[place] is Op.BACKWARD_WEIGHT and row and row[-1] == inputs:
                    row[-1] = (Op.BACKWARD, stage, microbatch)
                else:
                    row.append((SPLIT[place], stage, microbatch))
            found.append(row)
        return found

    def _needs(self, number: int) -> tuple[tuple[int, float], ...]:
        place, stage, k = self.parts(number)
        op = SPLIT[place]
        if op is Op.FORWARD:
            if not stage:
                return ()
            return ((self.number(op, stage - 1, k), self.delays[stage - 1][k]),)
        own = (self.number(SPLIT[place - 1], stage, k), 0.0)
        if op is Op.BACKWARD_INPUT and stage + 1 < self.stages:
            return (own, (self.number(op, stage + 1, k), self.delays[stage][k]))
        return (own,)
