"""Where stages are best: placements are bounded, and for the best ones orders are made.

A best-first search: placements near good ones wait in a queue, first those that have a low bound
and come from one with short orders.  What a worker takes first is tried beside that.
"""

import math
import random
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from pipekit.schedules.list_scheduler import Policy, choose
from pipekit.searching.bound import bound
from pipekit.searching.problem import Orders, Placement, Problem
from pipekit.searching.question import Question

Choice = tuple[int, ...]
"""Of a policy: the places of its depth, waiting, patience and forwards first in their lists."""
_DEPTHS = (math.inf, 2.0, 1.5, 1.0, 0.5)
"""By how many 1F1B has in flight on a straight pipeline of so many workers."""
_WAITING = (math.inf, 1.0, 0.5, 0.0)
"""By how many workers there are."""
_PATIENCES = (0.5, 0.0, 1.0)
_FORWARDS_FIRST = (False, True)
LENGTHS: Choice = tuple(map(len, (_DEPTHS, _WAITING, _PATIENCES, _FORWARDS_FIRST)))
"""How many there are to choose from."""

_PARENTS = 20
"""How many of the best solutions have others made from them."""
_NEAR = 8
"""How many placements are made from one at a time."""
_NEW_CHOICE = 0.1
"""How often the policy changes, in place of the placement."""
_EXHAUSTED = 1000
"""Draws in a row that are known, after which nothing is taken to be left."""


class Candidate(NamedTuple):
    """Orders of a problem's passes that fit."""

    problem: Problem
    orders: Orders
    makespan: float


def candidates(
    question: Question, starts: Sequence[Placement], seed: int
) -> Iterator[Candidate | None]:
    """Yield orders for placements and policies never tried before, or None where none fit."""
    is_given = question.placement is not None

    def least(placement: Placement) -> float:
        return bound(question.problem(placement))

    chance, number = random.Random(seed), count()
    default, worst = (0,) * len(LENGTHS), sum(question.problem(starts[0]).takes)
    queue = sorted((least(each) * worst, next(number), each, default) for each in starts)
    seen, tried, known = set(starts), set[tuple[Placement, Choice]](), 0
    parents: list[tuple[float, Placement, Choice]] = []  # with their makespans
    while known < _EXHAUSTED:
        known += 1
        if parents and (is_given or chance.random() < _NEW_CHOICE):
            _, placement, choice = chance.choice(parents)
            part = chance.randrange(len(choice))
            choice = (*choice[:part], chance.randrange(LENGTHS[part]), *choice[part + 1 :])
        else:
            if parents and not is_given:
                makespan, parent, choice = chance.choice(parents)
                for _ in range(_NEAR):
                    placement = neighbour(parent, question.workers, question.alike, chance)
                    if placement not in seen:
                        seen.add(placement)
                        key = least(placement) * makespan
                        heappush(queue, (key, next(number), placement, choice))
            if not queue:
                continue
            _, _, placement, choice = heappop(queue)
        if (placement, choice) in tried:
            continue
        tried.add((placement, choice))
        known, made = 0, None
        if is_given or not parents or least(placement) < parents[0][0]:
            problem = question.problem(placement)
            made = shortest(problem, greedy(problem, policy_of(choice, problem)))
        yield made
        parents.append((made.makespan if made else worst, placement, choice))
        parents = sorted(parents)[:_PARENTS]


def shortest(problem: Problem, orders: Orders) -> Candidate | None:
    """Return orders as they are, or with neighbouring parts of backwards as one; None: none fit."""
    if not problem.has(orders):
        return None
    able = [each for each in (orders, problem.merged(orders)) if problem.fit(each)]
    timed = (Candidate(problem, each, problem.timing(each).makespan) for each in able)
    best = min(timed, key=lambda each: each.makespan, default=None)
    return best if best and best.makespan < math.inf else None


def policy_of(choice: Choice, problem: Problem) -> Policy:
    """Return the policy of a choice."""
    depth, waiting, patience, forwards = choice
    workers, stages = problem.workers, problem.stages
    straight = [(stages - stage) * workers / stages for stage in range(stages)]
    return Policy(
        [max(1.0, _DEPTHS[depth] * count) for count in straight],
        _FORWARDS_FIRST[forwards],
        _WAITING[waiting] * workers,
        _PATIENCES[patience],
    )


def greedy(problem: Problem, policy: Policy) -> Orders:
    """Return the orders that a policy leads to."""
    return [[problem.number(*each) for each in row] for row in choose(problem, policy)]


def neighbour(
    placement: Placement, workers: int, groups: Sequence[int], chance: random.Random
) -> Placement:
    """Return a placement with a stage on another worker, or two that have changed places.

    Each worker keeps a stage.  ``groups`` are as for :func:`renumbered`.
    """
    changed = [*placement]
    one, other = (chance.randrange(len(changed)) for _ in range(2))
    if chance.random() < 0.5:
        changed[one], changed[other] = changed[other], changed[one]
    else:
        changed[one] = chance.randrange(workers)
    is_full = len(set(changed)) == workers
    return renumbered(tuple(changed), groups) if is_full else placement


def renumbered(placement: Placement, groups: Sequence[int]) -> Placement:
    """Return a placement that is alike, its workers numbered in the order of their first stages.

    ``groups`` are the sizes of groups of workers that are alike, outermost first, say servers of 2
    and workers: (2, 1).  A group is renumbered as a whole; without any, all stay.
    """

    def first(worker: int) -> list[int]:
        return [[home // size for home in placement].index(worker // size) for size in groups]

    if not groups:
        return placement
    ranked = sorted(set(placement), key=first)
    return tuple(ranked.index(home) for home in placement)
