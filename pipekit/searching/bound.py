"""A time that no order of a problem's passes is shorter than."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, repeat

from pipekit.searching.problem import Problem


def anywhere(problem: Problem, times: int = 1, copies: int = 1) -> float:
    """Return a time that no order is shorter than wherever stages are: the most of three.

    - One microbatch has to go all the way there and back.
    - Some worker has at least its share of all the work.
    - Some worker has the costliest stage, and waits until a microbatch has come to its first.

    Args:
        problem: of any placement, and one batch.
        times: how many batches follow one another.
        copies: how many workers a stage may be on.
    """
    forward, inputs, weights, whole = problem.seconds
    least = [min(pair) for pair in zip(inputs, whole, strict=True)]
    count = times * problem.microbatches
    work = [
        count * (f + min(i + w, b))
        for f, i, w, b in zip(forward, inputs, weights, whole, strict=True)
    ]
    arrivals = [0.0, *accumulate(forward)]
    longest = [sum(forward) + sum(least), sum(work) / problem.workers]
    for stage, own in enumerate(work):
        with_earlier = (arrivals[each] + work[each] for each in range(stage))
        longest.append(own / copies + min([arrivals[stage], *with_earlier]) * (copies == 1))
    return max(longest)


def bound(problem: Problem, times: int = 1) -> float:
    """Return a time that no order is shorter than: the most of three.

    - One microbatch has to go all the way there and back.
    - A worker has all its passes to do, none before a microbatch can have come to it.
    - A worker keeps a microbatch's activations for as long at least as that takes from there to the
      last stage and back; so many bytes for so many seconds fit into its room only one after
      another.
    """
    forward, inputs, weights, whole = problem.seconds
    # A gradient leaves at the end of a part for the input, or of a whole backward.
    least = [min(pair) for pair in zip(inputs, whole, strict=True)]
    backward = [min(i + w, b) for i, w, b in zip(inputs, weights, whole, strict=True)]
    stages, workers = range(problem.stages), range(problem.workers)
    work, there = [0.0] * problem.workers, [math.inf] * problem.workers
    kept = [0.0] * problem.workers
    alone = math.inf
    columns = zip(zip(*problem.homes, strict=True), _columns(problem), strict=True)
    for (homes, delays), count in Counter(columns).items():
        alike = times * count
        arrival = 0.0
        for stage, home in enumerate(homes):
            work[home] += alike * (forward[stage] + backward[stage])
            there[home] = min(there[home], arrival)
            arrival += forward[stage] + (delays[stage] if stage < len(delays) else 0.0)
        turn = 0.0  # from the stage's forward's start until its gradient has gone on
        for stage in reversed(stages):
            turn += forward[stage] + least[stage]
            once = _kept(problem, stage, turn, least[stage], backward[stage])
            kept[homes[stage]] += alike * once
            turn += 2 * delays[stage - 1] if stage else 0.0
        alone = min(alone, turn)
    longest = [alone]
    for worker in workers:
        if work[worker]:
            room = problem.room[worker]
            waits = kept[worker] / room if 0 < room < math.inf else 0.0
            longest.append(there[worker] + max(work[worker], waits) + problem.after[worker])
    return max(longest)


def _columns(problem: Problem) -> Iterator[tuple[float, ...]]:
    """Yield the seconds between stages for each microbatch."""
    none: Iterator[tuple[float, ...]] = repeat((), problem.microbatches)
    return zip(*problem.delays, strict=True) if problem.delays else none


def _kept(problem: Problem, stage: int, turn: float, least: float, backward: float) -> float:
    """Return the bytes times seconds that a microbatch's activations need on a stage at least."""
    held, freed, *_ = (row[stage] for row in problem.kept)
    return held * (turn - least + backward) + freed * (backward - least)
