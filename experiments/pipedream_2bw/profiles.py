"""What the paper's GPTs cost on one of its V100s, estimated from one block (section 4, Appendix A).

Matrix products run at the rate with which a whole model attains the 45 TFLOP/s that section 5
prints; whatever moves more bytes than that takes its bytes over three quarters of the memory's
bandwidth. A size that :data:`LAYOUTS` has not is a KeyError.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from scipy.optimize import brentq
from torch import nn

from experiments import study
from experiments.pipedream_2bw.settings import (
    DTYPE,
    FLOPS,
    LOSS_BYTES,
    SEQUENCE,
    STATE_BYTES,
    WEIGHT_BYTES,
)
from pipekit.clusters import V100
from pipekit.models import LAYOUTS, bert_large, gpt
from pipekit.profiling import LayerProfile, Profile

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


def gpt_profile(size: str, rows: int = 1) -> Profile:
    """Return what a microbatch costs, of so many sequences, for a GPT of :data:`LAYOUTS`."""
    return _with_weights(_one_row(gpt, size, efficiency()).scaled(rows))


def bert_profile(size: str, rows: int = 1) -> Profile:
    """Return the same for a BERT with the blocks of that GPT (5.2: "results are similar")."""
    return _with_weights(_one_row(bert_large, size, efficiency()).scaled(rows))


def bert_with_gpts_words(size: str, rows: int = 1) -> Profile:
    """Return :func:`bert_profile` with as many words as that GPT has."""
    return _with_weights(_one_row(_WORDY_BERT, size, efficiency()).scaled(rows))


def headless_profile(size: str, rows: int = 1) -> Profile:
    """Return a GPT's costs as if its last layer, the logits, took no time."""
    profile = gpt_profile(size, rows)
    *layers, head = profile.layers
    return replace(profile, layers=(*layers, replace(head, forward_s=0.0, backward_s=0.0)))


_WORDY_BERT = partial(bert_large, vocabulary=51_200)


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
    before, block, *after = profile.layers
    block = replace(block, saved_bytes=block.saved_bytes + SCORES_BYTES * heads * SEQUENCE**2)
    names = [before.name, *(f"{number} Block" for number in range(1, layers + 1))]
    names += [f"{number} {x.name.split()[1]}" for number, x in enumerate(after, layers + 1)]
    *norm, head = after
    probabilities = LOSS_BYTES / WEIGHT_BYTES * head.output_bytes
    head = replace(head, saved_bytes=head.saved_bytes + probabilities)
    repeated = zip([before, *[block] * layers, *norm, head], names, strict=True)
    return replace(profile, layers=tuple(replace(x, name=name) for x, name in repeated))


def _with_weights(profile: Profile) -> Profile:
    """Return a profile with what gradients and updates move, whatever the rows."""

    def second(layer: LayerProfile) -> float:  # of moving a byte of each parameter
        return layer.parameter_bytes / WEIGHT_BYTES / _BYTES_S

    return study.with_costs(
        profile,
        backward_s=lambda layer: layer.backward_s + ADDING_BYTES * second(layer),
        update_s=lambda layer: UPDATING_BYTES * second(layer),
    )
