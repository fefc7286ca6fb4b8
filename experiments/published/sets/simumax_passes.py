"""Passes of a transformer's layers by the kernels that SimuMax timed one by one."""

import math
from dataclasses import dataclass

from experiments.published.sets.simumax_system import System
from pipekit.performance.layout import ParallelLayout
from pipekit.performance.shapes import (
    MLP,
    Attention,
    Experts,
    LatentAttention,
    Layer,
    Shape,
)
from pipekit.performance.terms.kernels import PassCosts, total


@dataclass(frozen=True)
class Rank:
    """What a rank computes of a microbatch of 2-byte numbers."""

    timed: System
    shape: Shape
    layout: ParallelLayout
    seq_tokens: int

    @property
    def tokens(self) -> int:
        """Of a microbatch on a rank."""
        return self.layout.microbatch_samples * self.seq_tokens // self.layout.cp

    @property
    def hidden_bytes(self) -> int:
        """Of the residual stream of a microbatch."""
        return 2 * self.tokens * self.shape.hidden

    def layer(self, layer: Layer) -> PassCosts:
        """Return the passes of a layer; ValueError if nothing like it was timed."""
        match layer:
            case Attention():
                inside = self._attention(layer)
            case LatentAttention():
                inside = self._latent_attention(layer)
            case MLP():
                inside = self._mlp(layer.width)
            case Experts():
                inside = self._experts(layer)
            case _:
                raise ValueError(f"nothing was timed for a layer like {layer}")
        return total([self._around(), *inside])

    def embedding(self) -> PassCosts:
        """Return the passes that gather and scatter rows."""
        return self.timed.moved(2 * self.hidden_bytes, 3 * self.hidden_bytes)

    def head(self) -> PassCosts:
        """Return the passes of logits and fused cross entropy."""
        tp, vocabulary = self.layout.tp, self.shape.vocabulary // self.layout.tp
        logits = 4 * self.tokens * vocabulary
        gather = self.timed.collective("all_gather", self.hidden_bytes, tp)
        return total(
            [
                self.timed.linear(self.tokens, self.shape.hidden, vocabulary),
                self.timed.moved(logits, logits, "ce_fusion"),
                PassCosts(gather, gather),
            ]
        )

    def _around(self) -> PassCosts:
        """Return the passes of norm, residual connection and tensor-parallel collectives."""
        tp = self.layout.tp
        gather = self.timed.collective("all_gather", self.hidden_bytes, tp)
        scatter = self.timed.collective("reduce_scatter", self.hidden_bytes, tp)
        moved = self.timed.moved(5 * self.hidden_bytes / tp, 5 * self.hidden_bytes / tp)
        return total([moved, PassCosts(gather + scatter, 2 * gather + scatter)])

    def _heads(self, heads: int) -> int:
        """Return how many of so many heads a rank has, which cp divides again."""
        if heads % (self.layout.tp * self.layout.cp):
            raise ValueError(
                f"tp {self.layout.tp} x cp {self.layout.cp} does not divide {heads} heads"
            )
        return heads // self.layout.tp

    def _attention(self, layer: Attention) -> list[PassCosts]:
        hidden, tokens, width, cp = self.shape.hidden, self.tokens, layer.head_dim, self.layout.cp
        heads, kv_heads = self._heads(layer.heads), max(layer.kv_heads // self.layout.tp, 1)
        projected = (heads + 2 * kv_heads) * width
        return [
            self.timed.linear(tokens, hidden, projected),
            self.timed.linear(tokens, heads * width, hidden),
            self.timed.scores(self.seq_tokens, heads // cp, max(kv_heads // cp, 1), width, width),
            self.timed.moved(4 * tokens * projected, 4 * tokens * projected),
            self._exchanged(heads * width, heads * width, 2 * kv_heads * width),
        ]

    def _exchanged(self, *widths: int) -> PassCosts:
        """Return the passes in which ranks of a sequence exchange tokens for heads, and back."""
        seconds = sum(
            self.timed.collective("all2all", 2 * self.tokens * width, self.layout.cp)
            for width in widths
        )
        return PassCosts(seconds, seconds)

    def _latent_attention(self, layer: LatentAttention) -> list[PassCosts]:
        hidden, tokens, cp = self.shape.hidden, self.tokens, self.layout.cp
        heads, value = self._heads(layer.heads), layer.head_dim
        key, ranks = value + layer.rope_dim, layer.query_rank + layer.kv_rank
        rotated = 5 * tokens * heads * (2 * key + value)
        return [
            self.timed.linear(tokens, hidden, layer.query_rank),
            self.timed.linear(tokens, layer.query_rank, heads * key),
            self.timed.linear(tokens, hidden, layer.kv_rank + layer.rope_dim),
            self.timed.linear(tokens, layer.kv_rank, heads * 2 * value),
            self.timed.linear(tokens, heads * value, hidden),
            self.timed.scores(self.seq_tokens, heads // cp, heads // cp, key, value),
            self.timed.moved(4 * tokens * ranks, 6 * tokens * ranks),
            self.timed.moved(rotated, rotated),
            self._exchanged(heads * key, heads * key, heads * value, heads * value),
        ]

    def _mlp(self, width: int) -> list[PassCosts]:
        hidden, own, tokens = self.shape.hidden, width // self.layout.tp, self.tokens
        return [
            self.timed.linear(tokens, hidden, 2 * own),
            self.timed.linear(tokens, own, hidden),
            self.timed.moved(6 * tokens * own, 10 * tokens * own),
        ]

    def _experts(self, layer: Experts) -> list[PassCosts]:
        """Return the passes of a mixture: shared expert, router, exchange, grouped products."""
        hidden, ep = self.shape.hidden, self.layout.ep
        visits, local = self.tokens * layer.active, layer.count // ep
        rows = math.ceil(visits / layer.count) * ep
        sent = 2 * visits * hidden
        exchanged = 2 * self.timed.collective("all2all", sent, ep)
        in_order = 4 * sent * (1 + (ep > 1))
        return [
            *self._mlp(layer.shared_width),
            self.timed.linear(self.tokens, hidden, layer.count),
            self.timed.grouped_linear(local, rows, hidden, 2 * layer.width),
            self.timed.grouped_linear(local, rows, layer.width, hidden),
            self.timed.moved(6 * visits * layer.width, 10 * visits * layer.width),
            self.timed.moved(in_order, in_order, "permute"),
            PassCosts(exchanged, exchanged),
        ]
