"""Megatron-DeepSpeed on nodes of 8 A100: vTrain's measurements of GPT on one node and on many (Bang
et al., vTrain, MICRO 2024), and BigScience's trials before BLOOM, 18 to 200 billion parameters
(Jean Zay, chronicles-prequel.md): rank only, since the authors saw the network vary by 40 %."""

from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import PositiveFloat, PositiveInt

from experiments.published.published_set import DegreesRow, RowPrediction, layout_of
from pipekit.performance.constants import Constants
from pipekit.performance.devices import machine
from pipekit.performance.layout import ParallelLayout, Recompute, on_gpus
from pipekit.performance.memory import peak_bytes
from pipekit.performance.predict import step
from pipekit.performance.shapes import Shape, gpt
from pipekit.performance.terms.collectives import Links
from pipekit.performance.training import MEGATRON_DEEPSPEED, TrainingSetup

_A100 = machine("A100 80GB")
_VTRAIN_NETWORK, _BIGSCIENCE_NETWORK = 100e9, 50e9
"""Bytes/s of a node: 800 Gb/s, as vTrain's own configuration files say; four Omni-Path links of
100 Gb/s."""
_VOCABULARY = 250_880
_HEAD_WIDTH = 128
_HIDDEN = 14_400  # of rows that do not print it, with layers tweaked to fit (the set's README)
_ONE_NODE_BATCH = 512  # samples of one-node lines, which print 2048 and a quarter's TFLOPs
_FLOAT32_FROM = "02-28"  # since when gradients are summed in float32, beside those of 2 bytes


def _run(
    model: Shape, layout: ParallelLayout, network: float, constants: Constants, seq_tokens: int
) -> TrainingSetup:
    links = Links(replace(_A100, network_bandwidth=network / 8))
    return TrainingSetup(model, layout, links, MEGATRON_DEEPSPEED, constants, "float16", seq_tokens)


def _predicted(run: TrainingSetup, memory_bytes: float | None = None) -> RowPrediction:
    return RowPrediction(step(run).seconds, "data sheet, fitted constants", memory_bytes)


@dataclass(frozen=True)
class VTrainRow(DegreesRow):
    """A configuration."""

    machine = "Megatron-DeepSpeed on A100"
    degrees = "tp", "dp", "pp"
    efficiencies = tuple(round(0.80 + 0.02 * each, 2) for each in range(10))
    overheads = tuple(round(each * 1e-6, 7) for each in range(38, 58, 3))
    recompute: ClassVar[Recompute]

    gpus: PositiveInt
    global_batch_samples: PositiveInt
    hidden_size: PositiveInt
    attention_heads: PositiveInt
    layers: PositiveInt
    seq_tokens: PositiveInt

    @property
    def model(self) -> str:
        """A name of its shape."""
        return f"GPT {self.hidden_size} x {self.layers}"

    @property
    def shape(self) -> Shape:
        return gpt("GPT", self.hidden_size, self.attention_heads, self.layers)

    @property
    def work(self) -> float:
        """A step's FLOPs a GPU (Narayanan et al., SC '21, equation 2)."""
        scores = 12 * self.layers * self.hidden_size * self.seq_tokens
        tokens = self.global_batch_samples * self.seq_tokens
        return tokens * (6 * self.shape.active_parameters + scores) / self.gpus

    def predict(self, constants: Constants) -> RowPrediction:
        layout = on_gpus(
            self.gpus,
            self.global_batch_samples,
            tp=self.tp,
            pp=self.pp,
            microbatch_samples=self.micro_batch_samples,
            recompute=self.recompute,
        )
        layout.require_suited(self.shape)
        return _predicted(_run(self.shape, layout, _VTRAIN_NETWORK, constants, self.seq_tokens))


@dataclass(frozen=True)
class SingleNodeRow(VTrainRow):
    """On one node."""

    name = "vtrain_single_node"
    file = "vtrain/single_node.csv"
    recompute = "nothing"
    published_error = 0.0837

    @property
    def kind(self) -> str:
        return f"tp {self.tp}"


@dataclass(frozen=True)
class MultiNodeRow(VTrainRow):
    """On many nodes."""

    name = "vtrain_multi_node"
    file = "vtrain/multi_node.csv"
    recompute = "everything"
    published_error = 0.1473


@dataclass(frozen=True)
class BigScienceRow(DegreesRow):
    """A line of a table."""

    name = "bigscience"
    file = "bigscience/a100_steps.csv"
    machine = "Megatron-DeepSpeed on A100"

    date: str
    nodes: PositiveInt
    gpus: PositiveInt
    model_billions: PositiveFloat
    layers: PositiveFloat | None
    hidden_size: PositiveFloat | None
    attention_heads: PositiveFloat | None
    zero_stage: float | None
    seq_tokens: PositiveInt
    global_batch_samples: PositiveInt

    @property
    def shape(self) -> Shape:
        """The model; what a row does not print follows from the parameters."""
        hidden = int(self.hidden_size or _HIDDEN)
        layers = int(self.layers or 0)
        if not layers:
            weights = self.model_billions * 1e9 - _VOCABULARY * hidden
            layers = round(weights / (12 * hidden**2) / self.pp) * self.pp
        heads = int(self.attention_heads or max(hidden // _HEAD_WIDTH, 1))
        return gpt("BLOOM trial", hidden, heads, layers, _VOCABULARY)

    @property
    def work(self) -> float:
        tokens = self.global_batch_samples * self.seq_tokens
        return 6 * self.shape.active_parameters * tokens / self.gpus

    def predict(self, constants: Constants) -> RowPrediction:
        batch = _ONE_NODE_BATCH if self.nodes == 1 else self.global_batch_samples
        layout = layout_of(
            self,
            microbatches=max(round(batch / (self.micro_batch_samples * self.dp)), 1),
            zero=int(1 if self.zero_stage is None else self.zero_stage),
            recompute="everything",
        )
        run = _run(self.shape, layout, _BIGSCIENCE_NETWORK, constants, self.seq_tokens)
        if self.date >= _FLOAT32_FROM:
            own = replace(run.framework, accumulation_bytes=8, gradients_held=8)
            run = replace(run, framework=own)
        return _predicted(run, max(peak_bytes(run)))
