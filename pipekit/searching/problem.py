"""What is searched for: an order of every worker's passes in a batch, and what it costs."""

import math
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import pairwise

from pipekit.clusters import Cluster
from pipekit.schedules import Op, Schedule
from pipekit.schedules.clock import Need, Walk
from pipekit.schedules.list_scheduler import SPLIT, BatchPasses
from pipekit.schedules.schedule import Pass
from pipekit.simulation.costs import StageCosts

KINDS = (*SPLIT, Op.BACKWARD)
"""The passes of a search: a backward is in its two parts, or whole."""

Placement = tuple[int, ...]
"""The worker of each stage."""

Orders = list[list[int]]
"""Every worker's passes of a batch, by their numbers, in order."""


class Timing(Walk):
    """When orders have their passes, by the passes' numbers; parts of a whole backward end with it.

    ``makespan`` is when the last update behind them ends; infinite if a pass never runs.
    """

    makespan = math.inf


class Problem(BatchPasses):
    """Passes of a batch in order to be searched for, of which a backward may be whole, too.

    A pass has the number ``(place of the op in KINDS * stages + stage) * microbatches + its own``.
    There are ``size`` passes of each of KINDS; ``whole`` is the number of the first whole backward,
    before which the numbers of all parts come.
    """

    def __init__(
        self,
        placement: Sequence[int],
        microbatches: int,
        costs: Sequence[StageCosts],
        cluster: Cluster | None,
        room: Sequence[float],
    ) -> None:
        def takes(source: int, destination: int, size: float) -> float:
            if cluster is None or source == destination:
                return 0.0
            level = cluster.level_between(source, destination)
            return level.latency_s + size / level.used_bandwidth

        def more(op: Op, cost: StageCosts) -> float:
            whole, part = cost.received_bytes + cost.kept_bytes, cost.whole.input_only_bytes
            return op.activation_bytes(whole, part)

        def height(op: Op, cost: StageCosts) -> float:
            return cost.gradients_at_height(op) if op.adds_gradient else 0.0

        self.stages, self.workers = len(placement), len(room)
        self.size = self.stages * microbatches
        self.whole = 3 * self.size
        # Bytes by which a stage's first pass of each op of KINDS that adds to its gradients rises
        # above what was there before it, at most: ``heights[place][stage]``.
        kept, self.heights = (
            [[size(op, cost) for cost in costs] for op in KINDS] for size in (more, height)
        )
        self.after = [0.0] * len(room)  # seconds of the updates behind each worker's passes
        for cost, worker in zip(costs, placement, strict=True):
            self.after[worker] += cost.whole.seconds(Op.UPDATE)
        gradients = [cost.whole.parameter_bytes for cost in costs]
        weights = KINDS.index(Op.BACKWARD_WEIGHT)
        begun = zip(self.heights[weights], gradients, kept[weights], strict=True)
        super().__init__(
            homes=tuple(placement),
            microbatches=microbatches,
            seconds=[[cost.whole.seconds(op) for cost in costs] for op in KINDS],
            delays=[
                takes(*pair, cost.whole.output_bytes)
                for pair, cost in zip(pairwise(placement), costs, strict=False)
            ],
            kept=kept,
            gradients=gradients,
            reserve=[max(height, gradient + kept) for height, gradient, kept in begun],
            room=room,
        )

    @cached_property
    def numbered(self) -> list[Pass]:
        """Every pass, in the order of the numbers."""
        each = range(self.microbatches)
        return [(op, stage, k) for op in KINDS for stage in range(self.stages) for k in each]

    @cached_property
    def takes(self) -> list[float]:
        """Seconds of each pass."""
        return [seconds for op in self.seconds for seconds in op for _ in range(self.microbatches)]

    @cached_property
    def keeps(self) -> list[float]:
        """Bytes of activations that a worker keeps more after each pass, or less."""
        return [more for op in self.kept for more in op for _ in range(self.microbatches)]

    @cached_property
    def adds_to(self) -> list[int]:
        """The stage to whose gradients each pass adds, or -1."""
        return [stage if op.adds_gradient else -1 for op, stage, _ in self.numbered]

    @cached_property
    def needs(self) -> list[Need]:
        """For each pass those that it needs, each with the seconds until its data is there.

        A gradient is that of a part for the input, whether that runs by itself or not.
        """
        found: list[Need] = []
        for op, stage, k in self.numbered:
            needs: Need = ((self.number(op.own, stage, k), 0.0),) if op.own else ()
            beside = stage - op.receives.step if op.receives else -1
            if 0 <= beside < self.stages:
                sent = Op.FORWARD if beside < stage else Op.BACKWARD_INPUT
                needs += ((self.number(sent, beside, k), self.delays[min(beside, stage)]),)
            found.append(needs)
        return found

    def whole_of(self, part: int) -> int:
        """Return the number of the whole backward that a part belongs to."""
        return self.whole + part % self.size

    def number(self, op: Op, stage: int, microbatch: int) -> int:
        return (KINDS.index(op) * self.stages + stage) * self.microbatches + microbatch

    def timing(self, orders: Orders) -> Timing:
        """Return when every pass ends, each as soon as its worker is free and its data there."""
        timing = Timing(orders, self.takes, self.needs, with_them=self._parts_of).run()
        if timing.is_done:
            timing.makespan = max(map(sum, zip(timing.free, self.after, strict=True)))
        return timing

    @cached_property
    def _parts_of(self) -> dict[int, tuple[int, int]]:
        """For each whole backward its part for the weights and the one for the input."""
        size = self.size
        return {n: (n - size, n - 2 * size) for n in range(self.whole, self.whole + size)}

    def has(self, orders: Orders) -> bool:
        """Return whether orders have every pass once, on its worker."""
        parts = self._parts_of
        placed = [
            (part, worker)
            for worker, order in enumerate(orders)
            for number in order
            for part in parts.get(number, (number,))
        ]
        every = [(n, self.homes[stage]) for n, (_, stage, _) in enumerate(self.numbered)]
        return len(orders) == self.workers and sorted(placed) == every[: self.whole]

    def fits(self, worker: int, order: Sequence[int]) -> bool:
        """Return whether a worker has room for what it keeps, in this order."""
        return self.most_held(order) <= self.room[worker] * (1 + 1e-12)

    def most_held(
        self, order: Sequence[int], held: float = 0.0, complete: Collection[int] = ()
    ) -> float:
        """Return the most bytes of activations and gradients that a worker holds."""
        most, keeps, adds_to = held, self.keeps, self.adds_to
        begun = set(complete)
        for number in order:
            stage = adds_to[number]
            if stage >= 0 and stage not in begun:
                begun.add(stage)
                most = max(most, held + self.heights[number // self.size][stage])
                held += self.gradients[stage]
            held += keeps[number]
            most = max(most, held)
        return most

    def fit(self, orders: Orders) -> bool:
        """Return whether every worker has room."""
        return all(self.fits(worker, order) for worker, order in enumerate(orders))

    def merged(self, orders: Orders) -> Orders:
        """Return orders in which parts of a backward that are neighbours are one."""
        found: Orders = []
        for order in orders:
            row: list[int] = []
            found.append(row)
            for number in order:
                is_weights = 2 * self.size <= number < self.whole
                if is_weights and row and row[-1] == number - self.size:
                    row[-1] = number + self.size
                else:
                    row.append(number)
        return found

    def orders(self, schedule: Schedule) -> Orders:
        return [
            [self.number(op, stage, k) for op, stage, k, _ in tasks if op in KINDS]
            for tasks in schedule.workers
        ]
