"""Times that no order of a problem's passes is shorter than."""

import math
from itertools import accumulate

from pipekit.searching.problem import Problem


def anywhere(problem: Problem) -> float:
    """Return a time that no order is shorter than wherever stages are: the most of three.

    - One microbatch has to go all the way there and back.
    - Some worker has at least its share of all the work.
    - Some worker has the costliest stage, and waits until a microbatch has come to its first.
    """
    forward, inputs, weights, whole = problem.seconds
    least = [min(pair) for pair in zip(inputs, whole, strict=True)]
    work = [
        problem.microbatches * (f + min(i + w, b))
        for f, i, w, b in zip(forward, inputs, weights, whole, strict=True)
    ]
    arrivals = [0.0, *accumulate(forward)]
    longest = [sum(forward) + sum(least), sum(work) / problem.workers]
    for stage, own in enumerate(work):
        with_earlier = (arrivals[each] + work[each] for each in range(stage))
        longest.append(own + min([arrivals[stage], *with_earlier]))
    return max(longest)


def bound(problem: Problem) -> float:
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
    work, there = [0.0] * problem.workers, [math.inf] * problem.workers
    kept = [0.0] * problem.workers
    arrival = 0.0
    for stage, (home, delay) in enumerate(zip(problem.homes, [*problem.delays, 0.0], strict=True)):
        work[home] += problem.microbatches * (forward[stage] + backward[stage])
        there[home] = min(there[home], arrival)
        arrival += forward[stage] + delay
    turn = 0.0  # from the stage's forward's start until its gradient has gone on
    for stage in reversed(range(problem.stages)):
        turn += forward[stage] + least[stage]
        held, freed, *_ = (row[stage] for row in problem.kept)
        once = held * (turn - least[stage] + backward[stage])
        once += freed * (backward[stage] - least[stage])
        kept[problem.homes[stage]] += problem.microbatches * once
        turn += 2 * problem.delays[stage - 1] if stage else 0.0
    longest = [turn]
    for worker in range(problem.workers):
        if work[worker]:
            room = problem.room[worker]
            waits = kept[worker] / room if 0 < room < math.inf else 0.0
            longest.append(there[worker] + max(work[worker], waits) + problem.after[worker])
    return max(longest)
