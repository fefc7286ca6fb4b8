"""Rounds of a search, each twice as long as the one before: many starts, some tried, two pursued.

What a round does is counted in steps and not in seconds, so that a longer search begins as a
shorter one does, and never ends worse.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

from pipekit.searching.local_search import CLOSE, TabuSearch
from pipekit.searching.placements import Candidate, candidates, shortest
from pipekit.searching.question import Question

_STARTS, _MOVES = 32, 16
"""Of the first round: placements and policies tried, and moves of each of the best."""
_TRIED, _PURSUED = 6, 2
"""How many of a round's starts local search tries, and of all that it has tried it pursues."""
_LEAST_STARTS = 150
"""How many starts are tried, whatever the time, as long as none fits."""

_Orders = TypeVar("_Orders", Candidate, TabuSearch)


class Budget:
    """Counts ``steps``, and says whether there is time for them.

    Time is the thread's on a core, so that a busy machine makes no search worse.  It only ends a
    search and never leads it: with more, the same steps are taken first.
    """

    def __init__(self) -> None:
        self.steps, self.begin = 0, time.thread_time()
        self._end = self.begin

    def allow(self, share: float, seconds: float) -> None:
        """Let the steps from here on take a share of what is left of so many seconds in all."""
        now = time.thread_time()
        self._end = now + max(0.0, self.begin + seconds - now) * share

    def step(self) -> bool:
        """Count a step; return whether there is time for it."""
        self.steps += 1
        return time.thread_time() < self._end


class SearchRounds:
    """The search for one question's answer.

    ``best`` is the shortest schedule so far that fits, or None.  The ``step`` of the budget found
    it, after so many ``seconds``; 0: it is a named method.
    """

    def __init__(self, question: Question, budget: Budget, seed: int) -> None:
        self._question, self._budget, self._seed = question, budget, seed
        able = [each for each in question.named if question.fits(each)]
        self.best = min(able, key=lambda each: each.makespan_s, default=None)
        self.step, self.seconds = 0, 0.0
        self._pool: list[TabuSearch] = []
        self._starts = self._all_starts()

    def run(self) -> None:
        """Search until the time is over, nothing is left, or the best takes the least time."""
        size = 1
        while self._goes_on() and self._round(size):
            size *= 2

    def _goes_on(self) -> bool:
        return self.best is None or self.best.makespan_s > self._question.least_s * CLOSE

    def _round(self, size: int) -> bool:
        """Return whether there is time for another round, and anything to do in it."""
        fresh: list[Candidate] = []
        tries = 0
        for tries, start in enumerate(islice(self._starts, _STARTS * size), start=1):
            if start:
                fresh.append(start)
                if self.best is None:
                    self._take(start)
            if not self._budget.step() and (self.best or tries > _LEAST_STARTS):
                return False
        tried: list[TabuSearch] = []
        for each in _best_of(fresh, _TRIED):
            self._take(each)
            self._seed += 1
            tried.append(TabuSearch(each.problem, each.orders, self._seed))
        if not all(self._improved(each, _MOVES * size) for each in tried):
            return False
        able = [each for each in (*self._pool, *tried) if not each.is_least]
        self._pool = _best_of(able, 2 * _TRIED)
        pursued = _best_of(self._pool, _PURSUED)
        if not all(self._improved(each, 3 * _MOVES * size) for each in pursued):
            return False
        return tries > 0 or bool(pursued)

    def _improved(self, entrant: TabuSearch, moves: int) -> bool:
        """Make some moves; return whether there is time and need for more."""
        for _ in range(moves // _MOVES):
            before = entrant.makespan
            for _ in range(_MOVES):
                if entrant.is_least:
                    break
                if not self._budget.step():
                    return False
                entrant.move()
            if entrant.makespan < before:
                self._take(entrant)
        return self._goes_on()

    def _take(self, made: Candidate | TabuSearch) -> None:
        """Simulate orders that may be the best: messages that meet on links take longer."""
        if self.best and made.makespan >= self.best.makespan_s / CLOSE:
            return
        found = self._question.made(made.problem, made.orders)
        if self._question.fits(found) and (
            not self.best or found.makespan_s < self.best.makespan_s
        ):
            self.best = found
            self.step = self._budget.steps
            self.seconds = time.thread_time() - self._budget.begin

    def _all_starts(self) -> Iterator[Candidate | None]:
        question, stages = self._question, range(len(self._question.plan.stages))
        placements = [question.placement or tuple(stage % question.workers for stage in stages)]
        for each in question.named:
            problem = question.problem(each.placement)
            yield shortest(problem, problem.orders(each.schedule))
            placements.append(each.placement)
        yield from candidates(question, placements, self._seed)


def _best_of(every: Sequence[_Orders], count: int) -> list[_Orders]:
    """Return the best of some orders, of each placement at most half of them."""
    chosen: list[_Orders] = []
    is_one = len({each.problem.homes for each in every}) == 1
    for each in sorted(every, key=lambda each: each.makespan):
        alike = sum(other.problem.homes == each.problem.homes for other in chosen)
        if is_one or alike < max(1, count // 2):
            chosen.append(each)
        if len(chosen) == count:
            break
    return chosen
