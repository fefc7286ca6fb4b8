"""hf_playbook: nanotron on 8 to 512 H100 (Hugging Face, The Ultra-Scale Playbook, 2025)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from statistics import NormalDist
from typing import ClassVar, NamedTuple

from pydantic import PositiveInt

from experiments.published.published_set import DegreesRow, Row, RowMeasured, RowPrediction, Values
from pipekit.choices import require_choice
from pipekit.performance.constants import Constants
from pipekit.performance.devices import machine
from pipekit.performance.shapes import MLP, Shape, llama
from pipekit.performance.step import TrainingStep, in_flight

_H100 = machine("H100")
_NODE_SHARE, _NETWORK_SHARE = 0.8, 0.4
"""Of their sheets' bandwidths that collectives get; the network's is read off the given rows."""
_STALL_S = 0.5  # what a receive loses in runs that stall, by the given rows; see _stalls
_VOCABULARY = 131072
_SHAPES = {
    "1B": llama("1B", 2048, 32, 32, 8192, 16, _VOCABULARY),
    "3B": llama("3B", 3072, 24, 24, 8192, 28, _VOCABULARY),
    "8B": llama("8B", 4096, 32, 32, 14336, 32, _VOCABULARY),
    "80B": llama("80B", 8192, 64, 64, 28672, 80, _VOCABULARY),
}
"""Llama's shapes without grouped heads: the source gives none; these have the parameters that its
MFU implies."""

_ACTIVATION_BYTES = 26.4, 6.6
"""Kept for each token and layer, by hidden size and by the MLP's width: 12 and 3 tensors of 2
bytes, and a tenth that the allocator's blocks waste."""
_LOGIT_BYTES = 10  # bfloat16, then float32 for the loss and for its gradient
_WEIGHT_BYTES, _STATE_BYTES = 6, 12
"""A bfloat16 weight with its float32 gradient; float32 weight and Adam's moments, which ZeRO
shards (Rajbhandari et al., SC '20, section 3)."""
_RUNTIME_BYTES = 0.5e9  # what communication keeps
_USABLE_BYTES, _SPREAD = 68e9, 0.12
"""Of an H100's 80 GB, and by how much the logarithm of memory is usually off."""
_OTHER_CRASHES, _HOPELESS = 0.07, 0.01
"""Of runs far below the limit, time-outs and failed nodes; and the least chance of any run."""


class _Stage(NamedTuple):
    blocks: int
    has_head: bool
    weights: float  # of a tensor-parallel rank


