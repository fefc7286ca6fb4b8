"""What a free worker takes first, each worker for itself."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from pipekit.searching.problem import Problem

_DEPTHS = (0.5, 1.0, 1.5, 2.0, math.inf)
_PATIENCES = (0.0, 0.5, 1.0)


@dataclass(frozen=True)
class Policy:
    """What a free worker takes first; each attribute but one has an entry a worker.

    Attributes:
        depth: of each stage, microbatches that have gone forward and not all the way back, at most;
            infinite: as many as there is room for.
        waiting: parts for the weights that may wait before one comes first.
        patience: for how long it waits for a pass that others need, in place of a part for the
            weights, as a share of that part.
        forwards_first: whether a forward comes before a part for the input.
    """

    depth: tuple[float, ...]
    waiting: tuple[float, ...]
    patience: tuple[float, ...]
    forwards_first: tuple[bool, ...]


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
