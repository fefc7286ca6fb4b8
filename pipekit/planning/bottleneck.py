"""PipeDream's dynamic program: which layers on how many workers, over levels of links."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache, cached_property
from math import ceil, prod
from typing import NamedTuple

import numpy as np

from pipekit.planning.layer_ranges import Floats
from pipekit.planning.objectives import Bytes, Seconds

TIE = 1e-9  # values that differ by less than this part are equal: sums of floats round

Workers = Fraction | int  # a number of them, for each of a group of members


class NestedStage(NamedTuple):
    """The layers between two cuts on so many members of a level, each split as ``inside``.

    At the innermost level a member is a worker, and ``inside`` is empty.
    """

    first: int
    stop: int
    members: int
    inside: tuple["NestedStage", ...] = ()


class _Option(NamedTuple):
    """A first stage on so many members, and what is behind it."""

    replicas: int
    inner: tuple[int, int, Workers]  # level, members and workers behind of what each of them runs
    stages: Floats  # the value of the stage, by ``[first, stop]``
    behind: Floats | None  # of sending past each cut and what follows; None: there is no other


class BottleneckProgram:
    """The dynamic program of PipeDream, section 3.2, with levels.

    At each level, the layers between two cuts on exactly m members are either one stage on all of
    them, or a first stage on r of them and the best of the rest on m - r.  What one member needs
    for a stage is the best of the level below on that whole member (a server).

    The paper builds up from the first layer, this from the last: how many minibatches a stage has
    in flight, and so its memory, depends on the workers behind it.

    ``layers`` is the number of the last cut, ``widths`` are the members that each level joins,
    innermost first.  ``candidates`` counts what was compared: a first stage, its members, and what
    is behind it.
    """

    def __init__(
        self, objective: Seconds | Bytes, layers: int, widths: Sequence[int], replicate: bool = True
    ) -> None:
        self._objective = objective
        self._layers = layers
        self._widths = widths
        self._top = len(widths) - 1
        self._replicate = replicate
        self._best = cache(self._solve)
        self.candidates = 0

    def least(self) -> float:
        """Return the least value for all layers; infinite if none fits."""
        return min(self._values)

    @cached_property
    def _values(self) -> list[float]:
        sizes = range(1, self._widths[-1] + 1)
        return [float(self._best(self._top, members, 0)[0, -1]) for members in sizes]

    def plan(self) -> tuple[NestedStage, ...]:
        """Return the plan of the least value, if one fits.

        Of equal ones it is one on the fewest members, then with the most layers and the fewest
        replicas on the first stage, and so on.
        """
        limit = self.least() * (1 + TIE)
        if limit == np.inf:
            return ()
        members = next(m for m, value in enumerate(self._values, start=1) if value <= limit)
        return self._choose(self._top, members, 0, 0, self._layers, limit)

    def _solve(self, level: int, members: int, behind: Workers) -> Floats:
        """Return the matrix of the best on exactly so many members, or its last column at the top.

        ``behind`` are the workers that run later layers, for each of these groups of members.
        """
        if level < 0:
            return self._objective.worker(1 + ceil(behind))
        stops = self._stops(level)
        best = np.full((self._layers + 1, len(stops)), np.inf)
        for option in self._options(level, members, behind):
            if option.behind is None:
                np.minimum(best, option.stages[:, stops[0] :], out=best)
                continue
            for column, stop in enumerate(stops):
                rest = option.behind[:stop, column]
                self.candidates += (stop - 1) * int(np.isfinite(rest[1:]).sum())
                joined = np.maximum(option.stages[:stop, :stop], rest)
                least = joined.min(axis=1, initial=np.inf)
                np.minimum(best[:stop, column], least, out=best[:stop, column])
        return best

    def _choose(
        self, level: int, members: int, behind: Workers, first: int, stop: int, limit: float
    ) -> tuple[NestedStage, ...]:
        """Return a plan for the layers between two cuts of which nothing exceeds the limit."""
        if level < 0:
            return ()
        candidates = []
        for option in self._options(level, members, behind):
            worst, cuts = option.stages[first, : stop + 1], [stop]
            if option.behind is not None:
                column = stop - self._stops(level)[0]
                worst, cuts = np.maximum(worst, option.behind[: stop + 1, column]), [*range(stop)]
            possible = [cut for cut in cuts if worst[cut] <= limit]
            candidates += [(-cut, option.replicas, option.inner) for cut in possible[-1:]]
        furthest, replicas, inner = min(candidates)
        cut = -furthest
        inner_limit = self._best(*inner)[first, cut] * (1 + TIE)
        inside = self._choose(*inner, first, cut, inner_limit)
        node = NestedStage(first, cut, replicas, inside)
        if replicas == members:
            return (node,)
        return node, *self._choose(level, members - replicas, behind, cut, stop, limit)

    def _stops(self, level: int) -> range:
        """Return the cuts at which runs of layers stop that matter at a level."""
        return range(self._layers if level == self._top else 0, self._layers + 1)

    def _options(self, level: int, members: int, behind: Workers) -> Iterator[_Option]:
        """Yield the ways to run a first stage on some of so many members, the rest on others."""
        size, width = prod(self._widths[:level]), self._widths[level - 1] if level else 1
        for replicas in range(1, members + 1 if self._replicate else 2):
            later: Workers = 0
            if self._objective.in_flight_matters:
                later = Fraction((members - replicas) * size + behind) / replicas
                if level == 0:
                    later = ceil(later)  # a worker's minibatches in flight are whole
            inner = level - 1, width, later
            stages = self._objective.replicated(self._best(*inner), level, replicas)
            rest = None
            if replicas < members:
                sent = self._objective.transfer(level)[:, None]
                rest = np.maximum(sent, self._best(level, members - replicas, behind))
            yield _Option(replicas, inner, stages, rest)
