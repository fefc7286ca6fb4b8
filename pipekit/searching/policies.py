"""Orders to begin with: policies of what a free worker takes first."""

import math

from pipekit.schedules.list_scheduler import BatchPasses, Policy, choose
from pipekit.searching.problem import Orders, Problem

Choice = tuple[int, ...]
"""Of a policy: the places of its depth, waiting, patience and forwards first in their lists."""
_DEPTHS = (math.inf, 2.0, 1.5, 1.0, 0.5)
"""By how many 1F1B has in flight on a straight pipeline of so many workers."""
_PATIENCES = (0.5, 0.0, 1.0)
_FORWARDS_FIRST = (False, True)


def counts(workers: int) -> Choice:
    """Return how many values each part of a choice has."""
    return tuple(map(len, (_DEPTHS, _waiting(workers), _PATIENCES, _FORWARDS_FIRST)))


def policy_of(choice: Choice, workers: int, stages: int) -> Policy:
    """Return a policy in which all workers do alike."""
    depth, waits, patience, forwards = choice
    straight = [(stages - stage) * workers / stages for stage in range(stages)]
    return Policy(
        tuple(max(1.0, _DEPTHS[depth] * count) for count in straight),
        (_waiting(workers)[waits],) * workers,
        (_PATIENCES[patience],) * workers,
        (_FORWARDS_FIRST[forwards],) * workers,
    )


def _waiting(workers: int) -> list[float]:
    return [math.inf, *sorted({0, 1, workers // 2, workers})]


def greedy(problem: Problem, policy: Policy) -> Orders:
    """Return the orders that a policy leads to."""
    weights = 2
    freed = zip(problem.heights[weights], problem.gradients, problem.kept[weights], strict=True)
    passes = BatchPasses(
        [row[0] for row in problem.homes],
        problem.microbatches,
        problem.seconds,
        [row[0] for row in problem.delays],
        problem.kept,
        problem.gradients,
        [max(height, gradients + kept) for height, gradients, kept in freed],
        problem.room,
        problem.reads.summed if problem.reads else None,
    )
    return [[problem.number(*each) for each in row] for row in choose(passes, policy)]
