"""sailor: Megatron-DeepSpeed in float32 on nodes of GH200 and on mixed RTX machines (SOSP '25)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import ClassVar, NamedTuple

from pydantic import PositiveInt

from experiments.published.published_set import Row, RowMeasured, RowPrediction, Values, layout_of
from experiments.published.sets.sailor_inputs import bandwidth, layers, profile
from pipekit.choices import require_choice
from pipekit.performance.constants import Constants
from pipekit.performance.devices import Machine, machine
from pipekit.performance.memory import peak_bytes
from pipekit.performance.predict import step
from pipekit.performance.shapes import shape
from pipekit.performance.step import TrainingStep, in_flight
from pipekit.performance.training import MEGATRON_DEEPSPEED, training

_DEVICES = {
    "GH-96": "GH200",
    "RTX-2080": "RTX 2080",
    "RTX-3090": "RTX 3090",
    "Titan-RTX": "Titan RTX",
    "A100-40": "A100 40GB",
    "A100-80": "A100 80GB",
    "V100-16": "V100 16GB",
}
_SHAPES = {"OPT-350": "opt-350m", "GPT-Neo-2.7": "gpt-neo-2.7b", "LLAMA-3-8": "llama3-8b"}
_FITTED, _NO_LOSSES = "clariden", Constants(1.0, 0.0)
"""Constants are the share of the network's fit that messages get while all nodes send, and how long
a profile waits after each pass.  On other clusters profiles and fits are taken as they are."""
_VOCABULARY, _SEQ_TOKENS = 50257, 2048
_EAGER_BYTES = 4e6  # a larger message waits until its receiver is there (NCCL's buffer)
_UPDATE_BYTES = 28  # moved for each weight by Adam in float32
_STATE_BYTES = 16  # weight, gradient and Adam's moments
_WASTE, _RUNTIME_BYTES = 1.15, 3e9  # activations with the allocator's gaps, a factor; the runtime's
_LOGITS = 3  # in float32: logits, losses' softmax, gradient


class _GpuPlace(NamedTuple):
    """Where a replica of a stage runs: GPUs of one node, and how many of them share its tensors."""

    gpu: str
    gpus: int
    tp: int


@dataclass(frozen=True)
class SailorRow(Row):
    """One plan."""

    name = "sailor"
    file = "sailor/plans.csv"
    machine = "Megatron-DeepSpeed by layer profiles on GH200"
    names: ClassVar = {"model": _SHAPES}
    efficiencies = (0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0)
    overheads = (0.0, 1e-4, 1.5e-4, 2e-4, 2.5e-4, 3e-4)

    plan_file: str
    cluster: str
    model: str
    pp: PositiveInt
    dp: PositiveInt
    tp: PositiveInt
    micro_batch_samples: PositiveInt
    microbatches_per_replica: PositiveInt
    plan_json: str

    @cached_property
    def plan(self) -> tuple[list[list[_GpuPlace]], list[int]]:
        """The places of each stage's replicas, and its number of layers; ValueError if wrong."""
        try:
            read = json.loads(self.plan_json)
            counts = [len(each) for each in read["layers_per_stage"]]
            places = [
                [_GpuPlace(gpu, count, tp) for ((gpu, count, _), *_), tp in stage]
                for stage in read["tmp_per_stage"]
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"plan_json is no plan of Sailor's: {error}") from None
        if [len(stage) for stage in places] != [self.dp] * self.pp or len(counts) != self.pp:
            raise ValueError(f"plan_json has not {self.pp} stages of {self.dp} replicas each")
        return places, counts

    @property
    def stages(self) -> list[list[_GpuPlace]]:
        return self.plan[0]

    @property
    def layers(self) -> list[range]:
        """The layers of each stage: as many as the plan lists there, what is left on the last."""
        edges = [0, *accumulate(self.plan[1][:-1]), len(layers(self.model, 1))]
        return [range(a, b) for a, b in pairwise(edges)]

    @property
    def work(self) -> float:
        samples = self.micro_batch_samples * self.microbatches_per_replica / (self.pp * self.tp)
        return samples * sum(layer.weights for layer in layers(self.model, 1))

    @property
    def anomaly(self) -> str | None:
        copied = ("clariden", "N4_D4"), ("mit", "N2_D1")
        if (self.cluster, self.plan_file.rpartition("plan_config_")[2]) in copied:
            return "shares measured numbers with another plan"
        return None

    @staticmethod
    def measured(values: Values) -> RowMeasured:
        return RowMeasured(float(values["step_s"]), float(values["peak_memory_bytes"]))

    def predict(self, constants: Constants) -> RowPrediction:
        losses = constants if self.cluster == _FITTED else _NO_LOSSES
        try:
            replicas = (_replica_s(self, replica, losses) for replica in range(self.dp))
            seconds = max(replicas) + max(_after_s(self, stage) for stage in range(self.pp))
            basis = "layer profiles, network fits, fitted constants"
            return RowPrediction(seconds, basis, _memory(self))
        except ValueError as missing:
            return _by_data_sheet(self, str(missing))


