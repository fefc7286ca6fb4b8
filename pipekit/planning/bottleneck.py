"""PipeDream's dynamic program: which layers on how many workers, over levels of links."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from math import ceil, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipekit.planning.layer_ranges import Floats
from pipekit.planning.objectives import Bytes, Seconds
from pipekit.planning.progress import planning_bar

TIE = 1e-9
"""Values that differ by less than this part are equal: sums of floats round."""
_MOST_KEPT = 16
"""Matrices of replicated stages that are kept for use again; a large graph's takes 32 MB."""
_ROWS = 128
"""Rows of a matrix that are looked at together."""
_FEW_CUTS = 64
"""Fewer cuts are looked at together."""

Workers = Fraction | int
"""A number of them, for each of a group of members."""


class _Stages:
    """Stages of so many members.

    Attributes:
        values: ``[i, j]``, of the layers between two cuts.
    """

    def __init__(self, values: Floats) -> None:
        self.values = values

    @cached_property
    def reach(self) -> NDArray[np.int64]:
        """For each i, the number after the last j to which there can be a stage, or 0."""
        possible = self.values[:, ::-1] < np.inf
        return np.where(possible.any(axis=1), len(possible) - possible.argmax(axis=1), 0)


Objective = Seconds | Bytes
"""What the slowest (or fullest) stage is to have least of."""


class NestedStage(NamedTuple):
    """The layers between two cuts on so many members of a level, each split as ``inside``.

    In a chain they are the layers ``first`` to ``stop - 1``.  At the innermost level a member is
    a worker, and ``inside`` is empty.
    """

    first: int
    stop: int
    members: int
    inside: tuple["NestedStage", ...] = ()


