"""Orders to begin with: where the stages can be, and policies of what a free worker takes first."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product

from pipekit.schedules.list_scheduler import BatchPasses, Policy, choose
from pipekit.searching.problem import Orders, Problem

Placement = tuple[int, ...]
"""The worker of each stage."""
_ROUNDS = 200
"""Changes in a row that make nothing better, after which a placement is left as it is."""
_DEPTHS = (0.5, 1.0, 1.5, 2.0, math.inf)
_PATIENCES = (0.0, 0.5, 1.0)


def improved(
    start: Sequence[int], workers: int, cost: Callable[[Placement], float], seed: int
) -> Placement:
    """Return a placement of less cost: stages change places, or move to another worker."""
    chance = random.Random(seed)
    best, least = tuple(start), cost(tuple(start))
    failed = 0
    while failed < _ROUNDS:
        changed = list(best)
        one, other = chance.sample(range(len(changed)), 2)
        if chance.random() < 0.5:
            changed[one], changed[other] = changed[other], changed[one]
        else:
            changed[one] = chance.randrange(workers)
        failed += 1
        if len(set(changed)) < workers or tuple(changed) == best:
            continue
        each = cost(tuple(changed))
        if each < least:
            best, least, failed = tuple(changed), each, 0
    return best


def policies(problem: Problem) -> Iterator[Policy]:
    """Yield policies to begin with, in which all workers do alike."""
    workers, stages = problem.workers, problem.stages
    # As many as 1F1B has in flight on a straight pipeline, of so many workers.
    straight = [(stages - stage) * workers / stages for stage in range(stages)]
    waiting = (*sorted({0, 1, workers // 2, workers}), math.inf)
    for times, waits, patience, forwards in product(_DEPTHS, waiting, _PATIENCES, (False, True)):
        yield Policy(
            tuple(max(1.0, times * count) for count in straight),
            (waits,) * workers,
            (patience,) * workers,
            (forwards,) * workers,
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
