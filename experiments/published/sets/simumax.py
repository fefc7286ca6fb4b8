"""simumax: Megatron-Core on one node of B200, by kernels that SimuMax timed one by one (v1.2)."""

import math
from dataclasses import dataclass
from itertools import pairwise

from experiments.published.published_set import Measured, Prediction, PublishedSet, Values
from experiments.published.sets.simumax_system import System, system
from pipekit.choices import require_choice
from pipekit.performance.collectives import Links
from pipekit.performance.constants import Constants, fitted
from pipekit.performance.devices import machine
from pipekit.performance.frameworks import MEGATRON_CORE
from pipekit.performance.kernels import Passes, total
from pipekit.performance.layout import Layout
from pipekit.performance.memory import peak_bytes
from pipekit.performance.predict import step
from pipekit.performance.replicas import parameters
from pipekit.performance.shapes import (
    MLP,
    Attention,
    Block,
    Experts,
    LatentAttention,
    Layer,
    Shape,
    llama,
)
from pipekit.performance.step import Step
from pipekit.performance.training import Training

_LAYER_KERNELS, _EXPERT_KERNELS = 20, 6
"""That a layer waits for, forward and backward, and for each local expert more."""
_GRADIENT_BYTES, _WEIGHT_BYTES = 4, 2
_UPDATE_BYTES, _CLEAR_BYTES = 34, 4
"""Moved for each weight of a shard by norm and Adam, and for each weight to clear gradients."""


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
    def stages(self) -> list[tuple[Block, ...]]:
        """The blocks of each stage, equally many."""
        blocks = [block for block, count in self.shape.blocks for _ in range(count)]
        edges = [stage * len(blocks) // self.pp for stage in range(self.pp + 1)]
        return [tuple(blocks[a:b]) for a, b in pairwise(edges)]


def _predict(row: Run, constants: Constants) -> Prediction:
    training = Training(
        row.shape,
        row.layout,
        Links(machine("B200")),
        MEGATRON_CORE,
        fitted().constants("Megatron-Core on B200"),
        "bfloat16",
        row.seq_tokens,
    )
    widest = max((1 + mlp.gated) * mlp.width for mlp in _mlps(row.shape)) / row.tp
    # The gradient of the largest product is there twice at the peak.
    memory = max(peak_bytes(training)) + _GRADIENT_BYTES * widest * row.shape.hidden
    timed = system()
    if timed is None:
        return Prediction(step(training).seconds, "data sheet, fitted constants", memory)
    basis = "kernels timed one by one, fitted constants"
    return Prediction(_timed(row, training, timed, constants), basis, memory)


def _mlps(shape: Shape) -> list[MLP]:
    return [layer for block, _ in shape.blocks for layer in block if isinstance(layer, MLP)]


def _timed(row: Run, training: Training, timed: System, constants: Constants) -> float:
    """Return the seconds of a step by timed kernels, all a little slower side by side."""
    seconds = [_stage(row, timed, stage, blocks) for stage, blocks in enumerate(row.stages)]
    late = [constants.overhead_s * _kernels(row, blocks) / 2 for blocks in row.stages]
    size = 2 * row.tokens * row.shape.hidden / row.tp
    transfer = timed.collective("p2p", size, 2)
    return Step(
        tuple(s.forward_s / constants.efficiency + o for s, o in zip(seconds, late, strict=True)),
        tuple(s.backward_s / constants.efficiency + o for s, o in zip(seconds, late, strict=True)),
        row.microbatches,
        transfer_s=(transfer,) * (row.pp - 1),
        after_s=_after_s(training, timed),
    ).seconds


def _kernels(row: Run, blocks: tuple[Block, ...]) -> float:
    experts = sum(layer.count for block in blocks for layer in block if isinstance(layer, Experts))
    return len(blocks) * _LAYER_KERNELS + experts / row.ep * _EXPERT_KERNELS


def _stage(row: Run, timed: System, stage: int, blocks: tuple[Block, ...]) -> Passes:
    layers = [_layer(row, timed, layer) for block in blocks for layer in block]
    if stage == 0:
        size = 2 * row.tokens * row.shape.hidden
        layers.append(timed.moved(2 * size, 3 * size))
    if stage == row.pp - 1:
        layers.append(_head(row, timed))
    return total(layers)


def _layer(row: Run, timed: System, layer: Layer) -> Passes:
    match layer:
        case Attention():
            inside = _attention(row, timed, layer)
        case LatentAttention():
            inside = _latent_attention(row, timed, layer)
        case MLP():
            inside = _products(row, timed, layer.width)
        case Experts():
            inside = _experts(row, timed, layer)
        case _:
            raise ValueError(f"nothing was timed for a layer like {layer}")
    return total([_around(row, timed), inside])


def _around(row: Run, timed: System) -> Passes:
    """Return the passes of a layer's norm, residual connection and tensor-parallel collectives."""
    size = 2 * row.tokens * row.shape.hidden
    gather = timed.collective("all_gather", size, row.tp)
    scatter = timed.collective("reduce_scatter", size, row.tp)
    moved = timed.moved(5 * size / row.tp, 5 * size / row.tp)
    return total([moved, Passes(gather + scatter, 2 * gather + scatter)])


def _attention(row: Run, timed: System, layer: Attention) -> Passes:
    hidden, tokens, width = row.shape.hidden, row.tokens, layer.head_dim
    heads, kv_heads = layer.heads // row.tp, max(layer.kv_heads // row.tp, 1)
    projected = (heads + 2 * kv_heads) * width
    # Ranks of one sequence exchange tokens for heads: queries, keys and values there, outputs back.
    exchanged = sum(
        timed.collective("all2all", 2 * tokens * each * width, row.cp)
        for each in (heads, heads, 2 * kv_heads)
    )
    own, own_kv = heads // row.cp, max(kv_heads // row.cp, 1)
    return total(
        [
            timed.linear(tokens, hidden, projected),
            timed.linear(tokens, heads * width, hidden),
            timed.scores(row.seq_tokens, own, own_kv, width, width),
            timed.moved(4 * tokens * projected, 4 * tokens * projected),
            Passes(exchanged, exchanged),
        ]
    )


def _latent_attention(row: Run, timed: System, layer: LatentAttention) -> Passes:
    hidden, tokens, heads = row.shape.hidden, row.tokens, layer.heads // row.tp
    key, value = layer.head_dim + layer.rope_dim, layer.head_dim
    ranks = layer.query_rank + layer.kv_rank
    heads_bytes = 2 * tokens * heads * (2 * key + value)
    return total(
        [
            timed.linear(tokens, hidden, layer.query_rank),
            timed.linear(tokens, layer.query_rank, heads * key),
            timed.linear(tokens, hidden, layer.kv_rank + layer.rope_dim),
            timed.linear(tokens, layer.kv_rank, heads * 2 * value),
            timed.linear(tokens, heads * value, hidden),
            timed.scores(row.seq_tokens, heads // row.cp, heads // row.cp, key, value),
            timed.moved(4 * tokens * ranks, 6 * tokens * ranks),
            timed.moved(2.5 * heads_bytes, 2.5 * heads_bytes),
        ]
    )


def _products(row: Run, timed: System, width: int) -> Passes:
    hidden, own, tokens = row.shape.hidden, width // row.tp, row.tokens
    return total(
        [
            timed.linear(tokens, hidden, 2 * own),
            timed.linear(tokens, own, hidden),
            timed.moved(6 * tokens * own, 10 * tokens * own),
        ]
    )


def _experts(row: Run, timed: System, layer: Experts) -> Passes:
    """Return the passes of a mixture: shared expert, router, tokens there and back, products."""
    hidden, local = row.shape.hidden, layer.count // row.ep
    visits = row.tokens * layer.active
    rows = math.ceil(visits / layer.count) * row.ep
    sent = 2 * visits * hidden
    exchanged = 2 * timed.collective("all2all", sent, row.ep)
    sorted_bytes = 4 * sent * (1 + (row.ep > 1))
    return total(
        [
            _products(row, timed, layer.shared_width),
            timed.linear(row.tokens, hidden, layer.count),
            timed.grouped_linear(local, rows, hidden, 2 * layer.width),
            timed.grouped_linear(local, rows, layer.width, hidden),
            timed.moved(6 * visits * layer.width, 10 * visits * layer.width),
            timed.moved(sorted_bytes, sorted_bytes, "permute"),
            Passes(exchanged, exchanged),
        ]
    )


def _head(row: Run, timed: System) -> Passes:
    shape, vocabulary = row.shape, row.shape.vocabulary // row.tp
    logits = 4 * row.tokens * vocabulary
    gather = timed.collective("all_gather", 2 * row.tokens * shape.hidden, row.tp)
    return total(
        [
            timed.linear(row.tokens, shape.hidden, vocabulary),
            timed.moved(logits, logits, "ce_fusion"),
            Passes(gather, gather),
        ]
    )


def _after_s(training: Training, timed: System) -> float:
    """Return the seconds after the passes: gradients scattered, Adam, weights gathered."""
    layout, (experts, dense) = training.layout, parameters(training)
    exchanged = moved = 0.0
    for weights, ranks in ((dense, layout.dp * layout.cp), (experts, layout.expert_replicas)):
        exchanged += timed.collective("reduce_scatter", _GRADIENT_BYTES * weights, ranks)
        exchanged += timed.collective("all_gather", _WEIGHT_BYTES * weights, ranks)
        moved += weights * (_CLEAR_BYTES + _UPDATE_BYTES / ranks)
    return exchanged + timed.moved(moved, 0).forward_s


def _measured(values: Values) -> Measured:
    return Measured(
        float(values["step_s"]),
        float(values["peak_allocated_gib"]) * 2**30,
        simulated_s=float(values["simumax_step_s"]),
    )


def _work(row: Run) -> float:
    samples = row.micro_batch_samples * row.microbatches / (row.tp * row.cp * row.pp)
    return row.shape.active_parameters * row.seq_tokens * samples


SIMUMAX = PublishedSet(
    name="simumax",
    file="simumax/runs.csv",
    row=Run,
    machine=lambda _: "Megatron-Core by timed kernels on B200",
    predict=_predict,
    measured=_measured,
    work=_work,
    group=lambda row: str((row.model, row.tp, row.pp, row.cp, row.ep)),
    efficiencies=tuple(round(0.84 + 0.01 * each, 2) for each in range(17)),
    overheads=tuple(each * 2e-6 for each in range(16)),
)
