"""What the paper's GPTs cost on one of its V100s, reckoned from one block (section 4, Appendix A).

A matrix product runs at the 45 TFLOP/s that section 5 prints for a whole model; whatever moves more
bytes than that takes its bytes over three quarters of the memory's bandwidth.
"""

from dataclasses import replace
from functools import cache

import torch
from torch import nn

from pipekit.clusters import V100
from pipekit.models import bert_large, gpt
from pipekit.models.gpt import LAYOUTS
from pipekit.profiling import LayerProfile, Profile
from pipekit.reproduction.pipedream_2bw.settings import (
    DTYPE,
    EFFICIENCY,
    SEQUENCE,
    STATE_BYTES,
    WEIGHT_BYTES,
)

MEMORY_EFFICIENCY = 0.75
_BYTES_S = V100.memory_bandwidth * MEMORY_EFFICIENCY

ADDING_BYTES = 3 * WEIGHT_BYTES
"""A parameter: a microbatch's gradient and the batch's sum so far are read, and the sum written."""

UPDATING_BYTES = WEIGHT_BYTES + 2 * STATE_BYTES + WEIGHT_BYTES
"""A parameter: Adam reads the gradient, reads and writes its state, and writes the weight."""


@cache
def gpt_profile(size: str, rows: int = 1) -> Profile:
    """Return what a microbatch costs, of so many sequences, for a GPT of :data:`LAYOUTS`.

    Raises:
        KeyError: there is no such size.
    """
    layers, hidden, heads = LAYOUTS[size]
    one = gpt(1, hidden, heads, sequence=SEQUENCE, device="meta")
    return _repeated(one, layers, rows, heads)


@cache
def bert_profile(size: str, rows: int = 1) -> Profile:
    """Return the same for a BERT with the blocks of that GPT (section 5.2: "results are similar").

    Raises:
        KeyError: there is no such size.
    """
    layers, hidden, heads = LAYOUTS[size]
    one = bert_large(1, hidden, heads, sequence=SEQUENCE, dropout=0.0, device="meta")
    return _repeated(one, layers, rows, heads)


def _repeated(one: nn.Sequential, layers: int, rows: int, heads: int) -> Profile:
    """Return the profile of a model with so many of the block that ``one`` has once, as layer 1."""
    with torch.device("meta"):
        tokens = torch.zeros(rows, SEQUENCE, dtype=torch.int64)
    profile = Profile.analytic(
        one,
        tokens,
        V100,
        dtype=DTYPE,
        efficiency=EFFICIENCY,
        memory_efficiency=MEMORY_EFFICIENCY,
    )
    before, block, *after = profile.layers
    block = replace(block, saved_bytes=block.saved_bytes + _scores_bytes(rows, heads))
    return replace(
        profile,
        layers=tuple(
            _with_updates(replace(layer, name=f"{number} {layer.name.split()[1]}"))
            for number, layer in enumerate([before, *[block] * layers, *after])
        ),
    )


def _scores_bytes(rows: int, heads: int) -> float:
    """Return what attention saves of its scores when it is not one fused kernel, as in 2020.

    5 a s^2 bytes a row: the softmax, a dropout mask and the dropped softmax (Korthikanti et al.,
    "Reducing Activation Recomputation in Large Transformer Models", 2022, section 4.1).
    """
    return 5 * rows * heads * SEQUENCE**2


def _with_updates(layer: LayerProfile) -> LayerProfile:
    parameters = layer.parameter_bytes / WEIGHT_BYTES
    return replace(
        layer,
        backward_s=layer.backward_s + ADDING_BYTES * parameters / _BYTES_S,
        update_s=UPDATING_BYTES * parameters / _BYTES_S,
    )
