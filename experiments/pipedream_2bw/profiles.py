"""What PipeDream-2BW's section 5 and its figures fix, as data, and what its GPTs cost on a V100.

The text prints no dimensions (:data:`pipekit.models.LAYOUTS` are ours) and no bandwidths
(:func:`.two_bw_v100` has the makers').  Products run at the rate with which a whole model attains
the 45 TFLOP/s that section 5 prints; what moves more bytes takes these over three quarters of the
memory's bandwidth.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pandas as pd
import torch
from scipy.optimize import brentq
from torch import nn

from experiments import study
from pipekit.clusters import V100
from pipekit.models import LAYOUTS, gpt
from pipekit.profiling import Profile

SIZES = "1.3B", "2.2B", "3.8B"
"""Of the GPTs, by their names in :data:`pipekit.models.LAYOUTS`; "Models" in section 5 prints
3.9 billion for the largest, the rest of the paper 3.8."""

SEQUENCE = 512  # tokens of a sequence (section 5.2)

DTYPE = "float16"
"""Of weights, activations and gradients: "mixed precision" (section 5, "Implementation")."""

FLOPS = 45e12  # FLOP/s that one V100 attained on the 355M GPT (section 5, "Implementation")

WEIGHT_BYTES = 2
STATE_BYTES = 12
"""Bytes of a parameter that Adam reads and writes in mixed precision: a weight and two moments of
4 each (Micikevicius et al., "Mixed Precision Training", ICLR 2018)."""

# The authors' adaption of Megatron (section 5, "Implementation"), which settles what a worker holds
# wherever the paper's formulas (3.1) leave it open; files below are of its folder
# https://github.com/msr-fiddle/pipedream/tree/9fa62318cec0/megatron/megatron

PARAMETER_BYTES, VERSION_BYTES = 20, 4
"""Of a parameter (optimizer/optimizer.py, FP16OptimizerWithFP16Params): a weight and a gradient of
2 each, and in float32 weight, gradient and Adam's two moments. A further weight version is one more
float32 copy: 24 with 2BW."""

OPTIMIZER_STATES = (PARAMETER_BYTES + VERSION_BYTES) / WEIGHT_BYTES - 3
"""2BW's bytes as planners count them: in tensors as large as the weights, beside two versions and
a gradient."""

LOSS_BYTES = 4
"""Of a logit that a microbatch keeps from its forward to its backward: the loss turns float32
logits into probabilities, in place (Megatron-LM, mpu/cross_entropy.py), after the transformer's
layers, which alone are recomputed (model/transformer.py, _checkpointed_forward)."""


class Panel(NamedTuple):
    """A panel of Figure 6: which GPT on how many servers of 8 V100s each."""

    model: str
    servers: int
    depth: int  # stages of a pipeline, d, and ways of model parallelism (section 5.2)
    batches: tuple[int, int]  # global, in sequences


FIGURE6: Mapping[str, Panel] = {
    "a": Panel("2.2B", servers=1, depth=8, batches=(64, 256)),
    "b": Panel("2.2B", servers=8, depth=8, batches=(512, 2048)),
    "c": Panel("3.8B", servers=8, depth=16, batches=(512, 2048)),
}
"""By letter.  The text prints panel c's caption, a batch of 2048 (5.2), of 64 on 8 GPUs (5.3) and a
tick of 256: 8 or 32 sequences a GPU in every panel, if the three belong together.  Models and
depths of a and b are section 5.2's; the smaller batch is taken to have g = 1 (m = d g)."""

FIGURE8 = ((4, 1), (8, 1), (8, 32))
"""(d, b) of the GPT with 1.3B on 64 GPUs.  Section 5.4 prints d = 4, d = 8 and b = 32; the smaller
microbatch is lost in the text, and 1 is the smallest there is."""


ProfileOf = Callable[[str, int], Profile]
"""From a size of :data:`LAYOUTS` and the sequences of a microbatch."""

MEMORY_EFFICIENCY = 0.75
_BYTES_S = V100.memory_bandwidth * MEMORY_EFFICIENCY

ADDING_BYTES = 3 * WEIGHT_BYTES
"""A parameter: a microbatch's gradient and the batch's sum so far are read, and the sum written."""

UPDATING_BYTES = WEIGHT_BYTES + 2 * STATE_BYTES + WEIGHT_BYTES
"""A parameter: Adam reads the gradient, reads and writes its state, and writes the weight."""

SCORES_BYTES = 5
"""A score of attention that is not one fused kernel, as it was not in 2020: the softmax, a dropout
mask and the dropped softmax are saved (Korthikanti et al., "Reducing Activation Recomputation in
Large Transformer Models", 2022, section 4.1)."""


def gpt_profile(size: str, rows: int = 1, make: Callable[..., nn.Sequential] = gpt) -> Profile:
    """Return what a microbatch costs, of so many sequences, for a GPT of :data:`LAYOUTS`.

    What gradients and updates move is counted, whatever the rows.
    """

    def second(layers: pd.DataFrame) -> "pd.Series[float]":  # of moving a byte of each parameter
        return layers["parameter_bytes"] / WEIGHT_BYTES / _BYTES_S

    return study.with_costs(
        _one_row(make, size, efficiency()).scaled(rows),
        backward_s=lambda layers: layers["backward_s"] + ADDING_BYTES * second(layers),
        update_s=lambda layers: UPDATING_BYTES * second(layers),
    )


def headless_profile(size: str, rows: int) -> Profile:
    """Return a GPT's costs as if its last layer, the logits, took no time."""
    profile = gpt_profile(size, rows)
    *layers, head = profile.layers
    return replace(profile, layers=(*layers, replace(head, forward_s=0.0, backward_s=0.0)))


@cache
def efficiency() -> float:
    """Return the part of a V100's peak at which the 355M GPT's passes attain what 5 prints."""

    def attained(part: float) -> float:
        profile = _one_row(gpt, "355M", part)
        seconds = profile.forward_s + profile.backward_s
        return 3 * sum(layer.flops for layer in profile.layers) / seconds

    return float(brentq(lambda part: attained(part) - FLOPS, 0.2, 1, xtol=1e-4))


@cache
def _one_row(make: Callable[..., nn.Sequential], size: str, part: float) -> Profile:
    """Return one sequence's profile, extrapolated from a block at a part of the peak."""
    layers, hidden, heads = LAYOUTS[size]
    with torch.device("meta"):
        one = make(1, hidden, heads, sequence=SEQUENCE, dropout=0.0)
        tokens = torch.zeros(1, SEQUENCE, dtype=torch.int64)
    profile = Profile.analytic(
        one, tokens, V100, dtype=DTYPE, efficiency=part, memory_efficiency=MEMORY_EFFICIENCY
    )
    before, block, *norm, head = profile.layers
    block = replace(block, saved_bytes=block.saved_bytes + SCORES_BYTES * heads * SEQUENCE**2)
    probabilities = LOSS_BYTES / WEIGHT_BYTES * head.output_bytes
    head = replace(head, saved_bytes=head.saved_bytes + probabilities)
    numbered = enumerate((before, *[block] * layers, *norm, head))
    named = (replace(each, name=f"{n} {each.name.split()[1]}") for n, each in numbered)
    return replace(profile, layers=tuple(named))
