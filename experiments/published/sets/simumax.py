"""simumax: Megatron-Core on one node of B200 (Moore Threads, SimuMax v1.2)."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import PositiveInt

from experiments.published.published_set import DegreesRow, RowPrediction, given, layout_of
from pipekit.performance.constants import Constants
from pipekit.performance.devices import machine
from pipekit.performance.memory import peak_bytes
from pipekit.performance.predict import step
from pipekit.performance.shapes import MLP, SHAPES, Experts, LatentAttention, Shape, llama
from pipekit.performance.terms.collectives import Links
from pipekit.performance.training import MEGATRON_CORE, TrainingSetup, on
from pipekit.reading import read_json

_B200 = machine("B200")
_FRAMEWORK = replace(
    MEGATRON_CORE, name="Megatron-Core without overlap", overlaps_tensor_parallel=False
)
"""Without Megatron-LM's ``--tp-comm-overlap``, as the given rows with tp 8 say by their seconds."""
_GRADIENT_BYTES = 4


@dataclass(frozen=True)
class _TimedLinks(Links):
    """A node's links, by the law that SimuMax fitted to all-gathers it timed."""

    share: float  # of the sheet's bandwidth that a large one gets
    fixed_s: float
    each_s: float  # for each other rank

    def scatter(self, ranks: int, size: float, stride: int = 1) -> float:
        """Return seconds of an all-gather with its latency; a reduce-scatter takes as long."""
        if ranks == 1:
            return 0.0
        moved = (ranks - 1) / ranks * size
        rate = self.share * self.machine.node_bandwidth
        return moved / rate + self.fixed_s + (ranks - 1) * self.each_s


def _links() -> Links:
    """Return a node's links: as timed, if the file of SimuMax's system is there."""
    path = given("simumax/b200_system.json")
    return Links(_B200) if path is None else _timed(path)


@cache
def _timed(path: Path) -> Links:
    read = read_json(path, dict[str, Any], "SimuMax's description of a system")
    law = read["networks"]["high_intra_node"]["op"]["all_gather"]
    fixed, each = (law[name] * 1e-6 for name in ("fixed_latency_us", "latency_us"))
    return _TimedLinks(_B200, law["efficient_factor"], fixed, each)


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
    machine = on(_FRAMEWORK, _B200)
    names: ClassVar = {"model": _SHAPES, "gpu_type": ["B200"]}
    degrees = "tp", "pp", "dp", "cp"
    efficiencies = tuple(round(0.40 + 0.02 * each, 2) for each in range(13))
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

    def predict(self, constants: Constants) -> RowPrediction:
        shape, layout = self.shape, layout_of(self, microbatches=self.microbatches, zero=1)
        layout.require_suited(shape)
        links = _links()
        run = TrainingSetup(
            shape, layout, links, _FRAMEWORK, constants, "bfloat16", self.seq_tokens
        )
        mlps = (layer for layer, _ in shape.each_layer() if isinstance(layer, MLP))
        widths = [(1 + mlp.gated) * mlp.width for mlp in mlps]
        largest = max(widths, default=0) * shape.hidden / self.tp
        # The gradient of the largest product is there twice at the peak.
        memory = max(peak_bytes(run)) + _GRADIENT_BYTES * largest
        timed = ", timed collectives" if isinstance(links, _TimedLinks) else ""
        return RowPrediction(step(run).seconds, f"data sheet, fitted constants{timed}", memory)
