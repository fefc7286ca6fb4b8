"""A microbatch whose sequence runs in chunks: each one reads what the chunks before it have left.

A causal layer attends to the tokens before its own, so that a chunk needs keys and values of the
earlier chunks, and their gradients come back from the later ones (Seq1F1B, Sun et al.,
arXiv 2406.03488, section 3.2; TeraPipe, Li et al., ICML 2021, section 3.2)::

    k = with_earlier(self, "keys", k, dim=2)
    v = with_earlier(self, "values", v, dim=2)

Outside of chunks a sequence is whole, and all of this changes nothing.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn


class _Left:
    """The tensors that the chunks of a sequence have left of one kind, and their gradients."""

    def __init__(self) -> None:
        self.pieces: dict[int, Tensor] = {}  # by chunk
        # Likewise, from each later chunk.
        self.gradients: defaultdict[int, dict[int, Tensor]] = defaultdict(dict)


class ChunkedSequence:
    """What the chunks of a microbatch have left on a stage, from first forward to last backward."""

    def __init__(self) -> None:
        self.left: defaultdict[tuple[nn.Module, str], _Left] = defaultdict(_Left)
        self.tokens: defaultdict[nn.Module, dict[int, int]] = defaultdict(dict)


class _Now(threading.local):
    sequence: ChunkedSequence | None = None
    chunk = 0


_now = _Now()


@contextmanager
def running(sequence: ChunkedSequence, chunk: int) -> Iterator[None]:
    """Let this thread's forwards be those of a chunk, counted from 0, for a while."""
    before = _now.sequence, _now.chunk
    _now.sequence, _now.chunk = sequence, chunk
    try:
        yield
    finally:
        _now.sequence, _now.chunk = before


def with_earlier(layer: nn.Module, name: str, piece: Tensor, dim: int) -> Tensor:
    """Return a chunk's tensor behind those of the earlier chunks, and leave it for later ones.

    The ``piece`` has the chunk's tokens along ``dim``; ``name`` tells it from the layer's others.
    Its gradient is the sum of the later chunks', from the last one on, and then its own.
    """
    if _now.sequence is None:
        return piece
    joined: Tensor = _Joined.apply(piece, _now.sequence.left[layer, name], _now.chunk, dim)
    return joined


def earlier_tokens(layer: nn.Module, tokens: int) -> int:
    """Return how many tokens the earlier chunks had in a layer, which now has ``tokens`` more."""
    if _now.sequence is None:
        return 0
    each = _now.sequence.tokens[layer]
    each[_now.chunk] = tokens
    return sum(each[chunk] for chunk in range(_now.chunk))


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, piece: Tensor, left: _Left, chunk: int, dim: int) -> Tensor:
        earlier = [left.pieces[n] for n in range(chunk)]
        ctx.left, ctx.chunk, ctx.dim = left, chunk, dim
        ctx.sizes = [each.shape[dim] for each in (*earlier, piece)]
        left.pieces[chunk] = piece.detach()
        return torch.cat((*earlier, piece), dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        *earlier, own = gradient.split(ctx.sizes, ctx.dim)
        for chunk, each in enumerate(earlier):
            ctx.left.gradients[chunk][ctx.chunk] = each
        later = ctx.left.gradients[ctx.chunk]
        from_last = [later[chunk] for chunk in sorted(later, reverse=True)]
        return reduce(add, [*from_last, own]), None, None, None


_ACROSS = nn.MultiheadAttention, nn.RNNBase, nn.Conv1d


def require_chunkable(model: nn.Module) -> None:
    """Raise ValueError for a layer that reads other tokens, or says ``reads_all_tokens``."""
    for name, module in model.named_modules():
        if isinstance(module, _ACROSS) or getattr(module, "reads_all_tokens", False):
            raise ValueError(
                f"layer {name} ({type(module).__name__}) reads other tokens than its chunk's: use "
                f"a causal one that calls pipekit.layers.sequence_chunks.with_earlier, as "
                f"models.gpt's are, or a schedule of whole sequences"
            )
