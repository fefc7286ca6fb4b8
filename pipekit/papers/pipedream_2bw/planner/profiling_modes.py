"""Two ways to profile a configuration: as a whole, or from one block (section 4)."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from pipekit.models import gpt, token_loss
from pipekit.models.transformer import Block
from pipekit.papers.pace import in_turns


class Errors(NamedTuple):
    """Relative errors of predictions of a step's time, and the seconds that profiling took.

    ``whole`` is that of an earlier measurement of the whole step, ``block`` that of the model with
    a single block, plus the other blocks at one block's price.
    """

    whole: float
    block: float
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
    """Measure a GPT's step on one core, in its own seconds, and predict it in both ways."""
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
    profiled, single, a_block, actual = took.min(axis=0)
    extrapolated = single + (layers - 1) * a_block
    return Errors(abs(profiled / actual - 1), abs(extrapolated / actual - 1), took[:, 0].sum())
