"""A model cut into stages."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from torch import nn


def cut(layers: nn.Sequential, balance: Sequence[int]) -> list[nn.Sequential]:
    """Return stages of so many layers each; the layers are the model's own."""
    return [layers[first:behind] for first, behind in pairwise([0, *accumulate(balance)])]
