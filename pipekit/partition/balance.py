"""How to cut a row of layers into stages of consecutive layers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def balance_by_cost(costs: Sequence[float], stages: int) -> list[int]:
    """Return how many layers each stage gets, one or more, so that the costliest costs least.

    Of several best splits it is the one with the shortest first stage, its rest being split best.
    """
    require_stages(stages, len(costs))
    return best_split(stage_sums(costs), stages, np.maximum)


def best_split(stage_costs: Floats, stages: int, combine: Any) -> list[int]:
    """Return how many layers each stage gets, such that the combined costs are least.

    ``stage_costs[i, j]`` is the cost of layers i to j - 1 as one stage, infinite where j <= i, or
    ``stage_costs[s, i, j]`` that of stage s; ``combine`` is ``np.maximum`` or ``np.add``, over the
    costs of all stages.
    """
    costs = np.broadcast_to(stage_costs, (stages, *stage_costs.shape[-2:]))
    layers = costs.shape[-1] - 1
    best = np.full((stages + 1, layers + 1), np.inf)  # [s, i]: layers from i on in stages from s on
    best[stages, layers] = 0
    for stage in reversed(range(stages)):
        best[stage] = combine(costs[stage], best[stage + 1]).min(axis=1)
    split, first = [], 0
    for stage in range(stages):
        stop = int(combine(costs[stage, first], best[stage + 1]).argmin())
        split.append(stop - first)
        first = stop
    return split


def stage_sums(costs: Sequence[float]) -> Floats:
    """Return the sum of every run of items: ``[i, j]`` of items i to j - 1, infinite if j <= i."""
    until = np.concatenate([[0.0], np.cumsum(np.asarray(costs, dtype=float))])
    sums: Floats = until[None, :] - until[:, None]
    sums[np.tril_indices(len(until))] = np.inf
    return sums


def require_stages(stages: int, layers: int) -> None:
    """Raise ValueError if there are more stages than layers, or none."""
    if stages < 1:
        raise ValueError(f"layers cannot be split into {stages} stages: ask for at least 1")
    if stages > layers:
        raise ValueError(
            f"{stages} stages need at least {stages} layers, and the model has {layers}: "
            f"use at most {layers} stages"
        )
