"""Which layers make which stage, when the user does not say."""

from collections.abc import Sequence
from functools import cache

from torch import nn


def layer_costs(model: nn.Sequential, flops: Sequence[int]) -> list[float]:
    """Return each layer's share of the parameters plus its share of the operations."""
    parameters = [sum(p.numel() for p in layer.parameters()) for layer in model]
    return [
        p / max(1, sum(parameters)) + f / max(1, sum(flops))
        for p, f in zip(parameters, flops, strict=True)
    ]


def balance_by_cost(costs: Sequence[float], stages: int) -> list[int]:
    """Return how many layers each stage gets, such that the dearest stage is as cheap as can be.

    Every stage gets at least one layer; of several best splits, the one with the shortest first
    stages is returned.

    Raises:
        ValueError: there are more stages than layers.
    """
    if stages > len(costs):
        raise ValueError(
            f"{stages} stages need at least {stages} layers, and the model has {len(costs)}: "
            f"use at most {len(costs)} stages"
        )

    @cache
    def best(first: int, left: int) -> tuple[float, tuple[int, ...]]:
        if left == 1:
            return sum(costs[first:]), (len(costs) - first,)
        options = []
        for layers in range(1, len(costs) - first - left + 2):
            rest, split = best(first + layers, left - 1)
            options.append((max(sum(costs[first : first + layers]), rest), (layers, *split)))
        return min(options)

    return list(best(0, stages)[1])
