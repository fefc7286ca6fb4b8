"""simumax: Megatron-Core on one node of B200, by kernels that SimuMax timed one by one (v1.2)."""

import math
from dataclasses import dataclass
from functools import cache

from experiments.published.published_set import Measured, Prediction, PublishedSet, Values
from experiments.published.sets.simumax_system import System, system
from pipekit.choices import require_choice
from pipekit.performance.collectives import Links
from pipekit.performance.constants import Constants, fitted
from pipekit.performance.devices import machine
from pipekit.performance.frameworks import MEGATRON_CORE
from pipekit.performance.kernels import Passes, total
from pipekit.performance.layout import Layout
from pipekit.performance.predict import step
from pipekit.performance.shapes import (
    MLP,
    Attention,
    Block,
    Experts,
    LatentAttention,
    Shape,
    llama,
)
from pipekit.performance.step import Step, in_flight
from pipekit.performance.training import Training

_LAYER_KERNELS, _EXPERT_KERNELS = 20, 6
"""That a layer waits for, forward and backward, and for each local expert more."""
_GRADIENT_BYTES, _WEIGHT_BYTES = 4, 2
_STATE_BYTES = 12  # of a shard: float32 weight and Adam's moments
_UPDATE_BYTES, _CLEAR_BYTES = 34, 4
"""Moved for each weight of a shard by its norm and by Adam; and for each weight to clear gradients."""
_LOGIT_BYTES = 6  # bfloat16, and its float32 softmax


def _dense(name: str, hidden: int, heads: int, kv_heads: int, width: int) -> Shape:
    return llama(name, hidden, heads, kv_heads, width, 1, 128256)


def _deepseek(name: str, hidden: int, width: int, experts: Experts, vocabulary: int) -> Shape:
    attention = LatentAttention(128, 1536, 512)
    blocks = ((attention, MLP(width)), 1), ((attention, experts), 1)
    return Shape(name, hidden, vocabulary, blocks)


_SHAPES = {
    each.name: each
    for each in (
        _dense("llama3-70b", 8192, 64, 8, 28672),
        _dense("llama3-405b", 16384, 128, 16, 53248),
        _deepseek("deepseekv2", 5120, 12288, Experts(160, 6, 1536, shared_width=3072), 102400),
        _deepseek("deepseekv3", 7168, 18432, Experts(256, 8, 2048, shared_width=2048), 129280),
    )
}
"""Papers' shapes, but 16 key heads of Llama 3 405B as in SimuMax's tables; the DeepSeeks have one
dense layer, all others are the last kind of block."""


@dataclass(frozen=True)
class Run:
    """A row: a model cut short, and its degrees."""

    row_id: str
    model: str
    layers: int
    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    microbatches: int
    micro_batch_samples: int
    seq_tokens: int

    @property
    def shape(self) -> Shape:
        """The model, with as many blocks as it was cut to."""
        require_choice("model", self.model, _SHAPES)
        known = _SHAPES[self.model]
        *first, (last, _) = known.blocks
        blocks = (*first, (last, self.layers - len(first)))
        return Shape(known.name, known.hidden, known.vocabulary, blocks)

    @property
    def layout(self) -> Layout:
        """The degrees; ValueError if experts do not divide over them."""
        return Layout(
            tp=self.tp,
            cp=self.cp,
            ep=self.ep,
            pp=self.pp,
            dp=self.dp,
            microbatch_samples=self.micro_batch_samples,
            microbatches=self.microbatches,
            zero=1,
        )

    @property
    def tokens(self) -> int:
        """Of a microbatch on a rank."""
        return self.micro_batch_samples * self.seq_tokens // self.cp

    @property
    def stages(self) -> list["_Stage"]:
        """The blocks of each stage, equally many."""
        blocks = [block for block, count in self.shape.blocks for _ in range(count)]
        edges = [stage * len(blocks) // self.pp for stage in range(self.pp + 1)]
        last = self.pp - 1
        return [
            _Stage(self, tuple(blocks[a:b]), stage == 0, stage == last)
            for stage, (a, b) in enumerate(zip(edges, edges[1:], strict=False))
        ]


@dataclass(frozen=True)
class _Stage:
    """A pipeline stage of a row on each of its ranks; bytes and weights are a rank's."""

    row: Run
    blocks: tuple[Block, ...]
    first: bool
    last: bool

    @property
    def experts(self) -> list[Experts]:
        return [layer for block in self.blocks for layer in block if isinstance(layer, Experts)]

    @property
    def tables(self) -> float:
        """Weights of embedding and head."""
        shape = self.row.shape
        return (self.first + self.last) * shape.vocabulary * shape.hidden / self.row.tp

    @property
    def weights(self) -> tuple[float, float]:
        """All but those of experts, and those."""
        hidden = self.row.shape.hidden
        dense = sum(layer.parameters(hidden) for block in self.blocks for layer in block)
        expert = sum(layer.expert_parameters(hidden) for layer in self.experts)
        return dense / self.row.tp + self.tables, expert / self.row.ep

    @property
    def shards(self) -> float:
        """Weights whose optimizer states a rank holds."""
        dense, expert = self.weights
        return dense / (self.row.dp * self.row.cp) + expert / self.row.layout.expert_replicas

    @property
    def kernels(self) -> float:
        """Kernels of a microbatch that the host is late with."""
        local = sum(layer.count / self.row.ep for layer in self.experts)
        return len(self.blocks) * _LAYER_KERNELS + local * _EXPERT_KERNELS
