"""The steady state of a pipeline: how busy its machines are, and how fast (PipeDream, 3.2, 3.3)."""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from pipekit.papers.timelines import backward_ends, busy_s, passes_of
from pipekit.schedules import optimal_in_flight
from pipekit.traces import Trace


def replica_vectors(machines: int, stages: int) -> Iterator[list[int]]:
    """Yield every way to share so many machines among so many stages, at least one each."""
    for ends in combinations(range(1, machines), stages - 1):
        yield [b - a for a, b in pairwise([0, *ends, machines])]


def with_links_as_stages(replicas: Sequence[int]) -> list[int]:
    """Return how many minibatches must be in flight if every link is busy like one more stage.

    NOAM counts machines only (PipeDream, 3.2); a minibatch also spends time on the links.
    """
    last = len(replicas) - 1
    return [count + last - stage for stage, count in enumerate(optimal_in_flight(replicas))]


def steady(trace: Trace, replicas: Sequence[int]) -> tuple[float, float, int]:
    """Return start and end of the steady state, and how many minibatches end in it.

    Both are ends of backwards on the input stage, about the middle third of the run: faster stages
    take some time to get as far ahead of the slowest as they may. It has whole rounds of the round
    robin, and ends before the input stage has admitted its last minibatch. A run that is too short
    to have one is a ValueError.
    """
    ends = backward_ends(trace)
    round_, fill = math.lcm(*replicas), max(3 * sum(replicas), len(ends) // 3)
    count = (len(ends) - 2 * fill) // round_ * round_
    if count < round_:
        raise ValueError(
            f"{len(ends)} minibatches are too few for a steady state on {sum(replicas)} workers: "
            f"run at least {2 * fill + round_}"
        )
    return ends[fill], ends[fill + count], count


def utilisation(trace: Trace, replicas: Sequence[int]) -> float:
    """Return the share of all workers' time in which they compute, in the steady state.

    What they compute for the minibatches that end in it: a stage nearly as slow as the slowest
    gets ahead of it only slowly, and meanwhile works on more minibatches than end.
    """
    start, end, _ = steady(trace, replicas)
    passes = passes_of(trace)
    last = passes.query("op == 'BACKWARD' and stage == 0")
    counted = last[(last["end_s"] > start) & (last["end_s"] <= end)]["microbatch"]
    own = passes[passes["microbatch"].isin(counted)]
    return float((own["end_s"] - own["start_s"]).sum() / (trace.workers * (end - start)))


def clock_utilisation(trace: Trace, replicas: Sequence[int]) -> float:
    """Return the same by the clock: whatever they compute between its start and its end."""
    start, end, _ = steady(trace, replicas)
    return busy_s(passes_of(trace), start, end) / (trace.workers * (end - start))


def seconds_a_minibatch(trace: Trace, replicas: Sequence[int]) -> float:
    """Return the time from one minibatch to the next in the steady state, in the trace's unit."""
    start, end, count = steady(trace, replicas)
    return (end - start) / count


def idle_error(stage_s: Sequence[float], idle: float) -> float:
    """Return |idle - closed form| / closed form; that is 1 - mean(stage) / max(stage)."""
    expected = 1 - sum(stage_s) / len(stage_s) / max(stage_s)
    return abs(idle - expected) / expected