class BottleneckProgram:
    """The dynamic program of PipeDream, section 3.2, with levels.

    At each level, the layers between two cuts on exactly m members are either one stage on all of
    them, or a first stage on r of them and the best of the rest on m - r.  What one member needs
    for a stage is the best of the level below on that whole member (a server, with all of its
    workers).

    In a chain the cuts are before layer 0, 1, ... and behind the last.  In a graph they are its
    states, numbered so that each comes after those that it contains; all that the program knows of
    the graph is that the objective is infinite where a cut does not contain the other.

    The paper builds up from the first layer.  This goes from the last: a stage has
    ceil(workers from it to the end / its replicas) minibatches in flight, and so the workers behind
    it must be known before one can say whether its memory suffices.

    Args:
        objective: what to minimise.
        layers: the number of the last cut.
        widths: members that each level joins, innermost first.
        replicate: whether stages may be replicated.

    Attributes:
        candidates: how many were compared: a first stage, its members, and what is behind it.
    """

    def __init__(
        self,
        objective: Objective,
        layers: int,
        widths: Sequence[int],
        replicate: bool = True,
    ) -> None:
        self._objective = objective
        self._layers = layers
        self._widths = widths
        self._top = len(widths) - 1
        self._replicate = replicate
        self._known: dict[tuple[int, int, Workers, bool], Floats] = {}
        self._values: list[float] = []
        self.candidates = 0

    def least(self, progress: bool = False) -> float:
        """Return the least value for all layers; infinite if none fits.

        Args:
            progress: whether to show a bar, if it takes more than a second.
        """
        if not self._values:
            sizes = planning_bar(range(1, self._widths[-1] + 1), progress)
            self._values = [float(self._best(self._top, m, 0, False)[0, -1]) for m in sizes]
        return min(self._values)

    def plan(self) -> tuple[NestedStage, ...]:
        """Return the plan that has the least value; nothing if none fits.

        It may leave members of the outermost level idle.  Of equal plans it takes one on the
        fewest members; of these, one whose first stage has the most layers, then the fewest
        replicas, then likewise for its second stage, and so on.
        """
        limit = self.least() * (1 + TIE)
        if limit == np.inf:
            return ()
        members = next(m for m, value in enumerate(self._values, start=1) if value <= limit)
        return self._choose(self._top, members, 0, 0, self._layers, limit, after=False)

    def _best(self, level: int, members: int, behind: Workers, after: bool) -> Floats:
        """Return what :meth:`_solve` returns, which is done once."""
        key = (level, members, behind, after)
        if key not in self._known:
            self._known[key] = self._solve(*key)
        return self._known[key]

    def _solve(self, level: int, members: int, behind: Workers, after: bool) -> Floats:
        """Return the matrix of the best on exactly so many members.

        At the outermost level it has its last column only: of all layers together, only those runs
        matter that end with the last layer.

        ``behind``: workers that run later layers, for each of these groups of members.
        ``after``: whether they receive from other members of the level, and that counts.
        """
        if level < 0:
            return self._objective.worker(1 + ceil(behind))
        stops = self._stops(level)
        best = np.full((self._layers + 1, len(stops)), np.inf)
        for replicas in self._replicas(members):
            stages = self._stage(level, members, replicas, behind)
            transfer = self._objective.transfer(level, replicas)
            received = transfer if after else np.zeros(self._layers + 1)
            if replicas == members:
                values = stages.values[:, stops[0] :]
                np.minimum(best, np.maximum(values, received[:, None]), out=best)
                continue
            rest = self._best(level, members - replicas, behind, self._objective.receivers_count)
            sent = transfer if after or not self._objective.receivers_count else received
            if self._layers < _FEW_CUTS:  # [first, middle, stop]
                joined = np.maximum(stages.values[:, :, None], np.maximum(sent[:, None], rest))
                self.candidates += (
                    (self._layers - 1) ** 2
                    if level == self._top
                    else sum(middle**2 for middle in range(self._layers))
                )
                np.minimum(best, np.maximum(joined.min(axis=1), received[:, None]), out=best)
                continue
            for column, stop in enumerate(stops):
                behind_it = np.maximum(sent[:stop], rest[:stop, column])
                joined = self._joined(stages, behind_it)
                joined = np.maximum(joined, received[:stop])
                np.minimum(best[:stop, column], joined, out=best[:stop, column])
        return best

    def _stops(self, level: int) -> range:
        """Return the cuts at which runs of layers end that matter at a level."""
        return range(self._layers if level == self._top else 0, self._layers + 1)

    def _choose(
        self,
        level: int,
        members: int,
        behind: Workers,
        first: int,
        stop: int,
        limit: float,
        *,
        after: bool,
    ) -> tuple[NestedStage, ...]:
        """Return a plan for the layers between two cuts of which nothing exceeds the limit."""
        if level < 0:
            return ()
        end, replicas = self._first_stage(level, members, behind, first, stop, limit, after)
        inner_level, inner_members, inner_behind = self._inner(level, members, replicas, behind)
        inner_limit = self._best(inner_level, inner_members, inner_behind, False)[first, end]
        inside = self._choose(
            inner_level,
            inner_members,
            inner_behind,
            first,
            end,
            inner_limit * (1 + TIE),
            after=False,
        )
        node = NestedStage(first, end, replicas, inside)
        if replicas == members:
            return (node,)
        after = self._objective.receivers_count
        rest = self._choose(level, members - replicas, behind, end, stop, limit, after=after)
        return node, *rest

    def _first_stage(
        self,
        level: int,
        members: int,
        behind: Workers,
        first: int,
        stop: int,
        limit: float,
        after: bool,
    ) -> tuple[int, int]:
        """Return where the first stage of such a plan ends, and its replicas."""
        candidates = []
        receivers_count = self._objective.receivers_count
        for replicas in self._replicas(members):
            value = self._stage(level, members, replicas, behind).values[first, : stop + 1]
            transfer = self._objective.transfer(level, replicas)[: stop + 1]
            if after:
                value = np.maximum(value, transfer[first])
            if replicas == members:
                possible = [stop] if value[stop] <= limit else []
            else:
                rest = self._best(level, members - replicas, behind, receivers_count)
                worst = np.maximum(value, rest[: stop + 1, stop - self._stops(level)[0]])
                if after or not receivers_count:
                    worst = np.maximum(worst, transfer)
                possible = np.flatnonzero(worst[:stop] <= limit).tolist()
            candidates += [(-end, replicas) for end in possible[-1:]]
        longest, replicas = min(candidates)
        return -longest, replicas

    def _stage(self, level: int, members: int, replicas: int, behind: Workers) -> _Stages:
        """Return a stage, whatever its layers, on the first ``replicas`` of so many members."""
        return self._replicated(level, replicas, *self._inner(level, members, replicas, behind))

    @cached_property
    def _replicated(self) -> Callable[..., _Stages]:
        """:meth:`_solve_replicated`, of which a few results are kept."""
        return lru_cache(_MOST_KEPT)(self._solve_replicated)

    def _solve_replicated(
        self, level: int, replicas: int, inner_level: int, inner_members: int, behind: Workers
    ) -> _Stages:
        inner = self._best(inner_level, inner_members, behind, False)
        values = self._objective.replicated(inner, level, replicas)
        return _Stages(values)

    def _inner(
        self, level: int, members: int, replicas: int, behind: Workers
    ) -> tuple[int, int, Workers]:
        """Return level, members and workers behind of what each of the replicas runs."""
        if self._objective.in_flight_matters:
            size = prod(self._widths[:level])
            behind = Fraction((members - replicas) * size + behind) / replicas
            if level == 0:
                behind = ceil(behind)  # a worker's minibatches in flight are whole
        else:
            behind = 0
        return level - 1, self._widths[level - 1] if level else 1, behind

    def _replicas(self, members: int) -> range:
        return range(1, members + 1 if self._replicate else 2)

    def _joined(self, stages: _Stages, behind: Floats) -> Floats:
        """Return, for each first cut, the best of a stage up to a cut and what is behind that."""
        best = np.full(len(behind), np.inf)
        useful = np.flatnonzero(behind < np.inf)
        if not len(useful):
            return best
        low, high = useful[0], useful[-1] + 1
        rows = np.flatnonzero(stages.reach[: high - 1] > low)
        if not len(rows):
            return best
        for first in range(rows[0], rows[-1] + 1, _ROWS):
            block = slice(first, min(first + _ROWS, rows[-1] + 1))
            columns = slice(max(low, first + 1), min(high, stages.reach[block].max()))
            if columns.start < columns.stop:
                joined = np.maximum(stages.values[block, columns], behind[columns])
                self.candidates += joined.size
                joined.min(axis=1, out=best[block])
        return best
