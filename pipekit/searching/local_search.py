"""Better orders from good ones: passes change places at the ends of the critical path's blocks.

A tabu search as for job shops (Balas and Vazacopoulos, "Guided local search with shifting
bottleneck for job shop scheduling", 1998): passes that follow one another on a worker without a gap
make a block of the critical path; only a pass that comes before a block's first one, or behind its
last one, can make the path shorter.  The paths through the passes that are moved are estimated, so
that only the best move is carried out.  Beside that, backwards on the path are split or made whole.
"""

import math
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from pipekit.searching.bound import bound
from pipekit.searching.problem import Orders, Problem, Timing

_FAR = 10
"""Over how many passes one is moved at most."""
_TENURE = (8, 24)
"""For how many moves two passes keep the order that a move has given them."""
_PATIENCE = 300
"""Moves without a better makespan after which the search goes back to the best orders."""
_EXCHANGED = 0.1
"""How often a backward is split or made whole, in place of a move."""
CLOSE = 1 + 1e-9
"""Seconds that differ by less than this factor are equal."""


class _Move(NamedTuple):
    worker: int
    source: int
    destination: int


class TabuSearch:
    """Orders of a ``problem``, and the best that moves have made of them.

    ``orders`` are the shortest so far, and take ``makespan`` seconds.
    """

    def __init__(self, problem: Problem, orders: Orders, seed: int = 0) -> None:
        self.problem, self._chance = problem, random.Random(seed)
        self._needs, self._followers = problem.needs, _followers(problem)
        self._tabu: dict[tuple[int, int], int] = {}  # until which move a pair keeps its order
        self._moves = self._last = 0  # in all, and up to the last good one
        self._begin([*map(list, orders)])
        self.orders, self.makespan = [*map(list, orders)], self._timing.makespan
        self._least = bound(problem) * CLOSE

    @property
    def is_least(self) -> bool:
        """Whether no orders of the problem's passes are shorter."""
        return self.makespan <= self._least

    def move(self) -> None:
        """Change the orders once."""
        self._moves += 1
        if self._chance.random() < _EXCHANGED:
            self._exchange()
        elif self._moves - self._last > _PATIENCE or not self._step():
            self._tabu.clear()
            self._begin([*map(list, self.orders)])
            for _ in range(self._chance.randint(1, 8)):
                self._shake()
            self._last = self._moves
        if self._timing.makespan < self.makespan / CLOSE:
            self.orders, self.makespan = [*map(list, self._current)], self._timing.makespan
            self._last = self._moves

    def _begin(self, orders: Orders) -> None:
        self._current = orders
        self._place: dict[int, tuple[int, int]] = {}
        self._held: list[list[float]] = [[] for _ in orders]
        self._complete: list[dict[int, int]] = [{} for _ in orders]
        self._following = [-1] * len(self._needs)  # of each pass the next one of its worker
        for worker, order in enumerate(orders):
            if order:
                self._changed(worker)
        self._time(self.problem.timing(orders))

    def _changed(self, worker: int) -> None:
        """Note where a worker's passes are, what it holds before each, where gradients begin."""
        order, problem = self._current[worker], self.problem
        keeps, adds_to, following = problem.keeps, problem.adds_to, self._following
        held, begun, now = [], {}, 0.0
        for number, behind in pairwise(order):
            following[number] = behind
        following[order[-1]] = -1
        for at, number in enumerate(order):
            self._place[number] = (worker, at)
            held.append(now)
            now += keeps[number]
            stage = adds_to[number]
            if stage >= 0 and stage not in begun:
                begun[stage] = at
                now += problem.gradients[stage]
        self._held[worker], self._complete[worker] = held, begun

    def _time(self, timing: Timing) -> None:
        """Note when passes run, and the longest path behind each of them."""
        self._timing, after = timing, self.problem.after
        takes = self.problem.takes
        # Of a pass that is not there, since a backward is whole or is not, none is behind it.
        tails = self._tails = [-math.inf] * len(takes)
        following, followers = self._following, self._followers
        for number in reversed(timing.sequence):
            behind = following[number]
            tail = after[self._place[number][0]] if behind < 0 else takes[behind] + tails[behind]
            for other, delay in followers[number]:
                long = delay + takes[other] + tails[other]
                if long > tail:
                    tail = long
            tails[number] = tail

    def _step(self) -> bool:
        """Make the best move that is not forbidden; return whether there is one."""
        found: list[tuple[float, float, _Move]] = []
        for move in self._candidates():
            estimate = self._estimate(move)
            if estimate < self.makespan / CLOSE or (
                estimate < math.inf
                and all(self._tabu.get(pair, 0) <= self._moves for pair in self._reordered(move))
            ):
                found.append((estimate, self._chance.random(), move))
        return any(self._make(move) for _, _, move in sorted(found)[:3])

    def _shake(self) -> None:
        worker = self._chance.randrange(len(self._current))
        order = self._current[worker]
        source = self._chance.randrange(len(order)) if order else 0
        destination = min(len(order) - 1, max(0, source + self._chance.randint(-_FAR, _FAR)))
        move = _Move(worker, source, destination)
        if destination not in (-1, source) and self._estimate(move) < math.inf:
            self._make(move)

    def _exchange(self) -> None:
        """Split a backward of the critical path, or make one whole, if that is no longer."""
        problem, size = self.problem, self.problem.size
        backwards = [number for number in self._path() if number >= size]
        if not backwards:
            return
        inputs = size + self._chance.choice(backwards) % size
        weights, whole = inputs + size, inputs + 2 * size
        worker, _ = self._place.get(whole) or self._place[inputs]
        before = self._current[worker]
        if whole in self._place:
            at = before.index(whole)
            changed = [*before[:at], inputs, weights, *before[at + 1 :]]
        else:
            changed = [whole if n == inputs else n for n in before if n != weights]
        self._current[worker] = changed
        timing = problem.timing(self._current)
        if timing.makespan > self._timing.makespan or not problem.fits(worker, changed):
            self._current[worker] = before
            return
        for number in (inputs, weights, whole):
            self._place.pop(number, None)
        self._changed(worker)
        self._time(timing)

    def _make(self, move: _Move) -> bool:
        """Carry a move out, unless workers would then wait for one another."""
        order, pairs = self._current[move.worker], self._reordered(move)
        number = order.pop(move.source)
        order.insert(move.destination, number)
        timing = self.problem.timing(self._current)
        if timing.makespan == math.inf:
            order.insert(move.source, order.pop(move.destination))
            return False
        self._changed(move.worker)
        until = self._moves + self._chance.randint(*_TENURE)
        self._tabu |= {(behind, before): until for before, behind in pairs}
        self._time(timing)
        return True

    def _reordered(self, move: _Move) -> list[tuple[int, int]]:
        """Return the pairs of passes that change their order, as they would then follow."""
        worker, source, destination = move
        order = self._current[worker]
        if source < destination:
            return [(each, order[source]) for each in order[source + 1 : destination + 1]]
        return [(order[source], each) for each in order[destination:source]]

    def _candidates(self) -> Iterator[_Move]:
        """Yield the moves of a pass to the start or the end of a block of the critical path."""
        for worker, first, last in self._blocks():
            near = min(last, first + _FAR)
            yield from (_Move(worker, source, first) for source in range(first + 1, near + 1))
            yield from (_Move(worker, first, to) for to in range(first + 2, near + 1))
            near = max(first + 1, last - _FAR)
            yield from (_Move(worker, source, last) for source in range(near, last))
            yield from (_Move(worker, last, to) for to in range(near, last - 1))

    def _blocks(self) -> Iterator[tuple[int, int, int]]:
        """Yield (worker, first position, last position) of the critical path's blocks."""
        last: tuple[int, int] | None = None
        for number, behind in pairwise([*self._path(), -1]):
            worker, position = self._place[number]
            last = last or (worker, position)
            if behind < 0 or self._place[behind] != (worker, position - 1):
                if position < last[1]:
                    yield worker, position, last[1]
                last = None

    def _path(self) -> list[int]:
        ends, starts, orders = self._timing.ends, self._timing.starts, self._current
        after = self.problem.after
        number = max(
            (order[-1] for order in orders if order),
            key=lambda n: ends[n] + after[self._place[n][0]],
        )
        found = [number]
        while starts[number] > 0:
            worker, position = self._place[number]
            waits = [
                need if need in self._place else self.problem.whole_of(need)
                for need, delay in self._needs[number]
                if ends[need] + delay >= starts[number]
            ]
            if position and ends[orders[worker][position - 1]] >= starts[number]:
                waits.append(orders[worker][position - 1])
            number = waits[0] if len(waits) == 1 else self._chance.choice(waits)
            found.append(number)
        return found

    def _estimate(self, move: _Move) -> float:
        """Return how long the longest path through the passes would be that a move concerns."""
        worker, source, destination = move
        order, ends, starts = self._current[worker], self._timing.ends, self._timing.starts
        takes, tails, number = self.problem.takes, self._tails, order[source]
        low, high = sorted((source, destination))
        if source < destination:
            # A path from the pass to one that it is put behind would make a circle.
            latest = starts[order[destination]]
            if any(starts[other] <= latest for other, _ in self._followers[number]):
                return math.inf
            segment = [*order[low + 1 : high + 1], number]
        else:
            earliest = ends[order[destination]]
            if any(ends[need] >= earliest for need, _ in self._needs[number]):
                return math.inf
            segment = [number, *order[low:high]]
        complete = [stage for stage, at in self._complete[worker].items() if at < low]
        most = self.problem.most_held(segment, self._held[worker][low], complete)
        if most > self.problem.room[worker] * (1 + 1e-12):
            return math.inf
        now = ends[order[low - 1]] if low else 0.0
        heads = []
        for each in segment:
            for need, delay in self._needs[each]:
                if ends[need] + delay > now:
                    now = ends[need] + delay
            now += takes[each]
            heads.append(now)
        if high + 1 < len(order):
            tail = takes[order[high + 1]] + tails[order[high + 1]]
        else:
            tail = self.problem.after[worker]
        longest = 0.0
        for each, head in zip(reversed(segment), reversed(heads), strict=True):
            for other, delay in self._followers[each]:
                long = delay + takes[other] + tails[other]
                if long > tail:
                    tail = long
            if head + tail > longest:
                longest = head + tail
            tail += takes[each]
        return longest


def _followers(problem: Problem) -> list[list[tuple[int, float]]]:
    """Return for each pass those that need it, each with the seconds until its data is there."""
    found: list[list[tuple[int, float]]] = [[] for _ in problem.takes]
    for number, needs in enumerate(problem.needs):
        for need, delay in needs:
            found[need].append((number, delay))
            if need >= problem.size:  # a part of a backward
                found[problem.whole_of(need)].append((number, delay))
    return found
