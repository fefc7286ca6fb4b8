"""Orders to begin with: policies of what a free worker takes first."""

import math

from pipekit.schedules.list_scheduler import BatchPasses, Policy, choose
from pipekit.searching.problem import Orders, Problem

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


def policy_of(choice: Choice, problem: Problem) -> Policy:
    """Return a policy in which all workers do alike."""
    depth, waiting, patience, forwards = choice
    workers, stages = problem.workers, problem.stages
    straight = [(stages - stage) * workers / stages for stage in range(stages)]
    return Policy(
        tuple(max(1.0, _DEPTHS[depth] * count) for count in straight),
        (_WAITING[waiting] * workers,) * workers,
        (_PATIENCES[patience],) * workers,
        (_FORWARDS_FIRST[forwards],) * workers,
    )


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
