"""Two ways to profile a configuration: as a whole, or from one block (section 4)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from experiments.study.timing import in_turns
from pipekit.models import gpt, token_loss
from pipekit.models.transformer import Block

ERRORS = 5
"""Of each way, found from as many steps each, so that their spread is known."""


class Errors(NamedTuple):
    """Relative errors of predictions of a step's time, and the seconds that profiling took.

    ``whole`` are those of an earlier measurement of the whole step, ``block`` those of the model
    with a single block, plus the other blocks at one block's price.
    """

    whole: list[float]
    block: list[float]
    profiling_s: float


def prediction_errors(
    *,
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int,
    tokens: int,
    rows: int,
    repeats: int,
    seed: int = 0,
) -> Errors:
    """Measure a GPT's step on one core, in its own seconds, and predict it in both ways.

    Args:
        layers: its blocks; the others are a GPT's, too.
        repeats: how often each is measured, at least :data:`ERRORS`.
    """
    torch.manual_seed(seed)
    x = torch.randint(vocabulary, (rows, tokens))
    features = torch.randn(rows, tokens, hidden, requires_grad=True)
    block = Block(hidden, heads, causal=True, norm="pre")

    def step(count: int) -> Callable[[], object]:
        model = gpt(count, hidden, heads, vocabulary, tokens)
        return lambda: token_loss(model(x), x).backward()

    whole = step(layers)
    parts = [whole, step(1), lambda: block(features).sum().backward(), whole]
    took = in_turns(parts, 1 + repeats)[1:]
    whole_errors, block_errors = [], []
    for some in np.array_split(took, ERRORS):
        profiled, single, a_block, actual = some.min(axis=0)
        whole_errors.append(float(abs(profiled / actual - 1)))
        block_errors.append(float(abs((single + (layers - 1) * a_block) / actual - 1)))
    return Errors(whole_errors, block_errors, float(took[:, 0].sum()))
