"""What closed forms speak of: makespans, spans and kept activations, exact with whole numbers."""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from pipekit.schedules import Op, Schedule, check, slots


class Costs(NamedTuple):
    """Slots of a forward, and of a backward's parts for the input and for the weights."""

    forward: int = 1
    inputs: int = 1
    weights: int = 1

    @property
    def work(self) -> int:
        """Of a microbatch on a stage."""
        return sum(self)


def every_costs() -> Iterator[Costs]:
    """All costs from 1 to 3, so that each of the three is the longest, the shortest or like others."""
    return (Costs(*each) for each in product((1, 2, 3), repeat=3))


EQUAL = Costs()


def ends(schedule: Schedule, costs: Costs, overlap: float | None = None) -> list[tuple[int, int]]:
    """Return when each worker begins and ends."""
    f, i, w = costs
    durations = {
        Op.FORWARD: f,
        Op.BACKWARD: i + w,
        Op.BACKWARD_INPUT: i,
        Op.BACKWARD_WEIGHT: w,
        Op.UPDATE: 0,
    }
    return [(each[:, 0].min(), each[:, 1].max()) for each in slots(schedule, durations, overlap)]


def makespan(schedule: Schedule, costs: Costs = EQUAL, overlap: float | None = None) -> float:
    return max(end for _, end in ends(schedule, costs, overlap))


def spans(schedule: Schedule, costs: Costs = EQUAL) -> list[float]:
    return [end - begin for begin, end in ends(schedule, costs)]


def peaks(schedule: Schedule) -> tuple[int, ...]:
    """Return the most passes that each worker has in flight."""
    return check(schedule, joint_updates=True).peak_in_flight
