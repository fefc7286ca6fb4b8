"""What a layer costs, when nobody has profiled it."""

from collections.abc import Sequence

from torch import nn


def layer_costs(model: nn.Sequential, flops: Sequence[int]) -> list[float]:
    """Return each layer's share of the parameters plus its share of the operations."""
    parameters = [sum(p.numel() for p in layer.parameters()) for layer in model]
    return [
        p / max(1, sum(parameters)) + f / max(1, sum(flops))
        for p, f in zip(parameters, flops, strict=True)
    ]
