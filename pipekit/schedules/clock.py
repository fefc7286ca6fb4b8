"""One clock for every replay: who can go, and when, if everyone follows a given order.

A worker runs its list in order and waits for what a task needs.  Such a network of processes
(Kahn, 1974) reaches the same end whatever the timing: one replay proves what every execution will
do, and gives the times of one whose costs are known.  Links are workers, too, where messages follow
one another on them.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Self

import numpy as np

from pipekit.schedules.dependencies import NOBODY, NOTHING, Dependencies
from pipekit.schedules.ops import Op

Need = tuple[tuple[int, float], ...]
"""What must be over before a thing begins, each with how long before."""

PAPER_SLOTS: Mapping[Op, float] = MappingProxyType({})
"""Each op takes its own slots: a backward two, whole or in parts, and an update none."""


class Walk:
    """Runs lists of things, each as soon as the one before it and all that it needs are over.

    Things go by number: NOTHING is over at 0, and NOBODY never.  A worker takes ``wake`` seconds to
    go on after it has waited; things of ``with_them`` are over with it.  ``starts`` are infinite as
    long as a thing has not run, ``ends`` -1; ``sequence`` is all that has run, in an order in which
    it can; ``following`` and ``free`` say of each worker how many of its things have run, and when
    the last of them ended.
    """

    def __init__(
        self,
        lists: Sequence[Sequence[int]],
        seconds: Sequence[float],
        needs: Sequence[Need],
        wake: float = 0.0,
        with_them: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self.lists, self.needs = lists, needs
        self._seconds, self._wake, self._with_them = seconds, wake, with_them
        self.starts = [math.inf] * len(seconds)
        self.ends = [-1.0] * len(seconds) + [-1.0, 0.0]  # found at NOBODY, -2, and NOTHING, -1
        self.sequence: list[int] = []
        self.following, self.free = [0] * len(lists), [0.0] * len(lists)

    def run(self, stops: Sequence[int] | None = None) -> Self:
        """Let the workers go on in turn, each as far as it can, or up to a count of its things."""
        starts, ends, needs, seconds = self.starts, self.ends, self.needs, self._seconds
        ran, wake, with_them = self.sequence.append, self._wake, self._with_them
        stops = stops or [*map(len, self.lists)]
        moved = True
        while moved:
            moved = False
            for worker, things in enumerate(self.lists):
                position, stop, now = self.following[worker], stops[worker], self.free[worker]
                begin = position
                while position < stop:
                    number = things[position]
                    start = now
                    for need, delay in needs[number]:
                        end = ends[need]
                        if end < 0:
                            break
                        if end + delay > start:
                            start = end + delay
                    else:
                        if start > now:
                            start += wake
                        starts[number] = start
                        ends[number] = now = start + seconds[number]
                        if number in with_them:
                            for other in with_them[number]:
                                ends[other] = now
                        ran(number)
                        position += 1
                        continue
                    break
                if position > begin:
                    moved = True
                    self.following[worker], self.free[worker] = position, now
        return self

    @property
    def is_done(self) -> bool:
        """Whether everything has run."""
        return self.following == [*map(len, self.lists)]


def graph_needs(graph: Dependencies) -> list[Need]:
    """Return what each task needs of what is not before it in its own worker's list."""
    size, lane = len(graph.tasks), graph.lane
    over = [*zip(range(size), repeat(0.0)), (NOBODY, 0.0), (NOTHING, 0.0)]

    def still(needed: list[int]) -> list[int]:
        each = np.array(needed, dtype=np.int64)
        before = (each >= 0) & (each < np.arange(size)) & (lane[each] == lane)
        found: list[int] = np.where(before, NOTHING, each).tolist()
        return found

    source, own = still(graph.source), still(graph.own)
    needs: list[Need] = [*zip(map(over.__getitem__, source))]
    for number, need in enumerate(own):
        if need != NOTHING:
            needs[number] += (over[need],)
    for number in graph.of(lambda op: not op.is_pass):
        first = graph.first[graph.worker_of[number]]
        needs[number] = tuple(over[n] for n in graph.summed(number) if not first <= n < number)
    for number, others in graph.others.items():
        needs[number] += tuple(map(over.__getitem__, others))
    return needs
