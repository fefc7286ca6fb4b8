"""PipeDream's dynamic program: which layers on how many workers, over levels of links."""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from math import ceil, prod
from typing import NamedTuple, Protocol

import numpy as np

from pipekit.planning.layer_ranges import Floats
from pipekit.planning.progress import planning_bar

TIE = 1e-9
"""Values that differ by less than this part are equal: sums of floats round."""


class Objective(Protocol):
    """What the slowest (or fullest) stage is to have least of.

    Matrices hold, at ``[i, j]``, the value for layers i to j - 1, infinite where j <= i or where
    a worker's memory does not hold them.
    """

    in_flight_matters: bool

    def worker(self, in_flight: int) -> Floats:
        """Return the matrix of one worker, for the microbatches that it has in flight."""

    def replicated(self, inner: Floats, level: int, members: int) -> Floats:
        """Return the matrix of so many members of a level that share the minibatches."""

    def transfer(self, level: int) -> Floats:
        """Return, for each layer, the value of what enters it over a link of the level."""


class Node(NamedTuple):
    """Layers ``first`` to ``stop - 1`` on so many members of a level, each split as ``inside``.

    At the innermost level a member is a worker, and ``inside`` is empty.
    """

    first: int
    stop: int
    members: int
    inside: tuple["Node", ...] = ()


class BottleneckProgram:
    """The dynamic program of PipeDream, section 3.2, with levels.

    At each level, the layers i to j - 1 on exactly m members are either one stage on all of them,
    or a first stage on r of them and the best of the rest on m - r.  What one member needs for a
    stage is the best of the level below on that whole member (a server, with all of its workers).

    The paper builds up from the first layer.  This goes from the last: a stage has
    ceil(workers from it to the end / its replicas) minibatches in flight, and so the workers behind
    it must be known before one can say whether its memory suffices.

    Args:
        objective: what to minimise.
        layers: how many.
        widths: members that each level joins, innermost first.
        replicate: whether stages may be replicated.
    """

    def __init__(
        self, objective: Objective, layers: int, widths: Sequence[int], replicate: bool = True
    ) -> None:
        self._objective = objective
        self._layers = layers
        self._widths = widths
        self._top = len(widths) - 1
        self._replicate = replicate
        self._best = cache(self._solve)

    def optimum(self, progress: bool = False) -> tuple[float, tuple[Node, ...]]:
        """Return the least value for all layers, and the plan that has it; infinite if none fits.

        It may leave members of the outermost level idle.  Of equal plans it takes one on the
        fewest members; of these, one whose first stage has the most layers, then the fewest
        replicas, then likewise for its second stage, and so on.

        Args:
            progress: whether to show a bar, if it takes more than a second.
        """
        sizes = planning_bar(range(1, self._widths[-1] + 1), progress)
        tables = [self._best(self._top, members, Fraction(0)) for members in sizes]
        values = [float(table[0, self._layers]) for table in tables]
        limit = min(values) * (1 + TIE)
        if limit == np.inf:
            return limit, ()
        members = next(m for m, value in enumerate(values, start=1) if value <= limit)
        nodes = self._choose(self._top, members, Fraction(0), 0, self._layers, limit)
        return values[members - 1], nodes

    def _solve(self, level: int, members: int, behind: Fraction) -> Floats:
        """Return the matrix of the best on exactly so many members.

        ``behind``: workers that run later layers, for each of these groups of members.
        """
        if level < 0:
            return self._objective.worker(ceil(1 + behind))
        # Of all layers together, only those runs matter that end with the last layer.
        stops = range(self._layers if level == self._top else 1, self._layers + 1)
        transfer = self._objective.transfer(level)
        best = np.full((self._layers + 1, self._layers + 1), np.inf)
        for replicas in self._replicas(members):
            stage = self._stage(level, members, replicas, behind)
            if replicas == members:
                np.minimum(best, stage, out=best)
                continue
            rest = self._best(level, members - replicas, behind)
            stage = np.maximum(stage, transfer)
            for stop in stops:
                joined = np.maximum(stage[:stop, :stop], rest[:stop, stop]).min(axis=1)
                np.minimum(best[:stop, stop], joined, out=best[:stop, stop])
        return best

    def _choose(
        self, level: int, members: int, behind: Fraction, first: int, stop: int, limit: float
    ) -> tuple[Node, ...]:
        """Return a plan for layers first to stop - 1 of which nothing exceeds the limit."""
        if level < 0:
            return ()
        candidates = []
        transfer = self._objective.transfer(level)
        for replicas in self._replicas(members):
            value = self._stage(level, members, replicas, behind)[first, : stop + 1]
            if replicas == members:
                possible = [stop] if value[stop] <= limit else []
            else:
                rest = self._best(level, members - replicas, behind)[: stop + 1, stop]
                worst = np.maximum(np.maximum(value, transfer[: stop + 1]), rest)
                possible = np.flatnonzero(worst[:stop] <= limit).tolist()
            candidates += [(-end, replicas) for end in possible[-1:]]
        longest, replicas = min(candidates)
        inner_level, inner_members, inner_behind = self._inner(level, members, replicas, behind)
        inner_limit = self._best(inner_level, inner_members, inner_behind)[first, -longest]
        inside = self._choose(
            inner_level, inner_members, inner_behind, first, -longest, inner_limit * (1 + TIE)
        )
        node = Node(first, -longest, replicas, inside)
        if replicas == members:
            return (node,)
        return node, *self._choose(level, members - replicas, behind, -longest, stop, limit)

    def _stage(self, level: int, members: int, replicas: int, behind: Fraction) -> Floats:
        """Return the matrix of a stage on the first ``replicas`` of so many members."""
        inner = self._best(*self._inner(level, members, replicas, behind))
        return self._objective.replicated(inner, level, replicas)

    def _inner(
        self, level: int, members: int, replicas: int, behind: Fraction
    ) -> tuple[int, int, Fraction]:
        """Return level, members and workers behind of what each of the replicas runs."""
        size = prod(self._widths[:level])
        behind = ((members - replicas) * size + behind) / replicas
        if not self._objective.in_flight_matters:
            behind = Fraction(0)
        return level - 1, self._widths[level - 1] if level else 1, behind

    def _replicas(self, members: int) -> range:
        return range(1, members + 1 if self._replicate else 2)