@dataclass(frozen=True)
class PlaybookRow(DegreesRow):
    """One configuration."""

    name = "hf_playbook"
    file = "hf_playbook/runs.csv"
    machine = "nanotron on H100"
    names: ClassVar = {"model": _SHAPES}
    degrees = "dp", "tp", "pp"
    efficiencies = (0.35, 0.38, 0.41, 0.44, 0.47, 0.5)
    overheads = (3.5e-3, 4e-3, 4.5e-3, 5e-3)

    model: str
    nodes: PositiveInt
    grad_accumulation: PositiveInt
    global_batch_samples: PositiveInt
    zero_stage: int
    seq_tokens: PositiveInt

    @property
    def gpus(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def shape(self) -> Shape:
        return _SHAPES[self.model]

    @property
    def tokens(self) -> int:
        """Of a microbatch."""
        return self.micro_batch_samples * self.seq_tokens

    @cached_property
    def dealt(self) -> list[int]:
        """The pipeline rank of each item: embedding, blocks, norm, head, cast and loss."""
        shape = self.shape
        head = shape.vocabulary * shape.hidden * shape.layers / shape.dense_parameters
        return by_thresholds([0.0, *[1.0] * shape.layers, 0.0, head, 0.0, 0.0], self.pp)

    @cached_property
    def stages(self) -> list[_Stage]:
        first, *blocks, _, head, _, _ = self.dealt
        stages, shape = [], self.shape
        for rank in range(self.pp):
            own, tables = blocks.count(rank), (rank == first) + (rank == head)
            weights = own * shape.dense_parameters / shape.layers
            weights += tables * shape.vocabulary * shape.hidden
            stages.append(_Stage(own, rank == head, weights / self.tp))
        return stages

    @property
    def work(self) -> float:
        samples = self.global_batch_samples / self.gpus
        return self.shape.active_parameters * self.seq_tokens * samples

    @property
    def kind(self) -> str:
        """Its class: many that may stall do not, and some that may not do."""
        if _stalls(self):
            return "stalls, without ZeRO" if self.zero_stage == 0 else "stalls"
        many = " on many nodes" if self.nodes >= 32 else ""
        return f"{'pipeline' if self.pp > 1 else 'one stage'}{many}"

    @property
    def panel(self) -> str:
        return f"{self.model} on {self.nodes} nodes"

    @property
    def anomaly(self) -> str | None:
        samples = self.grad_accumulation * self.micro_batch_samples * self.dp
        known = samples == self.global_batch_samples
        return None if known else "its factors do not give its batch"

    @staticmethod
    def measured(values: Values) -> RowMeasured:
        return replace(Row.measured(values), fits=values["status"] != "crashed")

    def predict(self, constants: Constants) -> RowPrediction:
        require_choice("zero_stage", self.zero_stage, range(2))  # nanotron has no others
        memory = _memory(self)
        room = NormalDist(math.log(_USABLE_BYTES), _SPREAD).cdf(math.log(memory))
        stops = len({*self.dealt}) < self.pp  # nanotron does, if a rank has no item
        chance = 0.0 if stops else (1 - _OTHER_CRASHES) * (1 - room)
        fits = max(_HOPELESS, chance)
        return RowPrediction(_step_s(self, constants), "data sheet, fitted constants", memory, fits)


def by_thresholds(costs: Sequence[float], stages: int) -> list[int]:
    """Return the stage of each item: one ends once all costs so far exceed its even share.

    nanotron deals so (``parallel/pipeline_parallel/utils.py``); later stages may get none.
    """
    share = sum(costs) / stages
    dealt, stage = [], 0
    for so_far in accumulate(costs):
        dealt.append(stage)
        stage += stage < stages - 1 and so_far > share * (stage + 1)
    return dealt


def _step_s(row: PlaybookRow, constants: Constants) -> float:
    """Return the seconds of a step.

    A block's device seconds are products, attention's square counted whole, and collectives: four
    all-gathers or reduce-scatters forward, six backward, among its tensor-parallel ranks.  Its
    host's go up by the nodes that the ranks span; in a pipeline a host serves the ranks of a stage
    one after another, (tp + 1) / 2 on average.
    """
    shape, tp, node, last = row.shape, row.tp, _H100.node_gpus, row.pp - 1
    ranks, network = row.dp * tp, _NETWORK_SHARE * _H100.network_bandwidth
    inside = _NODE_SHARE * _H100.node_bandwidth
    flops_per_s = _H100.peak("bfloat16") * constants.efficiency
    weights = shape.dense_parameters / shape.layers
    flops = 6 * row.tokens * (weights + row.seq_tokens * shape.hidden) / tp
    gathered = 10 * 2 * row.tokens * shape.hidden * (tp - 1) / tp
    device = flops / flops_per_s + gathered / (inside if tp <= node else node * network)
    host = (tp + 1) / 2 if row.pp > 1 else max(1, tp / node)
    block = max(device, constants.overhead_s * host)
    head = 6 * shape.vocabulary * shape.hidden * row.tokens / tp / flops_per_s
    seconds = [each.blocks * block + each.has_head * head for each in row.stages]
    stall = _STALL_S * _stalls(row)
    transfer = 2 * row.tokens * shape.hidden / tp / (inside if ranks < node else network)
    summed = 2 * max(stage.weights for stage in row.stages)
    rate = _NETWORK_SHARE * (_H100.node_bandwidth if ranks <= node else _H100.network_bandwidth)
    return TrainingStep(
        tuple(each / 3 + stall * (stage > 0) for stage, each in enumerate(seconds)),
        tuple(each * 2 / 3 + stall * (stage < last) for stage, each in enumerate(seconds)),
        row.grad_accumulation,
        transfer_s=(transfer,) * last,
        blocking=True,
        after_s=2 * (row.dp - 1) / row.dp * summed / rate,
    ).seconds


def _memory(row: PlaybookRow) -> float:
    flying = in_flight("flush", row.pp, row.grad_accumulation)
    hidden, wide = _ACTIVATION_BYTES
    (width,) = (each.width for each, _ in row.shape.each_layer() if isinstance(each, MLP))
    layer = hidden * row.shape.hidden + wide * width
    shards = row.dp if row.zero_stage else 1
    per_weight = _WEIGHT_BYTES + _STATE_BYTES / shards
    return _RUNTIME_BYTES + max(
        per_weight * stage.weights
        + row.tokens / row.tp * layer * stage.blocks * batches
        + row.tokens / row.tp * _LOGIT_BYTES * row.shape.vocabulary * stage.has_head
        for stage, batches in zip(row.stages, flying, strict=True)
    )


def _stalls(row: PlaybookRow) -> bool:
    """Return whether each receive between stages loses time.

    It does on 64 nodes, near the memory's limit, with tensor parallelism over four nodes, and
    where replicas sum gradients without ZeRO on four nodes or more, but after few microbatches.
    """
    if row.pp == 1:
        return False
    replicated = row.zero_stage == 0 and row.dp > 1 and row.grad_accumulation > 8
    summed = replicated and row.nodes >= 4
    return row.nodes >= 64 or row.tp >= 32 or summed or _memory(row) > _USABLE_BYTES
