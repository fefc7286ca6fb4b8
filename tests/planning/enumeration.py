"""All ways to cut layers and to share workers, and random small profiles in whole numbers."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from hypothesis import strategies as st

from pipekit.profiling import LayerProfile, Profile


def splits(items: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield every tuple of ``parts`` numbers, 1 or more each, that sum to ``items``."""
    for edges in combinations(range(1, items), parts - 1):
        yield tuple(b - a for a, b in pairwise([0, *edges, items]))


def sums(costs: Sequence[float], split: Sequence[int]) -> list[float]:
    """Return the sum of the costs of each part."""
    ends = [sum(split[:part]) for part in range(len(split) + 1)]
    return [sum(costs[a:b]) for a, b in pairwise(ends)]


_number = st.integers(0, 20).map(float)

layers = st.builds(
    LayerProfile,
    name=st.just("layer"),
    forward_s=_number,
    backward_s=_number,
    output_bytes=_number,
    parameter_bytes=_number,
    saved_bytes=_number,
    saves_output=st.booleans(),
    buffer_bytes=st.integers(0, 3).map(float),
    update_s=st.integers(0, 2).map(float),
)


def profiles(max_layers: int) -> st.SearchStrategy[Profile]:
    """Return profiles of 1 to ``max_layers`` layers."""
    return st.builds(
        Profile,
        layers=st.lists(layers, min_size=1, max_size=max_layers).map(tuple),
        rows=st.just(4),
        input_bytes=_number,
    )
