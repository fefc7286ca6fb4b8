"""Better orders from good ones: passes of the critical path change places with others."""

import math
import random
import time
from collections.abc import Callable

from pipekit.searching.problem import Orders, Problem, Timing

_FAR = 6
"""How far a pass is moved at most."""
_SIDEWAYS = 0.1
"""How often orders of the same makespan are kept though their passes end later in sum."""


def improve(
    problem: Problem,
    orders: Orders,
    deadline: float,
    seed: int = 0,
    tell: Callable[[float], object] = lambda makespan: None,
) -> Orders:
    """Return orders that are no longer.

    The critical path goes from the last pass back to the first through what each had to wait for.
    A pass on it that waited for its worker is moved before some that it waited for, or one of these
    behind it; what is no longer is kept, more readily if passes end earlier in sum.

    Args:
        problem: to be solved.
        orders: to begin with; they fit into the workers' room.
        deadline: when to end, of ``time.monotonic()``.
        seed: of the random choices.
        tell: is told of every better makespan.
    """
    chance, timing = random.Random(seed), problem.timing(orders)
    best = _length(timing)
    while time.monotonic() < deadline and timing.makespan > problem.bound:
        held_up = _held_up(problem, orders, timing)
        if not held_up:
            break
        worker, position = chance.choice(held_up)
        order = orders[worker]
        distance = chance.randint(1, _FAR)
        if chance.random() < 0.5:
            source, destination = position, max(0, position - distance)
        else:
            source, destination = position - 1, min(len(order) - 1, position - 1 + distance)
        moved = order.copy()
        moved.insert(destination, moved.pop(source))
        if not problem.fits(worker, moved):
            continue
        orders[worker] = moved
        tried = problem.timing(orders)
        length = _length(tried)
        if length > best and (tried.makespan > best[0] or chance.random() > _SIDEWAYS):
            orders[worker] = order
            continue
        if tried.makespan < best[0]:
            tell(tried.makespan)
        timing, best = tried, length
    return orders


def _length(timing: Timing) -> tuple[float, float]:
    """Return what is made less: the makespan, and of equal ones the sum of all ends."""
    return timing.makespan, sum(timing.ends) if timing.makespan < math.inf else math.inf


def _held_up(problem: Problem, orders: Orders, timing: Timing) -> list[tuple[int, int]]:
    """Return (worker, position) of the critical passes that waited for their worker alone."""
    place = {n: (w, at) for w, order in enumerate(orders) for at, n in enumerate(order)}
    ends = timing.ends
    number = max(range(len(ends)), key=ends.__getitem__)
    found = []
    while True:
        worker, position = place[number]
        start = ends[number] - problem.takes[number]
        data = max(problem.needs[number], key=lambda need: ends[need[0]] + need[1], default=None)
        arrival = ends[data[0]] + data[1] if data else 0.0
        before = orders[worker][position - 1] if position else None
        if before is not None and ends[before] > arrival:
            found.append((worker, position))
            number = before
        elif data is not None and start > 0:
            number = data[0]
        else:
            return found
