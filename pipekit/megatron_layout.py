"""Megatron-LM's strings for ``--pipeline-model-parallel-layout``: which layers each stage has.

A letter is a layer: E the embedding, t a transformer block, m one that predicts further tokens
(MTP), L the output with the loss.  Stages are separated by ``|``, commas mean nothing, and ``t*3``
is ttt.  (NVIDIA/Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py, read at
commit 00caa53.)
"""

from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise


def write_layout(balance: Sequence[int], predictors: int = 0) -> str:
    """Return the string for a number of layers each stage, with MTP layers before the output."""
    blocks = sum(balance) - 2 - predictors
    if blocks < 0 or predictors < 0:
        raise ValueError(
            f"{sum(balance)} layers are too few for an embedding, {predictors} MTP layers and an "
            f"output"
        )
    letters = "E" + "t" * blocks + "m" * predictors + "L"
    stages = [letters[a:b] for a, b in pairwise(accumulate(balance, initial=0))]
    homes = [number for number, stage in enumerate(stages) if "m" in stage]
    if len(homes) > 1:
        raise ValueError(
            f"MTP layers are in stages {homes[0]} and {homes[1]}: Megatron-LM wants all in one"
        )
    runs = [[(letter, len([*run])) for letter, run in groupby(stage)] for stage in stages]
    return "|".join(
        ",".join(letter if count == 1 else f"{letter}*{count}" for letter, count in stage)
        for stage in runs
    )
