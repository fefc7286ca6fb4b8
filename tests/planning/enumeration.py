"""All ways to cut layers and to share workers, for tests that try every one of them."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise


def splits(items: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield every tuple of ``parts`` numbers, 1 or more each, that sum to ``items``."""
    for edges in combinations(range(1, items), parts - 1):
        yield tuple(b - a for a, b in pairwise([0, *edges, items]))


def sums(costs: Sequence[float], split: Sequence[int]) -> list[float]:
    """Return the sum of the costs of each part."""
    ends = [sum(split[:part]) for part in range(len(split) + 1)]
    return [sum(costs[a:b]) for a, b in pairwise(ends)]
