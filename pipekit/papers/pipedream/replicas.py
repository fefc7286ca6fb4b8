"""How machines are shared among stages, and how many minibatches these have in flight."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from pipekit.schedules import optimal_in_flight


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
