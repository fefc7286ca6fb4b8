"""A stage is the composition of neighbouring layers (torchgpipe, section 2.1)."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import torch
from torch import Tensor, nn

from experiments.study.differences import TakeGradient
from pipekit.engine import Pipeline
from pipekit.schedules import gpipe


def differing_compositions(model: nn.Sequential, inputs: Tensor, stages: Sequence[int]) -> int:
    """Return in how many splits the pipeline's output is not, to the bit, the unsplit model's.

    A stage is the composition of some neighbours of the layers f_1, ..., f_L (3.1).  All contiguous
    splits into so many stages are tried; inputs are [B, ...].
    """
    with torch.no_grad():
        expected = model.eval()(inputs)
    differing = 0
    for count in stages:
        for balance in _splits(len(model), count):
            pipeline = Pipeline(
                model, gpipe(count, 1), balance=balance, optimizer=TakeGradient, loss=nn.MSELoss()
            )
            unlike = pipeline.evaluate([(inputs, expected)], lambda y, e: (y != e).float().mean())
            differing += unlike != 0
    return differing


def _splits(layers: int, stages: int) -> list[list[int]]:
    """Return every contiguous split of so many layers into stages of at least one."""
    cuts = combinations(range(1, layers), stages - 1)
    return [[b - a for a, b in pairwise((0, *own, layers))] for own in cuts]
