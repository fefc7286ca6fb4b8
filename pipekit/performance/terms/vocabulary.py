"""Passes of the embedding on the first stage, and of head and loss on the last."""

import math

from pipekit.performance.terms.kernels import PassCosts, total
from pipekit.performance.training import TrainingSetup

_MULTIPLE = 128  # of which a rank's padded vocabulary is one (Megatron-LM's default)
_EMBEDDING_LAUNCHES, _HEAD_LAUNCHES = 5, 30  # of each pass, in frameworks without fused losses


def vocabulary(run: TrainingSetup) -> float:
    """Return how many tokens' logits a rank computes."""
    tp = run.layout.tp
    if tp == 1 and not run.framework.pads_vocabulary:
        return run.shape.vocabulary
    return math.ceil(run.shape.vocabulary / (_MULTIPLE * tp)) * _MULTIPLE


def embedding(run: TrainingSetup) -> PassCosts:
    """Return the passes of the embedding: rows gathered, scattered, and its gradient added."""
    moved = 8 * run.tokens * run.shape.token_numbers
    added = run.framework.accumulation_bytes * vocabulary(run) * run.shape.token_numbers
    launches = PassCosts(0, 0, _EMBEDDING_LAUNCHES, _EMBEDDING_LAUNCHES)
    return total(run.kernels.both(moved, moved + added), launches)


def head(run: TrainingSetup) -> PassCosts:
    """Return the passes of the logits and of the loss, whose sums go over tp."""
    dtype = "" if run.dtype == "float16" else "bfloat16"
    logits = run.tokens * vocabulary(run)
    linear = run.kernels.linear(run.tokens, run.shape.token_numbers, vocabulary(run), dtype=dtype)
    forward, backward = run.framework.logit_bytes
    loss = run.kernels.both(forward * logits, backward * logits)
    sums = 0.0
    if not run.framework.sequence_parallel:
        sums = 3 * run.links.all_reduce(run.layout.tp, 4 * run.tokens)
    back = run.tensor_parallel().backward_s
    return total(linear, loss, PassCosts(sums, back, _HEAD_LAUNCHES, _HEAD_LAUNCHES))
