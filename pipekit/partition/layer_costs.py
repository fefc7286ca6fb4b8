"""What a layer costs, when nobody has profiled it."""

from collections.abc import Sequence

from torch import nn


def layer_costs(model: nn.Sequential, flops: Sequence[int]) -> list[float]:
    """Return each layer's operations for a microbatch, by which stages are balanced.

    A backward takes twice a forward's, and adds one number to the gradient of each parameter that
    is trained.  What memory alone limits (poolings, activation functions) counts nothing here; a
    profile knows of it.  The parameters' bytes do not count either: most of a small convolutional
    network's are in a linear layer that takes little time.

    Args:
        model: the layers.
        flops: floating-point operations of each one's forward.
    """
    trained = [sum(p.numel() for p in layer.parameters() if p.requires_grad) for layer in model]
    return [3.0 * f + p for f, p in zip(flops, trained, strict=True)]
