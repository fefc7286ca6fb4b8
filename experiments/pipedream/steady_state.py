"""The steady state of a pipeline: how busy its machines are, and how fast (PipeDream, 3.2, 3.3).

There is one definition for all of PipeDream's tables and figures.  A run has a *warm-up*, which
fills the pipeline, a part that is *counted*, and a *drain*, in which the input stage admits nothing
any more.  All are whole rounds of the round robin.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from experiments.study.traces import busy_s
from pipekit.schedules import optimal_in_flight
from pipekit.traces import Trace


class Window(NamedTuple):
    """Minibatches of a run: those that fill the pipeline, that are counted, and that drain it."""

    warmup: int
    counted: int
    drain: int

    @property
    def minibatches(self) -> int:
        return sum(self)


def window(replicas: Sequence[int], at_least: int, margin: int = 1) -> Window:
    """Return how long a run of PipeDream's schedule must be to count so many minibatches.

    All parts are multiples of the replicas' least common multiple, after which the stages' rounds
    meet again.  Stages that are faster than others take some time to get ahead of them: ``margin``
    lengthens what is not counted, and must be as large as the in-flight count over NOAM.
    """
    fill, drain = _uncounted(replicas, margin)
    return Window(*(_rounds(replicas, n) for n in (fill, at_least, drain)))


def steady(trace: Trace, replicas: Sequence[int], margin: int = 1) -> tuple[float, float, int]:
    """Return start and end of the steady state, and how many minibatches end in it."""
    ends = trace.ends("BACKWARD", stage=0)
    warmup, drain = (_rounds(replicas, n) for n in _uncounted(replicas, margin))
    period = math.lcm(*replicas)
    count = (len(ends) - warmup - drain) // period * period
    if count < period:
        raise ValueError(
            f"{len(ends)} minibatches are too few for a steady state on {sum(replicas)} workers: "
            f"run at least {window(replicas, 1, margin).minibatches}"
        )
    return ends[warmup - 1], ends[warmup - 1 + count], count


def seconds_a_minibatch(trace: Trace, replicas: Sequence[int], margin: int = 1) -> float:
    """Return the time from one minibatch to the next in the steady state, in the trace's unit."""
    start, end, count = steady(trace, replicas, margin)
    return (end - start) / count


def utilisation(trace: Trace, replicas: Sequence[int], margin: int = 1) -> float:
    """Return the share of all workers' time by the clock in which they compute in steady state."""
    start, end, _ = steady(trace, replicas, margin)
    return busy_s(trace.passes, start, end) / (trace.workers * (end - start))


def replica_vectors(machines: int, stages: int) -> Iterator[list[int]]:
    """Yield every way to share so many machines among so many stages, at least one each."""
    for ends in combinations(range(1, machines), stages - 1):
        yield [b - a for a, b in pairwise([0, *ends, machines])]


def with_links_as_stages(replicas: Sequence[int]) -> list[int]:
    """Return how many minibatches must be in flight if every link is busy like one more stage."""
    last = len(replicas) - 1
    return [count + last - stage for stage, count in enumerate(optimal_in_flight(replicas))]


def _uncounted(replicas: Sequence[int], margin: int) -> tuple[int, int]:
    """Return how many minibatches fill the pipeline, and how many drain it."""
    in_flight = margin * optimal_in_flight(replicas)[0] * replicas[0]
    return 2 * in_flight, in_flight


def _rounds(replicas: Sequence[int], minibatches: int) -> int:
    """Return so many minibatches, made up to whole rounds."""
    period = math.lcm(*replicas)
    return period * math.ceil(minibatches / period)
