"""Two ways to profile a configuration: as a whole, or from one block (section 4)."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from pipekit.models import gpt, token_loss
from pipekit.models.transformer import Block


class Errors(NamedTuple):
    """How far predictions are from a step's measured time.

    Attributes:
        whole: relative error of an earlier measurement of the whole step.
        block: of the model with a single block, plus the other blocks at one block's price.
        profiling_s: seconds that the whole step's measurement took.
    """

    whole: float
    block: float
    profiling_s: float


def prediction_errors(
    *, layers: int, hidden: int, heads: int, vocabulary: int, tokens: int, rows: int, repeats: int
) -> Errors:
    """Measure a GPT's training step, and predict it in both ways, in turns.

    On one core, in its own seconds: what other programs take of it does not count.

    Args:
        layers: blocks of the GPT.
        hidden: of the GPT.
        heads: of the GPT.
        vocabulary: of the GPT.
        tokens: of a sequence.
        rows: sequences of a microbatch.
        repeats: of each measurement, of which the fastest counts.
    """
    x = torch.randint(vocabulary, (rows, tokens))
    features = torch.randn(rows, tokens, hidden, requires_grad=True)

    def step(model: nn.Sequential) -> Callable[[], object]:
        return lambda: token_loss(model(x), x).backward()

    whole, one = (gpt(n, hidden, heads, vocabulary, tokens) for n in (layers, 1))
    block = Block(hidden, heads, causal=True, norm="pre")
    parts: list[Callable[[], object]] = [
        step(whole),
        step(one),
        lambda: block(features).sum().backward(),
        step(whole),
    ]
    took = torch.tensor([[_seconds(part) for part in parts] for _ in range(1 + repeats)])[1:]
    profiled, single, a_block, actual = took.min(dim=0).values.tolist()
    extrapolated = single + (layers - 1) * a_block
    return Errors(
        abs(profiled / actual - 1), abs(extrapolated / actual - 1), float(took[:, 0].sum())
    )


def _seconds(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start
