"""Searching for the largest AmoebaNet-D that fits, as GPipe's section 4.1 does."""

from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from pipekit.papers.gpipe.memory import (
    BUDGET_BYTES,
    GB,
    Cut,
    Setting,
    amoebanet,
    fullest,
)

DEPTHS = (6, 12, 24, 48)
"""L to search: doubled from that of the published AmoebaNet-D; the table has the first three."""

FILTERS = range(16, 1601, 16)
"""F to search: the table's are all multiples of 16."""


def next_size(layers: int, filters: int) -> tuple[int, int]:
    """Return the next larger (L, F) of the search: F a step further."""
    return layers, filters + FILTERS.step


def largest(candidates: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the largest of increasing candidates that fits, or None if none does.

    Args:
        candidates: to try.
        fits: whether one does; whatever is smaller than one that fits must fit too.
    """
    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        if fits(candidates[middle]):
            low = middle + 1
        else:
            high = middle
    return candidates[low - 1] if low else None


def search(
    setting: Setting,
    cut: Cut = "computation",
    *,
    budget_bytes: float = BUDGET_BYTES,
    depths: Iterable[int] = DEPTHS,
) -> pd.DataFrame:
    """Return the widest AmoebaNet-D of each depth that fits, the largest network first.

    Args:
        setting: how it is trained.
        cut: how it is cut.
        budget_bytes: of an accelerator.
        depths: L to try, each with all :data:`FILTERS`.

    Returns:
        A row a depth at which any fits: layers (L), filters (F), parameters, fullest (GB of the
        fullest accelerator).
    """
    rows = []
    for depth in depths:

        def gb(width: int, depth: int = depth) -> float:
            return fullest(amoebanet(depth, width), setting, cut)

        width = largest(FILTERS, lambda width: gb(width) * GB <= budget_bytes)
        if width is not None:
            rows.append((depth, width, amoebanet(depth, width).parameter_bytes / 4, gb(width)))
    frame = pd.DataFrame(rows, columns=["layers", "filters", "parameters", "fullest"])
    return frame.sort_values("parameters", ascending=False, ignore_index=True)