def _passes(row: SailorRow, place: _GpuPlace, layer: int, waits_s: float) -> Iterator[float]:
    """Yield the seconds of a layer's forward and backward.

    A profile waits for the device after each pass, which a training does not: what exceeds the
    device's own time, known from the largest microbatch, shrinks by that wait.
    """
    known = profile(row.model, place.gpu, place.tp)
    samples, largest = row.micro_batch_samples, max(known)
    for index in range(2):
        device = known[largest][layer][index] / largest * samples
        profiled = known[samples][layer][index] if samples in known else device
        yield max(device, profiled - waits_s) if profiled > device else profiled


def _stage(row: SailorRow, stage: int, place: _GpuPlace, waits_s: float) -> tuple[float, float]:
    passes = [tuple(_passes(row, place, layer, waits_s)) for layer in row.layers[stage]]
    if stage == row.pp - 1 and row.model == "GPT-Neo-2.7":
        passes.append(_missing_head(row, place))
    forward, backward = map(sum, zip(*passes, strict=True))
    return forward, backward


def _missing_head(row: SailorRow, place: _GpuPlace) -> tuple[float, float]:
    """Return the passes of GPT-Neo's head, which its profile lacks: OPT's, by the hidden sizes."""
    opt = profile("OPT-350", place.gpu, place.tp)
    samples = row.micro_batch_samples if row.micro_batch_samples in opt else max(opt)
    factor = _hidden(row.model) / _hidden("OPT-350") * row.micro_batch_samples / samples
    forward, backward = opt[samples][len(layers("OPT-350", 1)) - 1]
    return forward * factor, backward * factor


def _hidden(model: str) -> int:
    return shape(_SHAPES[model]).hidden


def _by_data_sheet(row: SailorRow, missing: str) -> RowPrediction:
    """Return what data sheets alone say, all machines being as slow as the slowest."""
    places = [place for stage in row.stages for place in stage]
    slowest = min((_machine(place) for place in places), key=lambda each: each.peak("float32"))
    layout = layout_of(row, microbatches=row.microbatches_per_replica)
    model, framework = shape(_SHAPES[row.model]), MEGATRON_DEEPSPEED
    run = training(model, layout, slowest, framework, seq_tokens=_SEQ_TOKENS, dtype="float32")
    basis = f"data sheet, fitted constants; {missing}"
    return RowPrediction(step(run).seconds, basis, max(peak_bytes(run)))


def _machine(place: _GpuPlace) -> Machine:
    require_choice("gpu", place.gpu, _DEVICES)
    return machine(_DEVICES[place.gpu])


def _replica_s(row: SailorRow, replica: int, constants: Constants) -> float:
    places = [stage[replica] for stage in row.stages]
    passes = [_stage(row, s, place, constants.overhead_s) for s, place in enumerate(places)]
    size = layers(row.model, row.tp)[1].output_bytes * row.micro_batch_samples
    part = size / row.tp  # each tensor-parallel rank sends its own
    return TrainingStep(
        tuple(forward for forward, _ in passes),
        tuple(backward for _, backward in passes),
        row.microbatches_per_replica,
        transfer_s=tuple(
            size / (bandwidth(a[:2], b[:2], part) * constants.efficiency)
            for a, b in pairwise(places)
        ),
        blocking=part > _EAGER_BYTES,
    ).seconds


def _after_s(row: SailorRow, stage: int) -> float:
    """Return the seconds of a stage's update: a ring's all-reduce over its nodes, then Adam."""
    places, weights = row.stages[stage], _weights(row, stage)
    rate = _machine(places[0]).device.memory_bandwidth
    update = _UPDATE_BYTES * weights / rate
    if row.dp == 1:
        return update
    size = 4 * weights * row.tp
    ring = [*places, places[0]]
    slowest = min(bandwidth(a[:2], b[:2], size / row.dp) for a, b in pairwise(ring))
    return 2 * (row.dp - 1) / row.dp * size / slowest + update


def _weights(row: SailorRow, stage: int) -> float:
    """Return weights on a rank of a stage; a last stage has GPT-Neo's tied table once more."""
    sizes = layers(row.model, row.tp)
    tied = stage == row.pp - 1 > 0 and row.model == "GPT-Neo-2.7"
    table = _VOCABULARY * _hidden(row.model) / row.tp if tied else 0
    return table + sum(sizes[layer].weights for layer in row.layers[stage])


def _memory(row: SailorRow) -> float:
    flying = in_flight("flush", row.pp, row.microbatches_per_replica)
    sizes, samples = layers(row.model, row.tp), row.micro_batch_samples
    logits = 4 * _LOGITS * samples * _SEQ_TOKENS * _VOCABULARY / row.tp
    return _RUNTIME_BYTES + max(
        _STATE_BYTES * _weights(row, stage)
        + _WASTE * flying[stage] * samples * sum(sizes[layer].kept_bytes for layer in layers)
        + logits * (stage == row.pp - 1)
        for stage, layers in enumerate(row.layers)
    )
