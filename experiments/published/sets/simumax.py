"""simumax: Megatron-Core on one node of B200, by kernels that SimuMax timed one by one (v1.2)."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from pydantic import PositiveInt

from experiments.published.published_set import DegreesRow, RowPrediction, layout_of
from experiments.published.sets.simumax_kernels import System, head_passes, layer_passes, system
from pipekit.performance.constants import DATA_SHEET, Constants
from pipekit.performance.devices import machine
from pipekit.performance.memory import peak_bytes
from pipekit.performance.predict import step
from pipekit.performance.shapes import MLP, SHAPES, Experts, LatentAttention, Shape, llama
from pipekit.performance.step import TrainingStep
from pipekit.performance.terms.kernels import total
from pipekit.performance.terms.replicas import parameters
from pipekit.performance.training import MEGATRON_CORE, TrainingSetup, training

_LAYER_KERNELS, _EXPERT_KERNELS = 20, 6
"""That a layer waits for, forward and backward, and for each local expert more."""
_GRADIENT_BYTES, _WEIGHT_BYTES = 4, 2
_UPDATE_BYTES, _CLEAR_BYTES = 34, 4
"""Moved for each weight of a shard by norm and Adam, and for each weight to clear gradients."""


def _deepseek(name: str, hidden: int, width: int, experts: Experts, vocabulary: int) -> Shape:
    attention = LatentAttention(128, 1536, 512)
    blocks = ((attention, MLP(width)), 1), ((attention, experts), 1)
    return Shape(name, hidden, vocabulary, blocks)


_SHAPES = {name: each for name, each in SHAPES.items() if len(each.blocks) == 1} | {
    each.name: each
    for each in (
        llama("llama3-405b", 16384, 128, 16, 53248, 1, 128256),
        _deepseek("deepseekv2", 5120, 12288, Experts(160, 6, 1536, shared_width=3072), 102400),
        _deepseek("deepseekv3", 7168, 18432, Experts(256, 8, 2048, shared_width=2048), 129280),
    )
}
"""Papers' shapes, but 16 key heads of Llama 3 405B as in SimuMax's tables; the DeepSeeks have one
dense layer, all others are the last kind of block."""


@dataclass(frozen=True)
class SimumaxRow(DegreesRow):
    """A model cut short, and its degrees."""

    name = "simumax"
    file = "simumax/runs.csv"
    machine = "Megatron-Core by timed kernels on B200"
    names: ClassVar = {"model": _SHAPES, "gpu_type": ["B200"]}
    degrees = "tp", "pp", "dp", "cp"
    efficiencies = tuple(round(0.84 + 0.01 * each, 2) for each in range(17))
    overheads = tuple(each * 2e-6 for each in range(16))

    model: str
    layers: PositiveInt
    cp: PositiveInt
    ep: PositiveInt
    microbatches: PositiveInt
    seq_tokens: PositiveInt
    gpu_type: str = "B200"

    @property
    def shape(self) -> Shape:
        """The model, with as many blocks as it was cut to."""
        *first, (last, _) = _SHAPES[self.model].blocks
        return replace(_SHAPES[self.model], blocks=(*first, (last, self.layers - len(first))))

    @property
    def group(self) -> str:
        return str((self.model, self.tp, self.pp, self.cp, self.ep))

    @property
    def work(self) -> float:
        samples = self.micro_batch_samples * self.microbatches / (self.tp * self.cp * self.pp)
        return self.shape.active_parameters * self.seq_tokens * samples

    @property
    def run(self) -> TrainingSetup:
        layout = layout_of(self, microbatches=self.microbatches, zero=1)
        b200 = machine("B200")
        return training(self.shape, layout, b200, MEGATRON_CORE, seq_tokens=self.seq_tokens)

    def predict(self, constants: Constants) -> RowPrediction:
        found, timed = self.by_data_sheet(constants), system()
        if timed is None:
            return found
        basis = "kernels timed one by one, fitted constants"
        return replace(found, step_s=_timed(self.run, timed, constants), basis=basis, kind="")

    def by_data_sheet(self, constants: Constants) -> RowPrediction:
        shape, run = self.shape, self.run
        mlps = (layer for layer, _ in shape.each_layer() if isinstance(layer, MLP))
        widths = [(1 + mlp.gated) * mlp.width for mlp in mlps]
        largest = max(widths, default=0) * shape.hidden / self.tp
        # The gradient of the largest product is there twice at the peak.
        memory = max(peak_bytes(run)) + _GRADIENT_BYTES * largest
        basis = "data sheet, fitted constants"
        return RowPrediction(step(run).seconds, basis, memory, kind=DATA_SHEET)


def _timed(run: TrainingSetup, timed: System, constants: Constants) -> float:
    """Return the seconds of a step by timed kernels, all a little slower side by side.

    After the passes gradients are scattered, Adam updates, and weights are gathered.
    """
    layout, moved = run.layout, 2 * int(run.tokens) * run.shape.hidden
    blocks = [block for block, count in run.shape.blocks for _ in range(count)]
    edges = [stage * len(blocks) // layout.pp for stage in range(layout.pp + 1)]
    dealt = [[layer for block in blocks[a:b] for layer in block] for a, b in pairwise(edges)]
    stages = [[layer_passes(timed, run, layer) for layer in own] for own in dealt]
    stages[0].append(timed.moved(2 * moved, 3 * moved))  # the embedding
    stages[-1].append(head_passes(timed, run))
    seconds = [total(*passes) for passes in stages]
    late = []  # of the host, forward and backward alike
    for own, (a, b) in zip(dealt, pairwise(edges), strict=True):
        experts = sum(layer.count for layer in own if isinstance(layer, Experts))
        kernels = (b - a) * _LAYER_KERNELS + experts / layout.ep * _EXPERT_KERNELS
        late.append(constants.overhead_s * kernels / 2)
    transfer = timed.collective("p2p", moved / layout.tp, 2)
    exchanged = updated = 0.0
    of_experts, dense = parameters(run)
    for weights, ranks in ((dense, layout.dp * layout.cp), (of_experts, layout.expert_replicas)):
        exchanged += timed.collective("reduce_scatter", _GRADIENT_BYTES * weights, ranks)
        exchanged += timed.collective("all_gather", _WEIGHT_BYTES * weights, ranks)
        updated += weights * (_CLEAR_BYTES + _UPDATE_BYTES / ranks)
    return TrainingStep(
        tuple(s.forward_s / constants.efficiency + o for s, o in zip(seconds, late, strict=True)),
        tuple(s.backward_s / constants.efficiency + o for s, o in zip(seconds, late, strict=True)),
        layout.microbatches,
        transfer_s=(transfer,) * (layout.pp - 1),
        after_s=exchanged + timed.moved(updated, 0).forward_s,
    ).seconds
